"""A mixture of experts whose experts are sharded over groups of ranks, and one process that trains the same.

Each group of ranks holds other experts; the rest of the model is shared by all ranks. A rank's tokens go to its group's
experts. The one process holds a copy of the model per group, which share all but the experts, and computes every rank's
loss; the gradient of an expert is then scaled to the mean over its group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import Member
from torch import Tensor, nn
from torch import distributed as dist

import osdp
from osdp.ranks.process_groups import group_of_ranks
from support.pair import SEED, adamw, close

WIDTH = 6


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x))) * self.scale


class Layer(nn.Module):
    """Its expert is called twice, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.expert: nn.Module = Expert()
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        h = torch.tanh(self.before(x))
        if not skip:
            h = h + torch.cat([self.expert(half) for half in h.chunk(2)])
        return x + self.after(h)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        x = self.layers[0](self.table(x), skip)
        return self.head(self.layers[1](x))


FSDP = osdp.FullyShardedDataParallel
Wrap = Callable[[Mixture, dist.ProcessGroup], nn.Module]  # the model and the group of its experts


def by_hand(me: Member, **whole: Any) -> Wrap:
    """FSDP around each expert, each layer and the whole."""

    def wrap(model: Mixture, group: dist.ProcessGroup) -> nn.Module:
        for i, layer in enumerate(model.layers):
            layer.expert = FSDP(layer.expert, process_group=group)
            model.layers[i] = FSDP(layer, me.group)
        return FSDP(model, me.group, **whole)

    return wrap


def mixture(seed: int, expert_seed: int) -> Mixture:
    torch.manual_seed(seed)
    model = Mixture()
    torch.manual_seed(expert_seed)
    for layer in model.layers:
        layer.expert = Expert()
    return model.double()


def groups_of(world: int) -> list[list[int]]:
    """Two groups of experts: {0}, {1}; or {0, 2}, {1, 3}."""
    return [list(range(g, world, 2)) for g in range(2)]


def own_group(me: Member) -> dist.ProcessGroup:
    ranks = dist.get_process_group_ranks(me.group)
    mine = next(group for group in groups_of(me.world) if me.rank in group)
    return group_of_ranks([ranks[r] for r in mine])


class OneProcess:
    """Every group's model in one process."""

    def __init__(self, me: Member) -> None:
        self.me, self.groups = me, groups_of(me.world)
        self.copies = [mixture(SEED, 100 + g) for g in range(len(self.groups))]
        first = self.copies[0]
        for copy in self.copies[1:]:
            copy.table, copy.head = first.table, first.head
            for mine, shared in zip(copy.layers, first.layers, strict=True):
                mine.before, mine.after = shared.before, shared.after
        self.group = next(g for g, ranks in enumerate(self.groups) if me.rank in ranks)
        self.mine = self.copies[self.group]  # what this rank's model computes

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(dict.fromkeys(p for copy in self.copies for p in copy.parameters()))

    def backward(self, x: Tensor, skips: tuple[int, ...] = (), divide: int = 1) -> Tensor:
        """Returns this rank's loss. `x`: all ranks' samples. `skips`: the groups that skip an expert."""
        losses = [
            self.copies[g](part, skip=g in skips).square().mean()
            for rank, part in enumerate(x.chunk(self.me.world))
            for g, ranks in enumerate(self.groups)
            if rank in ranks
        ]
        gradients = [None if p.grad is None else p.grad.clone() for p in self.parameters()]
        (sum(losses) / self.me.world / divide).backward()
        for g, copy in enumerate(self.copies):
            for layer in copy.layers:
                for p in layer.expert.parameters():
                    known = next(b for q, b in zip(self.parameters(), gradients, strict=True) if q is p)
                    if p.grad is not None:
                        new = (p.grad if known is None else p.grad - known) * self.me.world
                        new = new / len(self.groups[g])
                        p.grad = new if known is None else known + new
        return losses[self.me.rank].detach()


def new_mixture(me: Member, wrap: Wrap, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Each group's first rank has the values of its experts, and rank 0 those of the rest."""
    group = own_group(me) if group is None else group
    g = next(g for g, ranks in enumerate(groups_of(me.world)) if me.rank in ranks)
    return wrap(mixture(SEED + me.rank, 100 + g + 1000 * (me.rank - g)), group)


def same_gradients(one: OneProcess, model: nn.Module, tolerance: float = 1e-9) -> None:
    wanted = dict(one.mine.named_parameters())
    with osdp.summon_full_params(model, with_grads=True, writeback=False):
        named = {name.replace(".module.", "."): p for name, p in model.named_parameters()}  # of Recomputed
        assert list(named) == list(wanted)
        for name, parameter in named.items():
            full = wanted[name].grad
            assert (parameter.grad is None) == (full is None), name
            if full is not None:
                close(parameter.grad, full, tolerance, f"gradient of {name}")


def same_state(one: OneProcess, model: nn.Module, tolerance: float = 1e-9) -> None:
    state, wanted = model.state_dict(), one.mine.state_dict()
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        close(state[name], value, tolerance, name)


def train(me: Member, one: OneProcess, model: nn.Module, clip: Callable[..., Tensor] | None = None) -> None:
    """Three steps: one before the first group has called its first expert, one of two micro-batches under no_sync."""
    optimizers = [adamw(one.parameters()), adamw(model.parameters())]
    for step in range(3):
        micros = 2 if step == 2 else 1
        skips = (0,) if step == 0 else ()
        for micro in range(micros):
            torch.manual_seed(10 * step + micro)
            x = torch.randn(4 * me.world, WIDTH, dtype=torch.float64)
            wanted = one.backward(x, skips, micros)
            loss = model(me.part(x), skip=one.group in skips).square().mean()
            close(loss, wanted, 1e-9, f"loss of step {step}")
            if micro + 1 < micros:
                with osdp.no_sync(model):
                    (loss / micros).backward()
            else:
                (loss / micros).backward()
        same_gradients(one, model)
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(list(one.parameters()), 1e-2)
            close(clip(model, 1e-2).double(), norm, 1e-9, "norm")
            same_gradients(one, model)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    same_state(one, model)


def step(me: Member, one: OneProcess, model: nn.Module, seed: int = 5) -> None:
    torch.manual_seed(seed)
    x = torch.randn(4 * me.world, WIDTH, dtype=torch.float64)
    wanted = one.backward(x)
    loss = model(me.part(x)).square().mean()
    close(loss, wanted, 1e-9, "loss")
    loss.backward()
    same_gradients(one, model)
