"""Layers whose parameters are awkward to shard: recurrent, attention, tiny, zero-dimensional, odd shapes."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import plans
from support.pair import SEED, Pair, close, naming, train_all
from support.workload import Workload, vectors
from support.worlds import worlds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import osdp


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    """The forward of `attention.out_proj` never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return self.head((x + self.attention(h, h, h, need_weights=False)[0]).mean(1))


class Scalars(nn.Module):
    """A zero-dimensional parameter beside others, in a module of its own and in the root."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_scale = nn.Parameter(torch.tensor(0.3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.log_scale.exp()

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.scale = Scalars.Scale()
        self.shift = nn.Parameter(torch.tensor(0.1))
        self.gain = nn.Parameter(torch.ones(5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.scale(self.first(x)) * self.gain + self.shift))


class Shapes(nn.Module):
    """Leading dimensions of 1, a single element, an empty parameter, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 1, 7))
        self.cls = nn.Parameter(torch.randn(1, 5, 7))
        self.single = nn.Parameter(torch.randn(1, 1, 1))
        self.empty = nn.Parameter(torch.randn(0, 7))
        self.turned = nn.Parameter(torch.randn(7, 3).T)
        self.last = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, None] + self.position + self.cls.mean(1, keepdim=True) * self.single
        return self.last(torch.tanh(h.squeeze(1) @ self.turned.T)) + self.empty.sum()


def sequences(width_in: int, width_out: int):
    return lambda samples: ((torch.randn(samples, 4, width_in),), torch.randn(samples, width_out))


def turned() -> nn.Module:
    """Weights are [in, out]: slices of rows are along the inputs."""
    from transformers.pytorch_utils import Conv1D

    return nn.Sequential(Conv1D(7, 5), nn.Tanh(), Conv1D(6, 7), nn.Tanh(), nn.Linear(6, 3))


WORKLOADS = {
    "LSTM": Workload(Recurrent, sequences(5, 3)),
    "MultiheadAttention": Workload(Attention, sequences(6, 3)),
    "zero-dimensional": Workload(Scalars, vectors(4, 3)),
    "shapes": Workload(Shapes, vectors(7, 3)),
    "Linear(3, 3)": Workload(lambda: nn.Linear(3, 3), vectors(3, 3)),
    "fewer elements than ranks": Workload(
        lambda: nn.Sequential(nn.Linear(1, 2), nn.PReLU(), nn.Linear(2, 1)), vectors(1, 1)
    ),
    "Conv1D": Workload(turned, lambda samples: ((torch.randn(samples, 4, 5),), torch.randn(samples, 4, 3))),
    "embedding with padding": Workload(
        lambda: nn.Sequential(nn.Embedding(9, 5, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)),
        lambda samples: ((torch.randint(9, (samples, 4)),), torch.randn(samples, 3)),
    ),
}


def train(me: Member, name: str) -> None:
    train_all(me, WORKLOADS[name], plans.corners, steps=2)


ON_FOUR = ("LSTM", "shapes", "Conv1D", "fewer elements than ranks")  # where some rank has no row of something


@pytest.mark.parametrize(("name", "world"), [(n, 4 if n in ON_FOUR else 2) for n in WORKLOADS])
def test_training_is_that_of_one_process(ranks, name, world):
    ranks(train, name, world=world)


def shapes_stay(me: Member) -> None:
    """Outside a step every parameter is its rows by torch.chunk's rule, in as many dimensions as before."""
    model = WORKLOADS["shapes"].model(SEED, torch.float64)
    full = {name: p.detach().clone() for name, p in model.named_parameters()}
    identities = {name: id(p) for name, p in model.named_parameters()}
    described = osdp.describe(model, torch.randn(2, 7, dtype=torch.float64))
    osdp.fully_shard(model, osdp.Plan.uniform(described, "FULL_SHARD"), process_group=me.group)
    for name, parameter in model.named_parameters():
        assert id(parameter) == identities[name], f"{name} is another object"
        whole = full[name]
        along = next((d for d, n in enumerate(whole.shape) if n > 1), 0)
        chunks = whole.chunk(me.world, along)
        wanted = chunks[me.rank] if me.rank < len(chunks) else whole.narrow(along, 0, 0)
        if whole.numel() > 1:
            assert torch.equal(parameter, wanted), f"{name}: {tuple(parameter.shape)} on rank {me.rank}"


@pytest.mark.parametrize("world", [1, 3, 4])
def test_a_sharded_parameter_is_its_rows_by_the_rule_of_chunk(ranks, world):
    ranks(shapes_stay, world=world)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.narrow = nn.Conv2d(5, 3, 1, bias=False)
        self.norm1 = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        return self.norm1(self.narrow(h).mean((2, 3)))


def batch_norm(me: Member) -> None:
    """Against DistributedDataParallel: statistics are of this rank's samples, so one process differs."""
    workload = Workload(Normalised, lambda s: ((torch.randn(s, 2, 4, 4),), torch.randn(s, 3)))
    for mode in plans.MODES:
        other = DistributedDataParallel(
            workload.model(SEED, torch.float64), process_group=me.group, broadcast_buffers=False
        )
        model = workload.model(SEED, torch.float64)
        described = osdp.describe(model, *workload.data(0, 4, torch.float64)[0])
        osdp.fully_shard(model, osdp.Plan.uniform(described, mode), process_group=me.group)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (other, model)]
        for step in range(5):
            (x,), target = workload.data(step, 4 * me.world, torch.float64)
            for m, optimizer in zip((other, model), optimizers, strict=True):
                workload.loss(m(me.part(x)), me.part(target)).backward()
                optimizer.step()
                optimizer.zero_grad()
        wanted = other.module.state_dict()
        for name, value in model.state_dict().items():
            close(value, wanted[name], 1e-9, f"{mode}: {name}")
        model.eval(), other.eval()
        close(model(x), other(x), 1e-9, f"{mode}: evaluation")


@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_batch_norm_keeps_local_statistics_as_distributed_data_parallel(ranks, world):
    ranks(batch_norm, world=world)


class Convolutions(nn.Module):
    """One is the first layer, two share a weight, one is frozen, one has groups, one is in a block; images lie channels
    last in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3, stride=2, padding=1)
        self.one = nn.Conv2d(5, 5, 3, padding="same", padding_mode="circular")
        self.other = nn.Conv2d(5, 5, 3, padding=2, dilation=2, bias=False)
        self.other.weight = self.one.weight
        self.frozen = nn.Conv2d(5, 5, 1)
        self.groups = nn.Conv2d(5, 5, 3, padding=1, groups=5)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv1d(5, 7, 3, padding=1), nn.Tanh()) for _ in range(1))
        self.frozen.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x)).contiguous(memory_format=torch.channels_last)
        h = torch.tanh(self.groups(self.other(self.frozen(torch.tanh(self.one(h))))))
        for block in self.blocks:
            h = block(h.flatten(2))
        return h.mean(2)


def convolutions(me: Member, dtype: torch.dtype, tolerance: float | None) -> None:
    def sliced(description):
        shapes = {o.name: (o.split_shape, o.kernel_places) for o in description.operators if o.parameters}
        assert shapes["first"] == ((5, 18), 9) and shapes["groups"] == (None, 0)
        assert shapes["blocks.0.0"] == ((7, 15), 3) and shapes["frozen"] == ((5, 5), 1)
        found = plans.in_slices(description, "out", me.world)
        assert sum(c.granularity > 1 for c in found.choices.values()) == 4
        mixture = plans.mixture(description, me.world)
        return {
            "slices": found,
            "again": plans.recomputed(found, "hold"),
            "mixture": plans.recomputed(mixture, "regather"),
        }

    train_all(
        me, Workload(Convolutions, lambda s: ((torch.randn(s, 2, 8, 6),), torch.randn(s, 7))), sliced, dtype=dtype,
        tolerance=tolerance, steps=2, micros=2, no_sync=me.world == 3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("world", "dtype", "tolerance"),
    [(2, torch.float64, None), (3, torch.float64, None), (2, torch.bfloat16, 0.05)],
)
def test_convolutions_in_slices(ranks, world, dtype, tolerance):
    ranks(convolutions, dtype, tolerance, world=world)


def transformer_layer(me: Member) -> None:
    """In evaluation it may take a fused path that reads its children's parameters without calling them."""
    workload = Workload(
        lambda: nn.TransformerEncoderLayer(6, 2, 10, dropout=0.0, batch_first=True),
        lambda s: ((torch.randn(s, 4, 6),), torch.randn(s, 4, 6)),
    )
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(me, workload, mode)
            pair.train(steps=2)
            pair.evaluate()
            pair.train(steps=2)


def test_a_transformer_layer_trains_and_evaluates(ranks):
    ranks(transformer_layer, world=2)
