"""Other data parallels around a sharded model, or in one: refused before they have changed anything."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from harness import Member
from support import blocks
from support.pair import Pair, close, naming
from torch import nn
from torch.distributed._composable import replicate as former_replicate
from torch.distributed._composable.replicate_with_fsdp import replicate
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
        "torch's replicate": lambda m: replicate(m, mesh=mesh),
        "DataParallel": lambda m: DataParallel(m),
    }
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    for what, wrap in wrappers.items():
        composable = what.startswith("torch's")
        for outer in (False, True)[: 1 if composable else 2]:
            with naming(f"{what}, around {'an outer module' if outer else 'it'}"):
                where = "the module 'inner' in it" if outer else "a model that is"
                with pytest.raises(
                    osdp.ShardingError, match=rf"rank \d: {what} around {where}.*remove {what}"
                ):
                    wrap(Outer(pair.sharded) if outer else pair.sharded)
        if composable:
            with (
                naming(f"{what} of a part"),
                pytest.raises(osdp.ShardingError, match=f"{what} around a model"),
            ):
                wrap(pair.sharded.blocks[0])
    assert hasattr(nn.Module, "_replicate_for_data_parallel")
    with pytest.raises(osdp.ShardingError, match="DataParallel"):
        pair.sharded.blocks[0]._replicate_for_data_parallel()
    pair.train(steps=1)
    by_blocks = osdp.fully_shard(nn.Sequential(nn.Linear(2, 2)), process_group=me.group)
    with pytest.raises(osdp.ShardingError, match="torch's fully_shard around a model"):
        torchs_fully_shard(by_blocks, mesh=mesh)
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


def beside(me: Member) -> None:
    """torch's composable APIs leave alone what another one manages, and train what is around it."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    ways = {
        "fully_shard": partial(torchs_fully_shard, mesh=mesh),
        "replicate": partial(replicate, mesh=mesh),
        "the former replicate": partial(former_replicate, process_group=me.group),
    }
    for way, wrap in ways.items():
        for mode in ("FULL_SHARD", "NO_SHARD"):
            with naming(f"{way}, {mode}"):
                pair = Pair(me, blocks.workload(), mode)
                whole, outer = Outer(pair.whole), Outer(pair.sharded)
                whole.out.load_state_dict(outer.out.state_dict())
                wrap(outer)
                both = [(m, torch.optim.AdamW(m.parameters(), lr=0.1, foreach=False)) for m in (whole, outer)]
                for step in range(3):
                    batch = pair.data(step)
                    for (model, optimizer), given in zip(both, (batch, pair._part(batch)), strict=True):
                        optimizer.zero_grad()
                        model(*given[0]).square().mean().backward()
                    pair.same_gradients()
                    grad = outer.out.weight.grad
                    close(
                        getattr(grad, "full_tensor", lambda g=grad: g)(), whole.out.weight.grad, 1e-9, "outer"
                    )
                    if mode == "FULL_SHARD":  # torch does not clip DTensors together with what all ranks hold
                        for model, _ in both:
                            nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=False)
                        pair.same_gradients()
                    for _, optimizer in both:
                        optimizer.step()
                pair.same_parameters()


@pytest.mark.outcome(
    "torch's `fully_shard` or `replicate` around a module that holds a sharded model", "equal"
)
def test_torchs_composable_parallels_leave_a_sharded_model_alone(ranks):
    ranks(beside, world=2)


@pytest.mark.outcome(
    "`DistributedDataParallel`, FSDP1, FSDP2, `DataParallel` around a sharded model", osdp.ShardingError
)
@pytest.mark.outcome(
    "`DistributedDataParallel`, FSDP1, `DataParallel` around a module that holds a sharded model",
    osdp.ShardingError,
)
@pytest.mark.outcome("`DistributedDataParallel` that ignores the sharded part by name", "equal")
@pytest.mark.outcome(
    "`torch.nn.parallel.replicate` of a sharded model, which copies modules to several GPUs",
    osdp.ShardingError,
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
    model = FSDP(build(), process_group=me.group, device_id=torch.device("cpu"), use_orig_params=True)
    refused(model, model.module, "the model itself is already in a FullyShardedDataParallel")
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
