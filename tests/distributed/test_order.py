"""Ranks that do not run the same: an OrderError that says what differs, never one tensor's bytes in another's.

Such an error is final for a process group, so each case makes one of its own.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import plans
from support.descriptions import describe_once
from support.links import only
from support.pair import close, naming
from torch import nn

import osdp

WIDTH = 8


class Weights(nn.Module):
    """Weights in one unit; those in `used` take part. As `large`, each of their gradients travels by itself."""

    def __init__(self, seed: int = 0, shapes: str = "equal", large: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rows = 2048 if large else 6
        self.first = nn.Parameter(torch.randn(rows, WIDTH, dtype=torch.float64))
        second = rows if shapes == "equal" else rows + 2
        self.second = nn.Parameter(torch.randn(second, WIDTH, dtype=torch.float64))
        self.third = nn.Parameter(torch.randn(rows, WIDTH, dtype=torch.float64))
        self.used: tuple[str, ...] = ("first", "second", "third")
        self.idle: tuple[str, ...] = ()  # these get a gradient of zeros

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for name in self.used:
            loss = loss + (x @ getattr(self, name).t()).square().sum()
        for name in self.idle:
            loss = loss + 0 * getattr(self, name).sum()
        return loss


class Layers(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().sum()


def x_of(rank: int) -> torch.Tensor:
    return torch.randn(3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def shard(model: nn.Module, how: str, group: dist.ProcessGroup) -> nn.Module:
    described = describe_once(model, x_of(0))
    plan = plans.in_slices(described, "out") if how == "slices" else osdp.Plan.uniform(described, how)
    return osdp.fully_shard(model, plan, group, ranks_per_host=2 if how == "HYBRID_SHARD" else None)


@contextlib.contextmanager
def refused(*patterns: str) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(osdp.OrderError) as caught:
        yield
    for pattern in patterns:
        assert re.search(pattern, str(caught.value)), (pattern, str(caught.value))
    assert time.monotonic() - began < TIMEOUT_S / 2


TIMEOUT_S = 300.0
Case = Callable[[Member, str, dist.ProcessGroup], None]


def each(me: Member, cases: list[tuple[Case, str]], link: str | None) -> None:
    for case, how in cases:
        group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
        with naming(f"{case.__name__}, {how}"), only(link) if link else nullcontext():
            case(me, how, group)
        dist.barrier()


# --- which model


def one_here_the_other_there(me: Member, how: str, group: dist.ProcessGroup) -> None:
    """Every rank trains one of two models of one class; the first rank another than the others."""
    models = [shard(Layers(seed), how, group) for seed in (1, 2)]
    with refused("different models", "rank 0 waits at #.* of model 2", r"rank 1[^;]* waits at #\d+ '[^']*',"):
        models[me.rank == 0](x_of(me.rank)).backward()


def a_b_and_b_a(me: Member, how: str, group: dist.ProcessGroup) -> None:
    models = [shard(Layers(seed), how, group) for seed in (1, 2)]
    with refused("different models", "of model 2"):
        for model in models if me.rank == 0 else reversed(models):
            model(x_of(me.rank)).backward()


def clipped(me: Member, how: str, group: dist.ProcessGroup) -> None:
    models = [shard(Layers(seed), how, group) for seed in (1, 2)]
    for model in models:
        model(x_of(me.rank)).backward()
    with refused("different models", "'clip_grad_norm_ all-reduce' of model 2"):
        osdp.clip_grad_norm_(models[me.rank == 0], 1.0)


def clipped_otherwise(me: Member, how: str, group: dist.ProcessGroup) -> None:
    model = shard(Layers(1), how, group)
    model(x_of(me.rank)).backward()
    with refused("do not agree", "norm_type 2", "norm_type inf"):
        osdp.clip_grad_norm_(model, 1.0, norm_type=float("inf") if me.rank == 0 else 2.0)


def state_dicts(me: Member, how: str, group: dist.ProcessGroup) -> None:
    models = [shard(Layers(seed), how, group) for seed in (1, 2)]
    with refused("different models", "all-gather .whole.' of model 2"):
        models[me.rank == 0].state_dict()


def summoned(me: Member, how: str, group: dist.ProcessGroup) -> None:
    models = [shard(Layers(seed), how, group) for seed in (1, 2)]
    with refused("different models", "of model 2"), osdp.summon_full_params(models[me.rank == 0]):
        raise AssertionError("never reached")


def summoned_with_gradients_here(me: Member, how: str, group: dist.ProcessGroup) -> None:
    model = shard(Layers(1), how, group)
    model(x_of(me.rank)).backward()
    with refused("whole gradient"), osdp.summon_full_params(model, with_grads=me.rank == 0):
        raise AssertionError("never reached")


# --- which parameters


def other_weights(me: Member, how: str, group: dist.ProcessGroup, **build: object) -> None:
    model = shard(Weights(**build), how, group)  # type: ignore[arg-type]
    model.used = ("first",) if me.rank == 0 else ("second",)
    with refused(
        "do not agree", "rank 0 waits.*gradients of 'first' only", "gradients of 'second' only", "0 *"
    ):
        model(x_of(me.rank)).backward()


def other_weights_of_other_shapes(me: Member, how: str, group: dist.ProcessGroup) -> None:
    other_weights(me, how, group, shapes="different")


def other_large_weights(me: Member, how: str, group: dist.ProcessGroup) -> None:
    other_weights(me, how, group, large=True)


def unused_on_one_rank(me: Member, how: str, group: dist.ProcessGroup) -> None:
    model = shard(Weights(), how, group)
    if me.rank == me.world - 1:
        model.used = ("first", "third")
    with refused("do not agree", "without a gradient of 'second'"):
        model(x_of(me.rank)).backward()


def frozen_on_one_rank(me: Member, how: str, group: dist.ProcessGroup) -> None:
    model = shard(Weights(), how, group)
    if me.rank == me.world - 1:
        model.second.requires_grad_(False)
    with refused("do not agree", "without a gradient of 'second'", "frozen on all"):
        model(x_of(me.rank)).backward()


def left_over_of_no_sync(me: Member, how: str, group: dist.ProcessGroup) -> None:
    model = shard(Weights(), how, group)
    with osdp.no_sync(model):
        model.used = ("first",) if me.rank == 0 else ("second",)
        model(x_of(me.rank)).backward()
    model.used = ("third",)
    with refused("do not agree|different modules", "'first'", "'second'"):
        model(x_of(me.rank)).backward()


# --- how many passes


def more_micro_batches(me: Member, how: str, group: dist.ProcessGroup) -> None:
    """The last rank accumulates three micro-batches, the others step after two; the fourth pass would be even again."""
    model = shard(Layers(1), how, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):  # past the steps whose options are compared
        model(x_of(me.rank)).backward()
        optimizer.step(), optimizer.zero_grad()
    with refused("same number of micro-batches", f"rank {me.world - 1} [^;]*in a further micro-batch"):
        for passes in (3, 1) if me.rank == me.world - 1 else (2, 2):
            for _ in range(passes):
                model(x_of(me.rank)).backward()
            optimizer.step(), optimizer.zero_grad(set_to_none=how == "FULL_SHARD")


def unsharded_on_one_rank(me: Member, how: str, group: dist.ProcessGroup) -> None:
    model = Layers(1)
    for part in (model.layers[0], model.layers[2], model):
        osdp.fully_shard(part, process_group=group)
    model(x_of(me.rank)).backward()
    with refused("different modules", "rank 0 waits at #[^;]* 'layers.2 all-gather'"):
        if me.rank == 0:
            model.layers[2].unshard()
        model(x_of(me.rank)).backward()


WEIGHTS: list[Case] = [other_weights, other_weights_of_other_shapes, other_large_weights, unused_on_one_rank]
ALL = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
SHORT: list[Case] = [a_b_and_b_a, other_weights, other_large_weights]
CALLS: list[Case] = [clipped, clipped_otherwise, state_dicts, summoned, summoned_with_gradients_here]
CALLS += [unsharded_on_one_rank]

RUNS: dict[str, tuple[int, str | None, list[tuple[Case, str]]]] = {
    "models": (
        2,
        None,
        [*((one_here_the_other_there, how) for how in (*ALL, "slices")), (a_b_and_b_a, "slices")],
    ),
    "weights": (2, None, [(case, how) for case in WEIGHTS for how in ALL]),
    "left over": (2, None, [(c, h) for c in (left_over_of_no_sync, frozen_on_one_rank) for h in ALL]),
    "calls": (2, None, [(case, "FULL_SHARD") for case in CALLS]),
    "3 ranks": (3, None, [(case, "SHARD_GRAD_OP") for case in SHORT]),
    "lines": (4, None, [(c, "HYBRID_SHARD") for c in (*SHORT, unused_on_one_rank, more_micro_batches)]),
    "passes": (2, None, [(more_micro_batches, how) for how in (*ALL, "slices")]),
    "sockets": (2, "sockets", [(case, how) for case in SHORT for how in ("NO_SHARD", "FULL_SHARD")]),
    "4 ranks, sockets": (4, "sockets", [(case, "FULL_SHARD") for case in (*SHORT, clipped)]),
    "gloo": (4, "gloo", [(case, how) for case in SHORT for how in ("NO_SHARD", "FULL_SHARD")]),
}


@pytest.mark.outcome("two models of one class, called in a different order on some ranks", osdp.OrderError)
@pytest.mark.outcome("a parameter that only some ranks use in a step", osdp.OrderError)
@pytest.mark.outcome("a parameter frozen after `fully_shard` on some ranks only", osdp.OrderError)
@pytest.mark.outcome("a different number of micro-batches before a step on some ranks", osdp.OrderError)
@pytest.mark.outcome("`clip_grad_norm_` or `state_dict` of a different model on some ranks", osdp.OrderError)
@pytest.mark.parametrize("run", RUNS)
def test_what_ranks_do_differently(run):
    world, link, cases = RUNS[run]
    for ending in run_doomed(each, cases, link, world=world, timeout_s=60.0):
        assert ending.error is None and ending.signal is None, ending.output or ending


# --- what may differ


def accumulated_over_other_weights(me: Member) -> None:
    """What no_sync kept may be of other parameters on each rank: the next backward averages it with what all have."""
    for how in ALL:
        with naming(how):
            model, whole = shard(Weights(), how, me.group), Weights()
            for rank in range(me.world):
                for side in (whole, model) if rank == me.rank else (whole,):
                    with osdp.no_sync(model):
                        side.used = ("first",) if rank == 0 else ("second",)
                        (side(x_of(rank)) / (me.world if side is whole else 1)).backward()
                    side.used = ("first", "second", "third")
                    (side(x_of(rank + 10)) / me.world).backward() if side is whole else None
            model(x_of(me.rank + 10)).backward()
            with osdp.summon_full_params(model, with_grads=True):
                for name, parameter in model.named_parameters():
                    close(parameter.grad, dict(whole.named_parameters())[name].grad, 1e-12, name)


@pytest.mark.outcome("under `no_sync`, ranks that use different parameters", "equal")
def test_no_sync_over_other_parameters(ranks):
    ranks(accumulated_over_other_weights, world=2)


def passes_of_all_kinds(me: Member) -> None:
    """Gradients that are dropped, zeroed or kept; under NO_SHARD also passes that exchange nothing, of any number."""
    for how in ALL:
        with naming(how):
            model, whole = shard(Layers(1), how, me.group), Layers(1)
            optimizers = [torch.optim.SGD(side.parameters(), lr=0.01) for side in (model, whole)]
            for passes, drop in (
                (1, "none"),
                (3, "zero"),
                (2, "keep"),
                (1, "keep"),
                (2, "none"),
                (2, "zero"),
            ):
                alone = range(me.world if how == "NO_SHARD" else 0)  # rank r: r passes under no_sync
                for rank in range(me.world):
                    for k in range(rank in alone and rank):
                        (whole(x_of(k)) / me.world).backward()
                        if rank == me.rank:
                            with torch.no_grad():
                                model(x_of(k))
                            with osdp.no_sync(model):
                                model(x_of(k)).backward()
                    for k in range(passes):
                        (whole(x_of(rank + 10 * k)) / me.world).backward()
                for k in range(passes):
                    model(x_of(me.rank + 10 * k)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    if drop != "keep":
                        optimizer.zero_grad(set_to_none=drop == "none")
            for name, full in model.state_dict().items():
                close(full, whole.state_dict()[name], 1e-12, name)


@pytest.mark.outcome("gradients dropped, zeroed or kept over several backwards and steps", "equal")
@pytest.mark.outcome("NO_SHARD: a different number of `no_sync` passes on each rank", "equal")
def test_passes_of_all_kinds(ranks):
    ranks(passes_of_all_kinds, world=3)


def strided_on_one_rank(me: Member) -> None:
    """A large gradient that cannot be averaged where it lies travels in its own place all the same."""
    model = shard(Weights(large=True), "NO_SHARD", me.group)
    if me.rank == me.world - 1:
        model.first.grad = torch.zeros(model.first.shape[::-1], dtype=torch.float64).t()
        assert not model.first.grad.is_contiguous()
    model(x_of(me.rank)).backward()
    whole = Weights(large=True)
    (sum(whole(x_of(rank)) for rank in range(me.world)) / me.world).backward()
    for name, parameter in model.named_parameters():
        close(parameter.grad, dict(whole.named_parameters())[name].grad, 1e-12, name)


@pytest.mark.outcome("a gradient with different strides on one rank", "equal")
def test_a_strided_gradient_on_one_rank(ranks):
    ranks(strided_on_one_rank, world=2)


def zeros_for_what_is_idle(me: Member) -> None:
    for how in ALL:
        with naming(how):
            model, whole = shard(Weights(), how, me.group), Weights()
            model.used, model.idle = (("first",), ("second",)) if me.rank == 0 else (("second",), ("first",))
            model(x_of(me.rank)).backward()
            for rank in range(me.world):
                whole.used = ("first",) if rank == 0 else ("second",)
                (whole(x_of(rank)) / me.world).backward()
            with osdp.summon_full_params(model, with_grads=True):
                for name in ("first", "second"):
                    close(getattr(model, name).grad, getattr(whole, name).grad, 1e-12, name)
                assert model.third.grad is None


@pytest.mark.outcome("`loss + 0 * parameter.sum()` in forward on ranks that do not use it", "equal")
def test_the_advice_for_idle_parameters(ranks):
    ranks(zeros_for_what_is_idle, world=2)
