"""What scripts for FairScale and torch's FSDP rely on, under one wrap, wraps of parts and fully_shard by blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from harness import Member
from support.pair import SEED, adamw, close, naming
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import osdp

FSDP = osdp.FullyShardedDataParallel
WIDTH = 6


@dataclass
class Batch:
    x: Tensor
    note: str


class Block(nn.Module):
    """Takes what scripts pass between modules, and gives it back."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)

    def forward(self, given, scale=None, *, names=()):
        x = {dict: lambda: given["x"], Batch: lambda: given.x, list: lambda: given[0]}.get(
            type(given), lambda: given
        )()
        x = x + self.down(torch.tanh(self.up(x)))
        assert names in ((), ("kept",))
        return x if scale is None else x * scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.idle = nn.Linear(WIDTH, WIDTH)  # no forward calls it

    def forward(self, given, lengths=None):
        x = self.blocks[0](given, names=("kept",))
        x = self.blocks[1]({"x": x, "more": None})
        x = self.blocks[2](Batch(x, "kept"), scale=torch.tensor(0.5))
        if isinstance(lengths, PackedSequence):
            x = x + pad_packed_sequence(self.lstm(lengths)[0], batch_first=True)[0].mean(1)
        return x


def whole_net(me: Member) -> nn.Module:
    return FSDP(Net(), me.group)


def parts(me: Member) -> nn.Module:
    model = Net()
    for i, block in enumerate(model.blocks):
        block.up = FSDP(block.up, me.group)
        model.blocks[i] = FSDP(block, me.group)
    model.idle = FSDP(model.idle, me.group)
    return FSDP(model, me.group)


def by_blocks(me: Member) -> nn.Module:
    model, mesh = Net(), DeviceMesh.from_group(me.group, "cpu")
    for block in (*model.blocks, model.idle):
        osdp.fully_shard(block, mesh=mesh)
    return osdp.fully_shard(model, mesh=mesh)


STYLES: dict[str, Callable[[Member], nn.Module]] = {
    "one wrap": whole_net,
    "parts": parts,
    "blocks": by_blocks,
}


def compare(me: Member, plain: nn.Module, model: nn.Module, what: str) -> None:
    """Gradients, where both have any."""
    names = {name: p for name, p in plain.named_parameters()}
    with FSDP.summon_full_params(model, with_grads=True, writeback=False):
        for name, p in model.named_parameters():
            assert (p.grad is None) == (names[name].grad is None), (what, name)
            if p.grad is not None:
                close(p.grad, me.mean(names[name].grad), 1e-5, f"{what}: {name}")
    plain.zero_grad()
    model.zero_grad()


def inputs(me: Member, style: str) -> None:
    plain, model = Net(), STYLES[style](me)
    torch.manual_seed(me.rank)
    x, steps = torch.randn(4, WIDTH), torch.randn(4, 3, WIDTH)
    packed = pack_padded_sequence(steps, torch.tensor([3, 3, 2, 1]), batch_first=True)
    for what, args, kwargs in (
        ("a list", ([x, "text"],), {}),
        ("a dict", ({"x": x, "none": None},), {}),
        ("a keyword", (), {"given": x}),
        ("a dataclass", (Batch(x, "note"),), {}),
        ("a packed sequence", (x, packed), {}),
    ):
        with naming(what):
            losses = [each(*args, **kwargs).square().mean() for each in (plain, model)]
            for loss in losses:
                loss.backward()
            close(losses[1], losses[0], 1e-6, "loss")
            compare(me, plain, model, what)


@pytest.mark.parametrize("style", STYLES)
def test_what_a_forward_may_be_given(ranks, style):
    ranks(inputs, style, world=2)


def orders(me: Member, style: str) -> None:
    """Passes in orders of a script's own, before the first step and after it."""
    plain, model = Net(), STYLES[style](me)
    torch.manual_seed(me.rank)
    a, b = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    for turn in range(2):
        with torch.no_grad():
            close(model(a), plain(a), 1e-6, "without gradients")
        for each in (plain, model):
            each.eval()
            assert not each(a).isnan().any()
            each.train()
            first, second = each(a).square().mean(), each(b).square().mean()
            first.backward()
            second.backward()
        compare(me, plain, model, f"forward, forward, backward, backward, {turn}")
        for each in (plain, model):
            (each(a) * each(each(b))).mean().backward()
        compare(me, plain, model, f"forwards in one graph, {turn}")


@pytest.mark.parametrize("style", STYLES)
def test_forwards_and_backwards_in_a_scripts_order(ranks, style):
    ranks(orders, style, world=2)


def freezing(me: Member, style: str, how: str) -> None:
    """Frozen after the wrap: by requires_grad, or by dropping the gradient before the step."""
    plain, model = Net(), STYLES[style](me)
    both = [(m, adamw(m.parameters())) for m in (plain, model)]
    torch.manual_seed(3)
    for frozen in (True, False, True):
        x = torch.randn(2 * me.world, WIDTH)
        for (each, optimizer), data in zip(both, (x, me.part(x)), strict=True):
            if how == "requires_grad":
                each.blocks[1].requires_grad_(not frozen)
            each(data).square().mean().backward()
            for p in each.blocks[1].parameters() if frozen else ():
                p.grad = None
            optimizer.step()
            optimizer.zero_grad()
    with FSDP.summon_full_params(model):
        for (name, wanted), p in zip(plain.named_parameters(), model.parameters(), strict=True):
            close(p, wanted, 1e-5, name)


@pytest.mark.parametrize("how", ["requires_grad", "no gradient"])
@pytest.mark.parametrize("style", STYLES)
def test_freezing_after_the_wrap(ranks, style, how):
    ranks(freezing, style, how, world=2)


def hooks(me: Member, style: str) -> None:
    plain, model = Net(), STYLES[style](me)
    counts = []
    for each in (plain, model):
        count: Counter[str] = Counter()

        def counted(what: str, count: Counter[str] = count) -> Callable[..., None]:
            return lambda *_: count.update([what])

        for i, block in enumerate(each.blocks):
            block.register_forward_pre_hook(counted(f"{i} before"))
            block.register_forward_hook(counted(f"{i} after"))
            block.register_full_backward_hook(counted(f"{i} backward"))
            block.down.weight.register_hook(counted(f"{i} gradient"))
            block.down.weight.register_post_accumulate_grad_hook(counted(f"{i} accumulated"))
        for step in range(2):
            torch.manual_seed(step + me.rank)
            x = torch.randn(4, WIDTH, requires_grad=True)
            each(x).square().mean().backward()
        counts.append(count)
    assert counts[0] == counts[1] and set(counts[0].values()) == {2}, counts
    compare(me, plain, model, "with hooks")


@pytest.mark.parametrize("style", STYLES)
def test_hooks_of_a_script_are_called_once_a_pass(ranks, style):
    ranks(hooks, style, world=2)
