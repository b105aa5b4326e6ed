"""A model under torch's tensor parallelism and OSDP, trained beside the same model in one process."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from harness import Member
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import osdp
from osdp.ranks.process_groups import group_of_ranks
from support.pair import SEED, adamw, close

WIDTH, INNER, WORDS, LENGTH = 8, 16, 24, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tied = tied
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def net(dtype: torch.dtype = torch.float64, tied: bool = False, seed: int = SEED) -> Net:
    torch.manual_seed(seed)
    return Net(tied).to(dtype)


def parallelized(model: Net, mesh: DeviceMesh, sequence: bool = True) -> Net:
    """`sequence`: between the products, activations are divided along the sequence; norms see a part."""
    between: Any = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    for i in range(len(model.blocks)):
        plan[f"blocks.{i}.up"] = ColwiseParallel(input_layouts=between)
        plan[f"blocks.{i}.down"] = RowwiseParallel(output_layouts=between)
        if sequence:
            plan[f"blocks.{i}.norm"] = SequenceParallel()
            plan[f"blocks.{i}"] = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),), use_local_output=True
            )
    if sequence:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    if model.tied:
        model.head.weight = model.embed.weight
    return model


_meshes: dict[Any, DeviceMesh] = {}


def mesh_of(me: Member, *sizes: int, names: tuple[str, ...] = ("dp", "tp")) -> DeviceMesh:
    """A mesh of the case's ranks, made once in a process, since each needs process groups."""
    ranks = torch.tensor(dist.get_process_group_ranks(me.group)).view(sizes)
    key = (tuple(ranks.flatten().tolist()), sizes, names)
    if key not in _meshes:
        groups = []
        for axis in range(len(sizes)):
            lines = ranks.movedim(axis, -1).reshape(-1, sizes[axis]).tolist()
            groups.append(group_of_ranks(next(line for line in lines if dist.get_rank() in line)))
        _meshes[key] = DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=names)
    return _meshes[key]


def tokens(step: int, samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(0, WORDS, (samples, LENGTH), generator=generator)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TensorPair:
    """`whole` in one process, which sees every sample; `sharded` over tp and dp, which sees its part of them."""

    def __init__(self, sharded: nn.Module, whole: nn.Module, rank: int, parts: int) -> None:
        """`rank` of the `parts` into which data parallelism divides a batch."""
        self.sharded, self.whole, self.rank, self.parts = sharded, whole, rank, parts
        self.both = [(m, adamw(m.parameters())) for m in (whole, sharded)]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.both[1][1]

    def backward(self, step: int, divide: int = 1) -> None:
        batch, targets = tokens(step, 2 * self.parts), tokens(step + 50, 2 * self.parts)
        (loss(self.whole(batch), targets) / divide).backward()
        mine, my_targets = (t.chunk(self.parts)[self.rank] for t in (batch, targets))
        (loss(self.sharded(mine), my_targets) / divide).backward()

    def train(self, steps: int = 3, micros: int = 1, no_sync: bool = False) -> None:
        for step in range(steps):
            for micro in range(micros):
                kept = no_sync and micro < micros - 1
                with osdp.no_sync(self.sharded) if kept else contextlib.nullcontext():
                    self.backward(10 * step + micro, micros)
            self.update()

    def update(self) -> None:
        for _, optimizer in self.both:
            optimizer.step()
            optimizer.zero_grad()

    def same_parameters(self, tolerance: float = 1e-9) -> None:
        got, wanted = self.sharded.state_dict(), self.whole.state_dict()
        assert list(got) == list(wanted), list(got)
        for name, value in wanted.items():
            found = got[name]
            close(found.full_tensor() if isinstance(found, DTensor) else found, value, tolerance, name)
