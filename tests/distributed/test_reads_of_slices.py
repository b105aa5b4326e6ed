"""A weight that is computed in slices is never there as a whole: in a step it has its full shape, and a read of its values
is refused, where this rank's rows would be silently another number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.pair import SEED, close, naming
from torch import Tensor, nn

import osdp

SLICES = (("out", 4), ("out", 2), ("in", 4), ("in", 1), ("in", 0))  # the split, and how many of 4 are sharded


class Net(nn.Module):
    """Its `read` is called at a place of the step."""

    PLACES = ("in forward", "before the call", "after the call", "although it raised", "in backward")

    def __init__(self, place: str, read: Callable[[Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.place, self.read, self.off = place, read, False
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 4)

    def hook(self) -> None:
        """Afterwards: a module that has hooks when it is described is not computed in slices."""
        register = {
            "before the call": self.inner.register_forward_pre_hook,
            "after the call": self.inner.register_forward_hook,
            "although it raised": lambda f: self.inner.register_forward_hook(f, always_call=True),
            "in backward": self.inner.register_full_backward_hook,
        }.get(self.place)
        if register is not None:
            register(lambda *_: self.look())

    def look(self) -> None:
        if not self.off:
            self.read(self.inner.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "in forward":
            self.look()
        return self.head(torch.tanh(self.inner(x)))


def sharded(me: Member, net: Net, split: str, slices: int, precision: str = "fp32") -> nn.Module:
    net.off = True
    description = describe_once(net, torch.ones(2, 4), precision=precision)
    net.off = False
    choice = osdp.Choice("FULL_SHARD", granularity=4, sharded_slices=slices, split=split)
    plan = osdp.Plan.uniform(description, "FULL_SHARD").replace({"inner": choice})
    osdp.fully_shard(net, dataclasses.replace(plan, precision=precision), me.group)
    net.hook()
    return net


def refused(me: Member) -> None:
    for number, place in enumerate(Net.PLACES):
        for split, slices in SLICES if place == "in forward" else (SLICES[number],):
            with naming(f"{place}, {slices} of 4 along {split} sharded"):
                model = sharded(me, Net(place, lambda w: w.square().sum()), split, slices)
                with pytest.raises(osdp.ShardingError, match=r"'inner\.weight' was read .* in slices"):
                    model(torch.ones(2, 4)).sum().backward()
                model.off = True
                model(torch.ones(2, 4)).sum().backward()
                assert model.inner.weight.grad.shape == model.inner.weight.shape


@pytest.mark.outcome(
    "a weight in slices that is read in a step: in a parent's forward, in a hook", osdp.ShardingError
)
def test_its_values_are_refused(ranks):
    ranks(refused, world=2)


def hooked(me: Member) -> None:
    for layer, shape, split in (
        (nn.Linear(4, 8), (2, 4), "out"),
        (nn.Linear(4, 8), (2, 4), "in"),
        (nn.Conv1d(4, 8, 3), (2, 4, 5), "out"),
        (nn.Embedding(8, 4), (2, 3), "in"),
    ):
        with naming(f"{layer} along {split}"):
            x = torch.ones(shape, dtype=torch.long if type(layer) is nn.Embedding else None)
            model = nn.Sequential(layer)
            choice = osdp.Choice("FULL_SHARD", granularity=2, split=split)
            plan = osdp.Plan.uniform(describe_once(model, x)).replace({"0": choice})
            osdp.fully_shard(model, plan, me.group)
            handle = layer.weight.register_hook(lambda gradient: gradient * 2)
            with pytest.raises(osdp.ShardingError, match=r"in slices .* has a hook on its gradient"):
                model(x)
            with torch.no_grad():
                model(x)
            handle.remove()
            model(x).sum().backward()


@pytest.mark.outcome("`register_hook` on a weight in slices, after `fully_shard`", osdp.ShardingError)
def test_hooks_of_its_gradient_are_refused(ranks):
    ranks(hooked, world=2)


def told(me: Member) -> None:
    seen: list[tuple[torch.Size, torch.dtype]] = []
    for precision in ("fp32", "bf16"):
        for split, slices in SLICES if precision == "fp32" else SLICES[1:4:2]:
            model = sharded(
                me, Net("after the call", lambda w: seen.append((w.shape, w.dtype))), split, slices, precision
            )
            model(torch.ones(2, 4)).sum().backward()
            dtype = torch.float32 if precision == "fp32" else torch.bfloat16
            assert seen.pop() == (torch.Size((8, 4)), dtype), (precision, split, slices)
            assert model.inner.weight.grad.dtype == torch.float32


def test_its_shape_and_dtype_are_told(ranks):
    ranks(told, world=2)


def alone(me: Member) -> None:
    """On one rank, and where every rank has it as it is, it is read as in one process."""
    values: list[Tensor] = []
    for split, slices, readable in (("out", 0, True), ("out", 4, me.world == 1), ("in", 4, False)):
        net = Net("after the call", lambda w: values.append(w.detach().square().sum()))
        wanted = net.inner.weight.detach().square().sum()
        model = sharded(me, net, split, slices)
        if readable:
            with torch.no_grad():
                model(torch.ones(2, 4))
            close(values.pop(), wanted, 1e-6, f"{slices} along {split}")
        else:
            with pytest.raises(osdp.ShardingError, match="in slices"):
                model(torch.ones(2, 4))


@pytest.mark.parametrize("world", [1, 2])
def test_where_it_is_whole_it_is_read(ranks, world):
    ranks(alone, world=world)
