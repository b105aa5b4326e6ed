"""osdp.FSDPModule is torch's FSDPModule: what looks for torch's class finds OSDP's modules, with FSDP2's numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.nested import WIDTH, Net, net
from support.pair import SEED, close
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import fsdp as torchs
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor

import osdp
from osdp.sharding.parameter_settings import set_divide_factor
from osdp.sharding.sharded_model import runtime_of


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_") and callable(vars(kind)[name])}


def test_every_method_of_torchs_class_is_ours():
    assert public(torchs.FSDPModule) <= public(osdp.FSDPModule)


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole gradients by name, of FSDP2's DTensors or of this rank's rows."""
    found = {}
    for name, p in model.named_parameters():
        if p.grad is None:  # frozen
            continue
        if isinstance(p.grad, DTensor):
            found[name] = p.grad.full_tensor()
        else:
            found[name] = runtime_of(model).gather_whole(name, p.grad)
    return found


def sharded_by(library, model: Net, mesh: DeviceMesh, reshard: bool) -> Net:
    for block in [*model.blocks, *model.inner]:
        library.fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    library.fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return model


def factors(me: Member, reshard: bool) -> None:
    """Each unit's gradients are the ranks' sum divided by its factor, in every way of accumulating."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    made = [sharded_by(library, net(SEED), mesh, reshard) for library in (torchs, osdp)]
    for model in made:
        for part in model.modules():
            if isinstance(part, torchs.FSDPModule):
                part.set_gradient_divide_factor(1.0)
        model.blocks[0].set_gradient_divide_factor(8)
    torch.manual_seed(3)
    state = torchs.fully_shard.state(made[1])
    for syncs in ((True,), (True, True), (False, True), (False, False, True, True)):
        inputs = [me.part(torch.randint(10, (2 * me.world, 4))) for _ in syncs]
        for model in made:
            model.zero_grad()
            for sync, mine in zip(syncs, inputs, strict=True):
                model.set_requires_gradient_sync(sync)
                model(mine).square().mean().backward()
        theirs, ours = map(full_gradients, made)
        for name, want in theirs.items():
            torch.testing.assert_close(
                ours[name], want, rtol=1e-6, atol=1e-9, msg=lambda m, n=(name, syncs): f"{n}: {m}"
            )
    assert torchs.fully_shard.state(made[1]) is state  # though it was sharded anew at its first forward


@pytest.mark.parametrize("reshard", [True, False])
def test_gradients_are_divided_by_the_factor(ranks, reshard):
    ranks(factors, reshard, world=2)


def factor_in_every_mode(me: Member, mode: str) -> None:
    """Of a plan's runtime too: NO_SHARD's buckets, slices, low precision; kept by a model that is sharded anew."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    plan = osdp.Plan.uniform(
        describe_once(model, torch.zeros(2, 4)), "FULL_SHARD" if mode == "slices" else mode
    )
    if mode == "slices":
        plan = plan.replace({"0": osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=1, split="out")})
    whole = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    whole.load_state_dict(model.state_dict())
    osdp.fully_shard(model, plan, process_group=me.group)
    set_divide_factor(model.parameters(), 0.5)
    for _ in range(2):  # the second adds to what is kept
        data = torch.randn(2 * me.world, 4)
        dist.broadcast(data, 0, group=me.group)
        model(me.part(data)).square().mean().backward()
        whole(data).square().mean().backward()
    found = full_gradients(model)
    for name, p in whole.named_parameters():
        torch.testing.assert_close(found[name], p.grad * me.world / 0.5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("mode", ["NO_SHARD", "SHARD_GRAD_OP", "slices"])
def test_a_factor_in_every_mode(ranks, mode):
    ranks(factor_in_every_mode, mode, world=2)


def refused(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    model = sharded_by(osdp, net(SEED), mesh, True)
    assert isinstance(model, torchs.FSDPModule) and type(model.blocks).__name__ == "ModuleList"
    assert type(model.blocks[0]).__name__ == f"FSDP{type(net(SEED).blocks[0]).__name__}"
    for factor in (0, -1.0, float("nan"), float("inf"), True, "2"):
        with pytest.raises(osdp.InvalidProblemError):
            model.set_gradient_divide_factor(factor)
    with pytest.raises(osdp.ShardingError, match="torch's fully_shard around a model"):
        torchs.fully_shard(model, mesh=mesh)
    kinds = [type(p) for p in model.parameters()]
    outer = torchs.fully_shard(nn.Sequential(model), mesh=mesh)  # leaves it alone
    assert [type(p) for p in outer.parameters()] == kinds
    pair = osdp.fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), mesh=mesh)
    assert pair.to("cpu").to(torch.float32) is pair and pair.apply(lambda m: None) is pair
    assert type(pair[:1]) is nn.Sequential  # an instance of the original class, as FSDP2 gives


def test_what_is_ours_and_what_is_torchs(ranks):
    ranks(refused, world=2)


def one_stage(me: Member) -> None:
    """torch's pipelining over OSDP: the plain model's gradients; a unit is reduced once a step, not once a micro-batch."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    alone = [dist.new_group([rank]) for rank in dist.get_process_group_ranks(me.group)][me.rank]
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model.load_state_dict(whole.state_dict())
    for part in (model[0], model[2], model):
        osdp.fully_shard(part, mesh=mesh)
    stage = PipelineStage(model, 0, 1, torch.device("cpu"), group=alone)
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    for _ in range(2):
        data, target = (torch.randn(8 * me.world, WIDTH) for _ in range(2))
        dist.broadcast(data, 0, group=me.group), dist.broadcast(target, 0, group=me.group)
        before = runtime_of(model).runtime.statistics()["reductions"]
        schedule.step(me.part(data), target=me.part(target))
        assert runtime_of(model).runtime.statistics()["reductions"] - before == 2
        (whole(data) - target).square().mean().backward()
        found = full_gradients(model)
        for name, p in whole.named_parameters():
            torch.testing.assert_close(found[name], p.grad, msg=lambda m, n=name: f"{n}: {m}")
            p.grad = None
        model.zero_grad()


def test_torchs_pipelining_reduces_once_a_step(ranks):
    ranks(one_stage, world=2)


class Scored(nn.Module):
    """A method reads a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(6, 4))

    def scores(self, x: Tensor) -> Tensor:
        return self.inner(x) @ self.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).sum(-1)


def registered_by_torch(me: Member) -> None:
    torch.manual_seed(0)
    whole = Scored().double()
    model = osdp.fully_shard(copy.deepcopy(whole), process_group=me.group)
    torchs.register_fsdp_forward_method(model, "scores")
    x = torch.arange(8.0, dtype=torch.float64).view(2, 4)
    for each in (whole, model):
        each.scores(x).square().sum().backward()
    for (name, parameter), wanted in zip(model.named_parameters(), whole.parameters(), strict=True):
        close(parameter.grad.full_tensor(), wanted.grad, 1e-9, name)


def test_methods_that_torchs_function_registers(ranks):
    ranks(registered_by_torch, world=2)
