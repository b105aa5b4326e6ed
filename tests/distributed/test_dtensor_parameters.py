"""Parameters that are DTensors between steps: without a plan, as FSDP2's, and on request."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from harness import Member
from support.pair import close
from support.tensor_parallel import mesh_of, parallelized
from support.tensor_parallel import net as divided_net
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard as torchs_fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import osdp

WIDTH = 6
OPTIMIZERS = {
    "for loop": partial(AdamW, foreach=False),
    "foreach": partial(AdamW, foreach=True),
    "fused": partial(AdamW, fused=True),
    "momentum": partial(SGD, momentum=0.9),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 5), nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), nn.LayerNorm(3)
    ).double()


def sharded(me: Member, function: Any = osdp.fully_shard, **options: Any) -> nn.Sequential:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    model = net()
    function(model[1], mesh=mesh, **options)
    function(model, mesh=mesh, **options)
    return model


def batch(me: Member, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2 * me.world, WIDTH, dtype=torch.float64, generator=generator)


def same(model: nn.Module, whole: nn.Module, what: str) -> None:
    for (name, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(p, DTensor) and isinstance(p, nn.Parameter) and p.shape == q.shape, name
        close(p.full_tensor().detach(), q.detach(), 1e-9, f"{what}: {name}")


def trained(me: Member) -> None:
    for kind, make in OPTIMIZERS.items():
        model, whole = sharded(me), net()
        mesh = DeviceMesh.from_group(me.group, "cpu")
        assert all(p.placements == (Shard(0),) and p.device_mesh == mesh for p in model.parameters())
        same(model, whole, "as made")
        parameters = list(model.parameters())
        hooked: list[Any] = []
        model[0].weight.register_post_accumulate_grad_hook(lambda p, seen=hooked: seen.append(p.grad))
        within: list[bool] = []
        model[1].register_forward_hook(
            lambda m, args, out, seen=within: seen.append(isinstance(m[0].weight, DTensor))
        )
        optimizers = make(parameters, lr=0.1), make(whole.parameters(), lr=0.1)
        for step in range(3):
            x = batch(me, step)
            for each, mine in ((model, me.part(x)), (whole, x)):
                each(mine).square().mean().backward()
            for p, q in zip(parameters, whole.parameters(), strict=True):
                assert isinstance(p.grad, DTensor) and p.grad.placements == p.placements
                close(p.grad.full_tensor(), q.grad, 1e-9, kind)
            of_rank = torch.nn.utils.get_total_norm([p.grad.to_local() for p in parameters])
            norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, whole)]
            close(norms[0].full_tensor(), norms[1], 1e-9, "norm")
            squares = sum(float(norm) ** 2 for norm in me.everywhere(of_rank))
            close(torch.tensor(squares**0.5).double(), norms[1], 1e-6, "norm, added by hand")
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step != 1)
            assert step == 1 or all(p.grad is None for p in parameters)
        assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
        assert isinstance(hooked[0], DTensor) and not any(within)
        same(model, whole, kind)
        key = "exp_avg" if isinstance(optimizers[0], AdamW) else "momentum_buffer"
        assert isinstance(optimizers[0].state[parameters[0]][key], DTensor)


def test_steps_are_one_processs(ranks):
    ranks(trained, world=2)


class Repeats(TorchDispatchMode):
    """Calls every operation again, as modes that count or log do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_dispatch_modes(me: Member) -> None:
    for mode in (Repeats, CommDebugMode, partial(FlopCounterMode, display=False)):
        model, whole = sharded(me), net()
        optimizers = SGD(model.parameters(), lr=0.1), SGD(whole.parameters(), lr=0.1)
        for step in range(2):
            x = batch(me, step)
            with mode():
                model(me.part(x)).square().mean().backward()
                optimizers[0].step()
            whole(x).square().mean().backward()
            optimizers[1].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            same(model, whole, f"{mode}, step {step}")


def test_in_a_dispatch_mode(ranks):
    """It repeats an operation with what the runtime gives it: a parameter, which for Python is a DTensor."""
    ranks(in_dispatch_modes, world=2)


def whole_matrices(me: Member) -> None:
    """Muon, which needs whole matrices, steps as FSDP2's does."""
    made = [sharded(me, function) for function in (osdp.fully_shard, torchs_fully_shard)]
    for model in made:
        optimizer = torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.1)
        model(me.part(batch(me, 0))).square().mean().backward()
        optimizer.step()
    for p, q in zip(*(model.parameters() for model in made), strict=True):
        close(p.full_tensor().detach(), q.full_tensor().detach(), 1e-9, "after Muon")


def test_an_optimizer_of_whole_matrices(ranks):
    ranks(whole_matrices, world=2)


def kept(me: Member, directory: str) -> None:
    """State dicts, checkpoints and copies."""
    model, whole = sharded(me), net()
    optimizer = AdamW(model.parameters(), lr=0.1)
    optimizers = optimizer, AdamW(whole.parameters(), lr=0.1)

    def step(each: nn.Module, stepped: torch.optim.Optimizer, x: torch.Tensor) -> None:
        each(x).square().mean().backward()
        stepped.step()
        stepped.zero_grad()

    def both(seed: int) -> None:
        x = batch(me, seed)
        step(model, optimizers[0], me.part(x)), step(whole, optimizers[1], x)

    both(0)
    osdp.save(model, optimizer, directory)
    options = StateDictOptions(full_state_dict=True)
    states = [get_state_dict(model, optimizer), get_state_dict(model, optimizer, options=options)]
    assert all(isinstance(value, DTensor) for value in states[0][0].values())
    kept_states = copy.deepcopy(states)
    copied = copy.deepcopy(model)
    same(copied, whole, "copy")
    for way in ("rows", "full", "checkpoint", "own"):
        step(model, optimizer, me.part(batch(me, 9)))
        states = copy.deepcopy(kept_states)  # optimizers keep what they load
        if way == "checkpoint":
            osdp.load(model, optimizer, directory)
        elif way == "own":
            model.load_state_dict(copied.state_dict())
            set_state_dict(model, optimizer, model_state_dict=states[0][0], optim_state_dict=states[0][1])
        else:
            given, how = (states[0], StateDictOptions()) if way == "rows" else (states[1], options)
            set_state_dict(
                model, optimizer, model_state_dict=given[0], optim_state_dict=given[1], options=how
            )
        same(model, whole, way)
        assert all(isinstance(s["exp_avg"], DTensor) for s in optimizer.state.values())
    both(1)
    same(model, whole, "after all")
    with torch.no_grad():
        model[0].weight.mul_(2), whole[0].weight.mul_(2)
        for p, q in zip(model[1].parameters(), whole[1].parameters(), strict=True):
            p.copy_(p.add(1)), q.copy_(q.add(1))
    both(2)
    same(model, whole, "after writes")


def test_states_and_copies(ranks, tmp_path):
    ranks(kept, str(tmp_path / "checkpoint"), world=2)


class Scaled(nn.Linear):
    """Has a parameter without dimensions, of which every rank has all."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def states_of_one_process(me: Member) -> None:
    for name in ("blocks", "NO_SHARD"):
        for make in (partial(AdamW, foreach=False), partial(SGD, momentum=0.9), torch.optim.NAdam):
            whole = nn.Sequential(Scaled(), nn.Linear(5, 3)).double()
            model = copy.deepcopy(whole)
            if name == "blocks":
                osdp.fully_shard(model, mesh=DeviceMesh.from_group(me.group, "cpu"))
            else:
                plan = osdp.Plan.uniform(osdp.describe(model, batch(me, 0)), name)
                osdp.fully_shard(model, plan, me.group, dtensor_parameters=True)
            optimizers = make(whole.parameters(), lr=0.1), make(model.parameters(), lr=0.1)
            for step in range(2):
                x = batch(me, step)
                whole(x).square().mean().backward(), optimizers[0].step(), optimizers[0].zero_grad()
                if step == 0:
                    model.load_state_dict({k: distribute(me, v, name) for k, v in whole.state_dict().items()})
                    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
                else:
                    model(me.part(x)).square().mean().backward(), optimizers[1].step()
            same(model, whole, f"{name}, {optimizers[0]}")


def distribute(me: Member, value: torch.Tensor, manner: str) -> torch.Tensor:
    if manner != "blocks" or value.dim() == 0:
        return value
    return distribute_tensor(value, DeviceMesh.from_group(me.group, "cpu"), [Shard(0)])


def test_states_of_one_process(ranks):
    ranks(states_of_one_process, world=2)


def with_plan(me: Member) -> None:
    described = osdp.describe(net(), torch.randn(2, WIDTH, dtype=torch.float64))
    plan = osdp.Plan.uniform(described, "FULL_SHARD").replace({"0": osdp.Choice("NO_SHARD")})
    plain = osdp.fully_shard(net(), plan, me.group)
    assert not any(isinstance(p, DTensor) for p in plain.parameters())
    model, whole = osdp.fully_shard(net(), plan, me.group, dtensor_parameters=True), net()
    assert model[0].weight.placements == (Replicate(),) and model[1][0].weight.placements == (Shard(0),)
    optimizers = AdamW(model.parameters(), foreach=True), AdamW(whole.parameters())
    for step in range(2):
        x = batch(me, step)
        for each, mine, optimizer in zip((model, whole), (me.part(x), x), optimizers, strict=True):
            each(mine).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    same(model, whole, "with a plan")
    model.load_state_dict(whole.state_dict())
    with osdp.summon_full_params(model):
        assert not isinstance(model[1][0].weight, DTensor) and model[1][0].weight.shape == (7, 5)
    same(model, whole, "summoned")
    penalised = sharded(me)
    penalty = penalised(me.part(batch(me, 0))).sum() + penalised[0].weight.pow(2).sum()
    with pytest.raises(osdp.ShardingError, match=r"'0.weight'"):
        penalty.full_tensor().backward()
    slices = plan.replace({"0": osdp.Choice("FULL_SHARD", granularity=2, split="in")})
    with pytest.raises(osdp.InvalidProblemError, match=r"'0.weight' is computed in slices"):
        osdp.fully_shard(net(), slices, me.group, dtensor_parameters=True)


def test_on_request_and_refused(ranks):
    ranks(with_plan, world=2)


def asked_for(me: Member) -> None:
    """`torch.autograd.grad(loss, model.parameters())`: as of plain parameters."""
    model, whole, x = sharded(me), net(), me.part(batch(me, 0))
    with pytest.raises(osdp.ShardingError, match=r"gradient of parameter '.*weight'"):
        torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    with osdp.no_sync(model):
        of_rank = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    wanted = torch.autograd.grad(whole(x).square().mean(), list(whole.parameters()))
    for got, full in zip(of_rank, wanted, strict=True):
        close(got, full, 1e-9, "this rank's own gradient")
    model(x).square().mean().backward()
    whole(batch(me, 0)).square().mean().backward()
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        close(p.grad.full_tensor(), q.grad, 1e-9, "the step after it")


def dropped(me: Member) -> None:
    """`zero_grad` under no_sync, where a gradient is a DTensor around this rank's zeros."""
    for set_to_none in (True, False):
        model, whole = sharded(me), net()
        for m, part in ((model, lambda x: me.part(x)), (whole, lambda x: x)):
            with osdp.no_sync(model):
                m(part(batch(me, 0))).square().mean().backward()
            m.zero_grad(set_to_none)
            m(part(batch(me, 1))).square().mean().backward()
        for p, q in zip(model.parameters(), whole.parameters(), strict=True):
            close(p.grad.full_tensor(), q.grad, 1e-9, f"set_to_none={set_to_none}")


def test_gradients_that_are_dropped_under_no_sync(ranks):
    ranks(dropped, world=2)


@pytest.mark.outcome(
    "`torch.autograd.grad(loss, model.parameters())`, of parameters that are DTensors too", osdp.ShardingError
)
def test_gradients_that_are_asked_for(ranks):
    ranks(asked_for, world=2)


def into_some(me: Member) -> None:
    """torch's backward with `inputs=`, and hooks of several gradients, are about parameters, not DTensors of them."""
    model, whole, x = sharded(me), net(), batch(me, 0)
    told: dict[bool, list[int]] = {True: [], False: []}
    for m, given, of in ((model, me.part(x), told[True]), (whole, x, told[False])):
        hook = torch.autograd.graph.register_multi_grad_hook(
            list(m.parameters())[:2], lambda grads, of=of: of.append(len(grads))
        )
        loss = m(given).square().mean()
        loss.backward(inputs=list(m.parameters())[:2], retain_graph=True)
        torch.autograd.backward([loss], inputs=[next(m.parameters())])
        hook.remove()
    assert told[True] == told[False] != []
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            close(p.grad.full_tensor(), q.grad, 1e-9, "gradient")


@pytest.mark.outcome(
    "`loss.backward(inputs=parameters)`, `register_multi_grad_hook(parameters)`, of DTensors too", "equal"
)
def test_gradients_of_some_parameters(ranks):
    ranks(into_some, world=2)


def two_meshes(me: Member) -> None:
    """Over tensor parallelism: FSDP2's layout between steps too."""
    made = []
    for function in (osdp.fully_shard, torchs_fully_shard):
        mesh = mesh_of(me, 2, 2)
        model = parallelized(divided_net(), mesh["tp"])
        for block in model.blocks:
            function(block, mesh=mesh["dp"])
        made.append(function(model, mesh=mesh["dp"]))
    for (name, p), q in zip(made[0].named_parameters(), made[1].parameters(), strict=True):
        assert isinstance(p, DTensor) and p.placements == q.placements, (name, p.placements, q.placements)
        assert p.device_mesh.mesh.tolist() == q.device_mesh.mesh.tolist()
        close(p.to_local().detach(), q.to_local().detach(), 1e-12, name)


def test_two_meshes(ranks):
    ranks(two_meshes, world=4)
