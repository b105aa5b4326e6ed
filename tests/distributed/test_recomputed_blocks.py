"""Blocks that a plan recomputes: the second forward finds what the first one found, and changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from harness import Member
from support.pair import close, naming
from test_fsdp_module import full_gradients
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of

WIDTH = 6


class Normed(nn.Module):
    """Running statistics, which the kernel moves without raising the buffers' versions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.linear(x)).tanh()


class Iterated(nn.Module):
    """Divides by a norm that it finds better at every forward, as a spectral norm does; in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("guess", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        with torch.no_grad():
            self.guess.copy_(torch.nn.functional.normalize(self.guess + h.detach().mean(0), dim=0))
        return x + h * self.guess


class Moving(nn.Module):
    """Puts another tensor in a buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.7 * self.mean + 0.3 * x.detach().mean(0)
        return x + self.linear(x - self.mean).tanh()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Softplus()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return self.act(self.linear(x))


class Later(Moving):
    """Leaves its buffer alone at first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 2:
            self.mean += 1
        return x + self.linear(x - self.mean).tanh()


def stack(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(kind(), kind()), nn.Linear(WIDTH, 2)).double()


def sharded(me: Member, kind: type[nn.Module], recomputed: bool) -> nn.Module:
    model = stack(kind)
    plan = osdp.Plan.uniform(osdp.describe(model, x_of(me, 0)), "FULL_SHARD")
    blocks = [b.name for b in plan.description.blocks]
    assert blocks == (["1.0", "1.1"] if kind is not InPlace else [])
    if recomputed:
        plan = dataclasses.replace(plan, recompute=dict.fromkeys(blocks, "regather"))
    return osdp.fully_shard(model, plan, process_group=me.group)


def x_of(me: Member, step: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(10 * step + me.rank)
    return torch.randn(4, WIDTH, dtype=torch.float64, generator=made)


def train_both(me: Member) -> None:
    for kind in (Normed, Iterated, Moving):
        with naming(kind.__name__):
            models = [sharded(me, kind, recomputed) for recomputed in (False, True)]
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
            for step in range(3):
                losses = [m(x_of(me, step)).square().sum() for m in models]
                close(losses[1], losses[0], 1e-12, f"loss {step}")
                for loss, optimizer in zip(losses, optimizers, strict=True):
                    loss.backward(retain_graph=step == 1)
                    if step == 1:  # another backward recomputes once more
                        optimizer.zero_grad()
                        loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            for (name, b), a in zip(models[1].named_buffers(), models[0].buffers(), strict=True):
                close(b, a, 1e-12, name)


def test_buffers_change_once(ranks):
    ranks(train_both, world=2)


def change_inputs(me: Member) -> None:
    with pytest.warns(UserWarning, match=r"'1\.0' and 1 more changed its inputs"):
        model = sharded(me, InPlace, False)
    model(x_of(me, 0)).sum().backward()
    model = stack(InPlace)
    described = osdp.describe(
        stack(Moving), x_of(me, 0)
    )  # as from another machine, or of another version of the code
    plan = dataclasses.replace(
        osdp.Plan.uniform(described, "FULL_SHARD"), recompute=dict.fromkeys(["1.0", "1.1"], "regather")
    )
    model = osdp.fully_shard(model, plan, process_group=me.group)
    with pytest.raises(osdp.ShardingError, match=r"'1\.0' changes its inputs"):
        model(x_of(me, 0))


def change_later(me: Member) -> None:
    model = sharded(me, Later, True)
    model(x_of(me, 0)).sum().backward()
    with pytest.raises(osdp.ShardingError, match=r"'1\.0' changes its buffer 'mean' now"):
        model(x_of(me, 0))


@pytest.mark.outcome("a recomputed block that writes into its input", osdp.ShardingError)
def test_a_block_that_writes_into_its_input(ranks):
    ranks(change_inputs, world=2)


@pytest.mark.outcome("a recomputed block that begins to change a buffer later", osdp.ShardingError)
def test_a_block_that_begins_to_change_a_buffer_later(ranks):
    ranks(change_later, world=2)


class Joined(nn.Module):
    """Its norm travels with the first linear layer; the last one may be in slices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


def count_gathers(me: Member) -> None:
    for slices in (1, 2):
        models = [stack(Joined), stack(Joined)]
        described = osdp.describe(models[0], x_of(me, 0))
        blocks = [b.name for b in described.blocks]
        assert blocks == ["1.0", "1.1"]
        plan = osdp.Plan.uniform(described, "FULL_SHARD")
        down = osdp.Choice("FULL_SHARD", slices, split="out" if slices > 1 else None)
        plan = plan.replace({f"{b}.down": down for b in blocks})
        inside = [unit for b in blocks for unit in ((f"{b}.norm", f"{b}.up"), (f"{b}.down",))]
        plan = dataclasses.replace(
            plan, recompute=dict.fromkeys(blocks, "regather"), units=(("0",), *inside, ("2",))
        )
        events = plan.simulate("rtx-titan-8", me.world).events
        foreseen = sum(e.action == "gather" for e in events)
        model = osdp.fully_shard(models[1], plan, process_group=me.group)
        runtime = runtime_of(model).runtime
        x = x_of(dataclasses.replace(me, rank=0), 0)
        for _ in range(4):
            before = runtime.statistics()["gathers"]
            for each in (model, models[0]):
                each(x).sum().backward()
            gathers = runtime.statistics()["gathers"] - before
        for name, gradient in full_gradients(model).items():
            close(gradient, models[0].get_parameter(name).grad, 1e-12, name)
        # Outside of blocks twice; in each: forward, recomputation, and backward, which does without the slice
        # or the unit that the recomputation has left.
        assert gathers == foreseen == 2 * 2 - 1 + 2 * (3 + (2 if slices == 1 else 5)), (
            slices,
            gathers,
            foreseen,
        )


def test_what_is_used_again_is_not_gathered_again(ranks):
    ranks(count_gathers, world=2)
