"""fully_shard without a plan, as FSDP2's: blocks first, the model last; its arguments and the methods that a module gets."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.nested import WIDTH, Net, net
from support.pair import SEED, adamw, close, held
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard

import osdp
from osdp.fsdp.fsdp_module import FSDPModule, UnshardHandle
from osdp.ranks.process_groups import group_of_ranks
from osdp.sharding.sharded_model import runtime_of

FULL = StateDictOptions(full_state_dict=True)


def by_blocks(model: Net, mesh: DeviceMesh) -> Net:
    for block in model.blocks:
        osdp.fully_shard(block, mesh=mesh, reshard_after_forward=False)
    osdp.fully_shard([model.inner[0], model.inner[1]], mesh=mesh, shard_placement_fn=lambda p: Shard(0))
    assert osdp.fully_shard(model, mesh=mesh) is model
    return model


def trained(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    whole, model = net(SEED), net(SEED + me.rank)
    parameters, buffers = list(model.parameters()), list(model.buffers())
    for buffer in buffers:
        buffer += me.rank
    by_blocks(model, mesh)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert not any(map(torch.count_nonzero, buffers))  # rank 0's values, in the same objects
    assert isinstance(model, FSDPModule) and isinstance(model, Net) and isinstance(model.inner[1], FSDPModule)
    assert type(model).__name__ == "FSDPNet" and isinstance(model.unshard(async_op=True), UnshardHandle)
    plan = runtime_of(model).plan
    assert [plan.choices[n].mode for n in ("blocks.0.up", "inner.0.up")] == ["SHARD_GRAD_OP", "FULL_SHARD"]
    assert ("inner.1.up", "inner.1.down") in plan.units
    both = ((whole, adamw(whole.parameters())), (model, adamw(model.parameters())))
    torch.manual_seed(2)
    for _ in range(2):
        for micro in range(2):
            tokens = torch.randint(10, (2 * me.world, 4))
            model.set_requires_gradient_sync(micro == 1)
            for each, mine in ((whole, tokens), (model, me.part(tokens))):
                each(mine).square().mean().backward()
        for each, optimizer in both:
            torch.nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    assert all(a is b for a, b in zip(buffers, model.buffers(), strict=True))  # also after the first forward
    wanted = whole.state_dict()
    shown = model.state_dict()
    assert list(shown) == list(wanted) and isinstance(shown["inner.1.up.weight"], DTensor)
    gathered = get_model_state_dict(model, options=FULL)
    for name, value in wanted.items():
        close(gathered[name], value, 1e-9, name)
        if isinstance(shown[name], DTensor):
            close(shown[name].full_tensor(), value, 1e-9, name)
    fresh = net(SEED + 1).state_dict()
    set_model_state_dict(model, fresh, options=FULL)
    close(model(tokens), net(SEED + 1)(tokens), 1e-9, "output of what was loaded")
    model.load_state_dict(shown)


def test_blocks_first_then_the_model(ranks):
    ranks(trained, world=2)


def told(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    within = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    osdp.fully_shard(model[0], mesh=mesh, mp_policy=within, offload_policy=CPUOffloadPolicy())
    osdp.fully_shard(
        model, mesh=mesh, mp_policy=policy, offload_policy=CPUOffloadPolicy(), reshard_after_forward=2
    )
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(args[0].dtype))
    assert model(torch.randn(2, WIDTH)).dtype == torch.float32 and seen == [torch.bfloat16]
    methods = {name: value.__doc__ for name, value in vars(FSDPModule).items() if not name.startswith("_")}
    for name in [n for n, text in methods.items() if text.startswith("Accepted, without effect: the plan")]:
        getattr(model, name)(True)
    for name in [n for n, text in methods.items() if text.startswith("Not supported")]:
        with pytest.raises(osdp.ShardingError, match=f"^{name} is not supported: "):
            getattr(model, name)(True)
    model.set_requires_all_reduce(False)
    assert model.unshard() is None
    fresh = nn.Linear(2, 2)
    for named, match in (
        ({"ignored_params": {1}}, "ignored_states must contain only parameters or modules, got a int"),
        ({"dp_mesh_dims": 0}, "dp_mesh_dims is not supported"),
        ({"shard_placement_fn": lambda p: Replicate()}, "only Shard"),
        ({"plan": osdp.Plan.uniform(fresh), "mesh": mesh}, "mesh= cannot be combined with a plan"),
        ({"reshard": True}, "no argument 'reshard'"),
    ):
        with pytest.raises(osdp.InvalidProblemError, match=match):
            osdp.fully_shard(fresh, **named)
    assert not isinstance(fresh, FSDPModule)


@pytest.mark.outcome("an argument of FSDP2 that is not supported", osdp.InvalidProblemError)
@pytest.mark.outcome("a method of FSDP2 that is not supported", osdp.ShardingError)
def test_arguments_and_methods(ranks):
    ranks(told, world=2)


class Tied(nn.Module):
    """An embedding and a head with one weight, blocks between them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(10, WIDTH)
        self.blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
        self.head = nn.Linear(WIDTH, 10)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def same_after_steps(me: Member, whole: nn.Module, model: nn.Module, tokens: torch.Tensor) -> None:
    """Two steps of both, on all tokens and on this rank's; then their parameters are the same."""
    both = ((whole, adamw(whole.parameters())), (model, adamw(model.parameters())))
    for _ in range(2):
        for (each, optimizer), mine in zip(both, (tokens, me.part(tokens)), strict=True):
            each(mine).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    gathered = get_model_state_dict(model, options=FULL)
    for name, value in whole.state_dict().items():
        close(gathered[name], value, 1e-9, name)


def tied_in_a_list(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    ranks = dist.get_process_group_ranks(me.group)
    alone = DeviceMesh.from_group(group_of_ranks(ranks[me.rank : me.rank + 1]), "cpu")
    whole, model = Tied(SEED).double(), Tied(SEED).double()
    tokens = torch.randint(10, (2 * me.world, 4), generator=torch.Generator().manual_seed(1))
    osdp.fully_shard([model.embedding, model.head], mesh=alone)
    with pytest.raises(osdp.ShardingError, match="both calls the same mesh"):
        osdp.fully_shard(model, mesh=mesh)
    osdp.fully_shard([model.embedding, model.head], mesh=mesh, reshard_after_forward=False)
    for block in model.blocks:
        osdp.fully_shard(block, mesh=mesh)
    with pytest.raises(osdp.ShardingError, match="before the first forward"):
        model(me.part(tokens))
    osdp.fully_shard(model, mesh=mesh)
    assert model.head.weight is model.embedding.weight and isinstance(model.head, FSDPModule)
    assert len(held(model.embedding.weight)) == 5  # this rank's rows
    same_after_steps(me, whole, model, tokens)


def test_tied_parameters_in_a_list(ranks):
    ranks(tied_in_a_list, world=2)


class Thrice(Tied):
    """The weight is read by a third module too, inside of a part that holds another parameter."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.aside = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10))
        self.aside[1].weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embedding(tokens))
        return self.head(x) + self.aside(x)


def by_class(module: nn.Module, me: Member) -> nn.Module:
    return osdp.FullyShardedDataParallel(module, me.group)


def by_function(module: nn.Module, me: Member) -> nn.Module:
    return osdp.fully_shard(module, mesh=DeviceMesh.from_group(me.group, "cpu"))


def tied_one_after_the_other(me: Member) -> None:
    tokens = torch.randint(10, (2 * me.world, 4), generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(2, WIDTH, dtype=torch.float64)
    for wrap in (by_class, by_function):
        for order in (("embedding", "head", "aside"), ("aside", "blocks", "embedding", "head")):
            whole, model = Thrice(SEED).double(), Thrice(SEED + me.rank).double()
            for name in order:
                setattr(model, name, wrap(getattr(model, name), me))
            first, *_, last = order
            repr(model)
            rows = len(held(model.embedding.weight))
            assert rows == 5 and model.head.weight is model.aside[1].weight
            kind = type(getattr(whole, first)).__name__
            use = {"embedding": lambda m=model: m.embedding(tokens), "head": lambda m=model: m.head(hidden)}
            tries = (use[last], getattr(model, last).state_dict) if last in use else ()
            for refused in (*tries, model.state_dict, lambda m=model: m.load_state_dict({}, strict=False)):
                with pytest.raises(osdp.ShardingError, match=kind):
                    refused()
            model = wrap(model, me)
            assert model.head.weight is model.embedding.weight is model.aside[1].weight
            same_after_steps(me, whole, model, tokens)
            assert len(held(model.embedding.weight)) == rows


def tied_without_values(me: Member) -> None:
    """What is tied on the meta device stays tied, though the first part's parameters become new objects."""
    for wrap in (by_class, by_function):
        for parts in (["embedding"], ["embedding", "head"], ["head", "aside"], []):
            with torch.device("meta"):
                model = Thrice(SEED)
            for name in parts:
                setattr(model, name, wrap(getattr(model, name), me))
            model = wrap(model, me)
            assert model.head.weight is model.embedding.weight is model.aside[1].weight
            assert len(list(model.parameters())) == 9 and len(held(model.head.weight)) == 5
            state = get_model_state_dict(model, options=FULL)
            assert state["head.weight"].isfinite().all()
            assert torch.equal(state["head.weight"], state["aside.1.weight"])


@pytest.mark.outcome("tied parts wrapped one after the other, then the model", "equal")
@pytest.mark.outcome("use of such a part before the model around both is wrapped", osdp.ShardingError)
def test_tied_parts_one_after_the_other(ranks):
    ranks(tied_one_after_the_other, world=2)


def test_tied_parts_from_the_meta_device(ranks):
    ranks(tied_without_values, world=2)
