"""Other data parallels around a sharded model, or in one: refused before they have changed anything."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks
from support.pair import Pair, close, naming
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard as torchs_fully_shard
from torch.nn.parallel import DataParallel
from torch.nn.parallel import DistributedDataParallel as DDP

import osdp


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.out = nn.Linear(blocks.VOCABULARY, 2, dtype=torch.float64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(tokens))


def around(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    wrappers = {
        "DistributedDataParallel": lambda m: DDP(m, process_group=me.group),
        "FullyShardedDataParallel": lambda m: FSDP(m, process_group=me.group, device_id=torch.device("cpu")),
        "torch's fully_shard": lambda m: torchs_fully_shard(m, mesh=mesh),
        "DataParallel": lambda m: DataParallel(m),
    }
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    for what, wrap in wrappers.items():
        for outer in (False, True):
            with naming(f"{what}, around {'an outer module' if outer else 'it'}"):
                where = "the module 'inner' in it" if outer else "a model that is"
                with pytest.raises(
                    osdp.ShardingError, match=rf"rank \d: {what} around {where}.*remove {what}"
                ):
                    wrap(Outer(pair.sharded) if outer else pair.sharded)
    pair.train(steps=1)
    # What is told to leave the sharded part alone may train the rest.
    outer = Outer(pair.sharded)
    outer._ddp_params_and_buffers_to_ignore = [f"inner.{name}" for name, _ in pair.sharded.named_parameters()]
    trained = DDP(outer, process_group=me.group)
    batch = pair.data(0)
    whole = Outer(pair.whole)
    whole.out.load_state_dict(outer.out.state_dict())
    whole(*batch[0]).square().mean().backward()
    trained(*pair._part(batch)[0]).square().mean().backward()
    pair.same_gradients()
    close(outer.out.weight.grad, whole.out.weight.grad, 1e-9, "outer")


@pytest.mark.outcome(
    "`DistributedDataParallel`, FSDP1, FSDP2, `DataParallel` around a sharded model", osdp.ShardingError
)
@pytest.mark.outcome("the same around a module that holds a sharded model", osdp.ShardingError)
@pytest.mark.outcome("`DistributedDataParallel` that ignores the sharded part by name", "equal")
@pytest.mark.outcome(
    "`torch.nn.parallel.replicate` of a sharded model",
    "not detected: it copies modules to several GPUs of one process without calling them",
)
@pytest.mark.filterwarnings("ignore")
def test_other_parallels_around_a_sharded_model(ranks):
    ranks(around, world=2)


def inside(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")

    def build() -> nn.Module:
        return blocks.workload().model(7, torch.float64)

    def refused(model: nn.Module, sharded: nn.Module, match: str) -> None:
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(osdp.ShardingError, match=match):
            osdp.fully_shard(sharded, osdp.Plan.uniform(build(), "FULL_SHARD"), me.group)
        after = list(model.parameters())
        assert all(a.shape == b.shape for a, b in zip(before, after, strict=True))

    model = DDP(build(), process_group=me.group)
    refused(model, model.module, "already in a DistributedDataParallel")
    refused(model, model, "the model itself is already under DistributedDataParallel")
    model = build()
    torchs_fully_shard(model.blocks[0], mesh=mesh)
    refused(model, model, r"'blocks\.0' is already under torch's fully_shard")
    model = build()
    DDP(model, process_group=me.group)  # let go of
    osdp.fully_shard(model, osdp.Plan.uniform(build(), "FULL_SHARD"), me.group)


@pytest.mark.outcome(
    "`fully_shard` of a model inside a data-parallel wrapper, or of one that contains such a wrapper",
    osdp.ShardingError,
)
@pytest.mark.filterwarnings("ignore")
def test_sharding_what_another_parallel_holds(ranks):
    ranks(inside, world=2)
