"""Mixed precision and tensors that a forward makes in full precision: cast at the calls of blocks, as by FSDP2, or refused
by name."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import plans
from support.mixed import MixedPair
from support.pair import SEED, naming
from support.workload import Workload, vectors
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torchs_fully_shard

import osdp
from osdp.base.cast_floats import CastInputs

WIDTH = 6
BF16 = osdp.MixedPrecision(torch.bfloat16)
FSDP = osdp.FullyShardedDataParallel


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor, table: Tensor, *, mask: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x * table))) * mask


class Tables(nn.Module):
    """Hands a table and a mask in full precision to its blocks, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Rotated() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        table = torch.arange(WIDTH, dtype=torch.float32).cos()
        mask = torch.ones(WIDTH, dtype=torch.float32) / 3
        for block in self.blocks:
            x = block(x, table, mask=mask)
        return x


class Unblocked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) * torch.ones(WIDTH))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.125)


class BlocksCast(MixedPair):
    def low(self) -> nn.Module:
        model = super().low()
        for block in model.blocks:
            block.register_forward_pre_hook(CastInputs(torch.bfloat16), with_kwargs=True)
        return model


def handed_to_blocks(me: Member) -> None:
    load = Workload(Tables, vectors(WIDTH, WIDTH))
    torch.manual_seed(SEED)
    described = osdp.describe(Tables(), torch.ones(2, WIDTH))
    for name, plan in plans.uniform(described).items():
        for how in (None, "hold", "regather"):
            with naming(f"{name}, {how}"):
                chosen = plans.recomputed(plan, how) if how else plan
                BlocksCast(me, load, chosen, BF16, exact=True, optimizer=sgd).train(2)


@pytest.mark.outcome(
    "bf16 by a plan, and a tensor that the forward makes in fp32 and hands to its blocks", "equal"
)
def test_tensors_that_are_handed_to_blocks(ranks):
    ranks(handed_to_blocks, world=2)


def as_fsdp2(me: Member) -> None:
    """The same bits as FSDP2 with the same blocks."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    policy = MixedPrecisionPolicy(torch.bfloat16)
    results = []
    for ours in (False, True):
        torch.manual_seed(SEED)
        model: nn.Module = Tables()
        if ours:
            plan = osdp.Plan.uniform(osdp.describe(model, torch.ones(2, WIDTH)), "FULL_SHARD")
            osdp.fully_shard(model, plan, me.group, mixed_precision=policy)
        else:
            for block in model.blocks:
                torchs_fully_shard(block, mesh=mesh, mp_policy=policy)
            torchs_fully_shard(model, mesh=mesh, mp_policy=policy)
        torch.manual_seed(me.rank)
        out = model(torch.randn(4, WIDTH))
        out.square().mean().backward()
        grads = [p.grad.full_tensor() for p in model.parameters()] if not ours else []
        if ours:
            with osdp.summon_full_params(model, with_grads=True, writeback=False):
                grads = [p.grad.clone() for p in model.parameters()]
        results.append([out.detach(), *grads])
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_plan_casts_as_fsdp2_by_blocks(ranks):
    ranks(as_fsdp2, world=2)


def refused(me: Member) -> None:
    """Without blocks, or where blocks are told not to cast: the operator is named, and the model goes on."""
    torch.manual_seed(SEED)
    plan = osdp.Plan.uniform(osdp.describe(Unblocked(), torch.ones(2, WIDTH)), "FULL_SHARD")
    uncast = osdp.MixedPrecision(torch.bfloat16, parts=())
    ways = {
        "last": lambda: osdp.fully_shard(Unblocked(), plan, me.group, mixed_precision=BF16),
        "last by the class": lambda: FSDP(Unblocked(), me.group, mixed_precision=BF16),
        "blocks.0.up by the class": lambda: FSDP(Tables(), me.group, mixed_precision=BF16),
        "blocks.0.up": lambda: osdp.fully_shard(
            Tables(),
            osdp.Plan.uniform(osdp.describe(Tables(), torch.ones(2, WIDTH)), "NO_SHARD"),
            me.group,
            mixed_precision=uncast,
        ),
    }
    for name, wrap in ways.items():
        with naming(name):
            model = wrap()
            where = name.partition(" ")[0].replace(".", r"\.")
            with pytest.raises(osdp.ShardingError, match=rf"in '{where}'.*bfloat16.*full_precision_modules"):
                model(torch.ones(2, WIDTH))
    kept = osdp.MixedPrecision(torch.bfloat16, full_precision_modules=(nn.Linear,), cast_forward_inputs=False)
    model = osdp.fully_shard(Unblocked(), plan, me.group, mixed_precision=kept)
    model(torch.ones(2, WIDTH)).sum().backward()


@pytest.mark.outcome("bf16, and such a tensor where no block casts it", osdp.ShardingError)
def test_operands_of_two_dtypes_are_named(ranks):
    ranks(refused, world=2)


def test_the_description_in_low_precision_casts_too():
    x = torch.ones(2, WIDTH)
    model = Tables()
    described = osdp.describe(model, x)
    low = osdp.describe(model, x, precision="bf16")

    def saved(description: osdp.ModelDescription) -> dict[str, float]:
        return {
            o.name: o.saved_bytes_per_sample for o in description.operators if o.name.endswith(("up", "down"))
        }

    assert saved(low) == {name: size / 2 for name, size in saved(described).items()}
    assert not model.blocks[0]._forward_pre_hooks
