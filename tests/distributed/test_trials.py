"""osdp.profile of a model on several ranks: it is trained in trial steps, and left as it was."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Member
from harness.doomed import run_doomed
from torch import nn

import osdp
from osdp import _C
from osdp.profiling import profile
from osdp.profiling.trial_steps import MODES


class Net(nn.Module):
    """Tied weights, a frozen layer, buffers and attributes that a forward changes, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 16))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.token.weight
        self.inner[0].weight.requires_grad_(False)
        self.calls = 0

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"logits": self.head(self.inner(self.token(tokens)))}


class CannotBeCopied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class FailsOnTheLastRank(Net):
    """When it is called for the `after`th time as a copy: in a trial step."""

    def __init__(self, me: Member, after: int) -> None:
        super().__init__()
        self.after = after if me.rank == me.world - 1 else 10**9
        self.copied = False

    def __deepcopy__(self, memo: Any) -> nn.Module:
        made = FailsOnTheLastRank.__new__(FailsOnTheLastRank)
        nn.Module.__init__(made)
        made.__dict__.update(Net().__dict__)
        made.after, made.copied = self.after, True
        return made

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.copied and self.calls + 1 >= self.after:
            raise ValueError("no more")
        return super().forward(tokens)


TIMEOUT_S = 10.0  # of the process group
TOKENS = torch.arange(40).reshape(40)


_measured: dict[tuple[str, int], Any] = {}  # of the machine, by what measures it and the number of ranks


def measured_once(me: Member, name: str) -> Callable[..., Any]:
    """`osdp.profiling.profile`'s function of that name, with the result of its first call in this process: a second each."""
    real = getattr(profile, name)

    def measure(*args: Any) -> Any:
        key = name, me.world
        if key not in _measured:
            _measured[key] = real(*args)
        return copy.deepcopy(_measured[key])

    return measure


def tried_modes(me: Member, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes take_trials say which modes it tried."""
    found: list[str] = []
    for name in ("measure_collectives", "measure_probe", "measure_rates", "measure_optimizer"):
        monkeypatch.setattr(profile, name, measured_once(me, name))
    real = profile.take_trials

    def noted(*args: Any) -> Any:
        trials = real(*args)
        found.extend(next(iter(t.plan.choices.values())).mode for t in trials)
        return trials

    monkeypatch.setattr(profile, "take_trials", noted)
    return found


def is_left_as_it_was(me: Member) -> str:
    torch.manual_seed(me.rank)
    model = Net()
    model.inner[3].weight.grad = torch.ones_like(model.inner[3].weight)
    before = {name: (t, t.detach().clone()) for name, t in model.state_dict(keep_vars=True).items()}
    state = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        modes = tried_modes(me, patch)
        hardware = osdp.profile(model, TOKENS, group=me.group, seconds=0.2)
    assert modes == list(MODES)
    assert model.calls == 0 and torch.equal(state, torch.get_rng_state())
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is before[name][0] and torch.equal(tensor, before[name][1]), name
    assert torch.equal(model.inner[3].weight.grad, torch.ones_like(model.inner[3].weight))
    assert model.head.weight.grad is None and model.head.weight is model.token.weight
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert hardware.stolen_computation >= 0 and hardware.optimizer_s_per_byte > 0
    assert len(hardware.fewer_ranks_speedup) == (me.world - 1).bit_length()
    return hardware.dumps()


class Blocks(nn.Module):
    """Equal ones, which a plan may recompute."""

    def __init__(self) -> None:
        super().__init__()
        block = [nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)]
        self.layers = nn.ModuleList(copy.deepcopy(nn.Sequential(*block)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def recomputes_the_blocks(me: Member) -> float:
    with pytest.MonkeyPatch.context() as patch:
        modes = tried_modes(me, patch)
        hardware = osdp.profile(Blocks(), torch.randn(8, 16), group=me.group, seconds=0.2)
    assert modes == [*MODES, MODES[0]]
    return hardware.recompute_slowdown


def is_measured_without(me: Member) -> None:
    """One rank's model cannot be copied: none is tried, and what communication takes is measured apart."""
    model = CannotBeCopied() if me.rank == 0 else Net()
    with pytest.MonkeyPatch.context() as patch:
        modes = tried_modes(me, patch)
        hardware = osdp.profile(model, TOKENS, group=me.group, seconds=0.2)
    assert modes == [] and hardware.gamma_s and hardware.exposed_communication >= 1


def hosts_of_two(me: Member) -> str:
    with pytest.MonkeyPatch.context() as patch:  # of one name, as containers of one image may have
        patch.setattr(_C, "host_identity", lambda: "ab"[me.rank // 2])
        hardware = osdp.profile(group=me.group, seconds=0.1)
    inside = hardware.inside_hosts
    assert hardware.between_hosts == hardware.all_reduce and "on 2 hosts" in hardware.source
    assert inside is not None and all(
        0 < c.beta_s_per_byte < 1e-3 for c in (inside.all_gather, inside.all_reduce)
    )
    assert osdp.Hardware.loads(hardware.dumps()) == hardware
    return hardware.dumps()


def test_hosts_of_several_ranks_are_measured_inside_too(ranks):
    assert len(set(ranks(hosts_of_two, world=4))) == 1


def no_room(me: Member) -> None:
    """Modes are left out that do not fit beside the model."""
    model = Net()
    description = osdp.describe(model, TOKENS)
    hardware = osdp.profile(group=me.group, seconds=0.1)
    beside = 2 * 4 * sum(p.numel() for p in model.parameters())  # the model and its gradients

    def needs(mode: str) -> int:
        plan = dataclasses.replace(osdp.Plan.uniform(description, mode), batch_size=len(TOKENS))
        return plan.simulate(hardware, me.world).peak_memory_bytes + beside

    sharded, whole = needs("FULL_SHARD"), needs("NO_SHARD")
    assert sharded < whole
    for room, expected in ((sharded, list(MODES[:2])), (sharded - 1, [])):
        with pytest.MonkeyPatch.context() as patch:
            modes = tried_modes(me, patch)
            patch.setattr(profile, "device_memory", lambda *_, room=room: room)
            osdp.profile(model, TOKENS, group=me.group, seconds=0.2)
        assert modes == expected


def fails_in_the_middle(me: Member, after: int) -> str:
    with pytest.raises(osdp.OSDPError) as caught:
        osdp.profile(FailsOnTheLastRank(me, after), TOKENS, group=me.group, seconds=0.2)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_recomputed_blocks_are_tried_too(ranks) -> None:
    slowdowns = set(ranks(recomputes_the_blocks, world=2))
    assert len(slowdowns) == 1 and 1.0 <= slowdowns.pop() <= 4.0


def test_the_model_is_left_as_it_was_and_ranks_agree(ranks) -> None:
    assert len(set(ranks(is_left_as_it_was, world=3))) == 1


def test_a_model_that_cannot_be_copied_is_profiled_without_trials(ranks) -> None:
    ranks(is_measured_without, world=2)


def test_modes_that_do_not_fit_are_left_out(ranks) -> None:
    ranks(no_room, world=2)


@pytest.mark.outcome("a trial step of `profile` raises on one rank", osdp.OSDPError)
def test_an_exception_in_a_trial_step_fails_on_all_ranks() -> None:
    endings = run_doomed(fails_in_the_middle, 3, world=2, timeout_s=TIMEOUT_S)
    assert all(ending.result for ending in endings), endings
    other, failed = (ending.result for ending in endings)
    assert failed.startswith("ProfileError") and "no more" in failed, failed
    assert other.startswith("RankError") and "rank 1" in other and "no more" in other, other
