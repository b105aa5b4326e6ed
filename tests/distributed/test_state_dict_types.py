"""state_dict_type, optimizer states by name, local state dicts, summoning and apply, as FSDP1 and FairScale have them."""

from __future__ import annotations

import enum

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.nested import Block, Net, net, train
from support.pair import SEED, adamw, close
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OptimStateKeyType,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

import osdp
from osdp.sharding.sharded_model import runtime_of

FSDP = osdp.FullyShardedDataParallel
FULL, SHARDED, LOCAL = (
    StateDictType.FULL_STATE_DICT,
    StateDictType.SHARDED_STATE_DICT,
    StateDictType.LOCAL_STATE_DICT,
)


def wrapped(me: Member, seed: int = SEED, **options) -> FSDP:
    return FSDP(net(seed), me.group, auto_wrap_policy=ModuleWrapPolicy({Block}), **options)


def trained(me: Member, steps: int = 2) -> tuple[Net, torch.optim.Optimizer, FSDP, torch.optim.Optimizer]:
    whole, model = net(SEED), wrapped(me)
    theirs, optimizer = adamw(whole.parameters()), adamw(model.parameters())
    torch.manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(10, (2 * me.world, 3))
        for each, stepper, mine in ((whole, theirs, tokens), (model, optimizer, me.part(tokens))):
            each(mine).square().mean().backward()
            stepper.step()
            stepper.zero_grad()
    return whole, theirs, model, optimizer


def same(state: dict, wanted: dict) -> None:
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        shown = state[name].full_tensor() if isinstance(state[name], DTensor) else state[name]
        close(shown, value, 1e-9, name)


def types(me: Member) -> None:
    model, wanted = wrapped(me), net(SEED).state_dict()
    assert FSDP.get_state_dict_type(model).state_dict_type is FULL
    with FSDP.state_dict_type(model, FULL, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
        same(model.state_dict(), wanted if me.rank == 0 else {})
    with pytest.raises(ValueError, match="on purpose"), model.state_dict_type(model, SHARDED):
        rows = model.state_dict()
        raise ValueError("on purpose")
    same(model.state_dict(), wanted)
    assert isinstance(rows["blocks.1.up.weight"], DTensor) and isinstance(rows["table.weight"], DTensor)
    same(rows, wanted)
    other = wrapped(me, SEED + 1)
    other.load_state_dict(rows)
    same(other.state_dict(), wanted)
    before = FSDP.set_state_dict_type(other, LOCAL)
    assert before.state_dict_type is FULL
    local = {name: value.clone() for name, value in other.state_dict().items()}
    assert local["head.weight"].to_local().shape == model.head.weight.shape != wanted["head.weight"].shape
    same(local, wanted)  # what saves it can tell that it is a part
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(local)
    FSDP.set_state_dict_type(other, FULL)
    same(other.state_dict(), wanted)
    with pytest.raises(osdp.InvalidProblemError, match="FullStateDictConfig"):
        FSDP.set_state_dict_type(other, FULL, ShardedStateDictConfig())
    with pytest.raises(osdp.InvalidProblemError, match=r"state_dict_type.*'full'"):
        FSDP.set_state_dict_type(other, "full")
    both = nn.ModuleList([model, other])
    FSDP.set_state_dict_type(other, SHARDED)
    with pytest.raises(osdp.InvalidProblemError, match="different state dict types"):
        FSDP.get_state_dict_type(both)
    with FSDP.state_dict_type(nn.Linear(2, 2), SHARDED), FSDP.summon_full_params(nn.Linear(2, 2)):
        pass  # nothing there is sharded
    first = wrapped(me, state_dict_on_rank_0_only=True, state_dict_device=torch.device("cpu"))
    same(first.state_dict(), wanted if me.rank == 0 else {})
    assert FSDP.get_state_dict_type(first).state_dict_config == FullStateDictConfig(True, True)


@pytest.mark.outcome("a state dict type with another type's configuration", osdp.InvalidProblemError)
def test_types_of_state_dicts(ranks):
    ranks(types, world=2)


def optimizers(me: Member) -> None:
    whole, theirs, model, optimizer = trained(me)
    names = [name for name, _ in whole.named_parameters()]
    wanted = {names[i]: entry for i, entry in theirs.state_dict()["state"].items()}

    def check(state: dict, keyed: dict) -> None:
        assert state["state"].keys() == keyed.keys()
        for key, entry in keyed.items():
            same(state["state"][key], entry)

    full = FSDP.optim_state_dict(model, optimizer)
    check(full, wanted)
    check(FSDP.optim_state_dict(model, optimizer, optimizer.state_dict()), wanted)
    assert full["param_groups"][0]["params"] == names
    other = wrapped(me, SEED + 1)
    other.load_state_dict(model.state_dict())
    again = adamw(other.parameters())
    again.load_state_dict(FSDP.optim_state_dict_to_load(other, again, full))
    train(me, whole, other, 0)
    check(FSDP.sharded_optim_state_dict(other, again), wanted)
    FSDP.set_state_dict_type(
        model, FULL, None, FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    )
    mine = FSDP.optim_state_dict(model, optimizer)
    assert me.rank == 0 or mine == {}
    FSDP.optim_state_dict_to_load(model, optimizer, mine, load_directly=True)
    FSDP.set_state_dict_type(model, SHARDED)
    rows = FSDP.optim_state_dict(model, optimizer)
    assert isinstance(rows["state"]["table.weight"]["exp_avg"], DTensor)
    check(rows, wanted)
    again.load_state_dict(FSDP.flatten_sharded_optim_state_dict(rows, model, optimizer))
    former = FSDP.full_optim_state_dict(model, optimizer)
    again.load_state_dict(FSDP.scatter_full_optim_state_dict(former or None, other, optim=again))
    again.load_state_dict(FSDP.shard_full_optim_state_dict(full, other, optim=again))
    by_number = model.gather_full_optim_state_dict(optimizer)
    assert (by_number is None) == (me.rank > 0)
    if by_number is not None:
        check(by_number, theirs.state_dict()["state"])
        rekeyed = FSDP.rekey_optim_state_dict(by_number, OptimStateKeyType.PARAM_NAME, whole)
        check(rekeyed, wanted)
        back = FSDP.rekey_optim_state_dict(rekeyed, OptimStateKeyType.PARAM_ID, whole)
        assert back["state"].keys() == by_number["state"].keys()
    by_number = me.everywhere(by_number)[0]
    again.load_state_dict(other.get_shard_from_optim_state_dict(by_number))
    check(FSDP.sharded_optim_state_dict(other, again), wanted)
    with pytest.raises(osdp.ShardingError, match="'nobody'"):
        FSDP.shard_full_optim_state_dict({"state": {"nobody": {}}}, other, optim=again)
    again.load_state_dict(FSDP.shard_full_optim_state_dict(full, other))
    check(FSDP.sharded_optim_state_dict(other, again), wanted)
    parts = {"a": FSDP(nn.Linear(2, 3), me.group), "b": FSDP(nn.Linear(3, 2), me.group)}
    apart = nn.ModuleDict({**parts, "c": nn.Linear(2, 2)})
    stepper = torch.optim.Adam(apart.parameters())
    apart["b"](apart["a"](apart["c"](torch.ones(1, 2)))).sum().backward()
    stepper.step()
    several = FSDP.optim_state_dict(apart, stepper)
    assert several["state"]["b.weight"]["exp_avg"].shape == (2, 3) and "c.bias" in several["state"]
    stepper.load_state_dict(FSDP.optim_state_dict_to_load(apart, stepper, several))
    with pytest.raises(osdp.ShardingError, match="Linear"):
        FSDP.optim_state_dict(nn.Linear(2, 2), stepper)


def test_optimizer_states_by_name(ranks):
    ranks(optimizers, world=2)


class TrainingState(enum.Enum):
    """As FairScale's."""

    IDLE = 1
    FORWARD = 2
    SUMMON_FULL_PARAMS = 3


def summoned(me: Member) -> None:
    model, wanted = wrapped(me), net(SEED).state_dict()
    model.assert_state(TrainingState.IDLE)
    with FSDP.summon_full_params(model, writeback=False), torch.no_grad():
        model.assert_state([TrainingState.IDLE, TrainingState.SUMMON_FULL_PARAMS])
        with pytest.raises(osdp.ShardingError, match=r"FORWARD, .* SUMMON_FULL_PARAMS"):
            model.assert_state(TrainingState.FORWARD)
        with pytest.raises(osdp.ShardingError, match="already active"), model.summon_full_params():
            pass
        close(model.head.weight, wanted["head.weight"], 1e-9, "head")
        model.head.weight.zero_()
    with model.summon_full_params(recurse=False, volatile=True), torch.no_grad():
        close(model.head.weight, wanted["head.weight"], 1e-9, "head")
        model.head.weight.zero_()
    with model.blocks[0].summon_full_params(), torch.no_grad():
        model.blocks[0].up.weight.fill_(3.0)
    assert bool((model.state_dict()["blocks.0.up.weight"] == 3.0).all())
    with pytest.raises(osdp.InvalidProblemError, match="rank0_only=True needs writeback=False"):
        model.summon_full_params(rank0_only=True).__enter__()
    outer = nn.ModuleDict({"a": model, "b": FSDP(nn.Linear(4, 4), me.group), "c": nn.Linear(2, 2)})
    with FSDP.summon_full_params(outer, rank0_only=True, writeback=False, offload_to_cpu=True):
        assert outer["b"].weight.shape == (4, 4) and model.table.weight.shape == (10, 6)
    shapes = []

    def halves(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            shapes.append(parameter.shape)
            nn.init.constant_(parameter, 0.5)

    assert model.apply(halves) is model
    assert all(
        bool((value == 0.5).all()) for name, value in model.state_dict().items() if "calls" not in name
    )
    assert (10, 6) in shapes
    assert FSDP.fsdp_modules(outer, root_only=True) == [model, outer["b"]]
    assert (
        len(FSDP.fsdp_modules(model)) == 6 and model.check_is_root() and not model.blocks[0].check_is_root()
    )
    model.append_shared_param(model.head.weight)
    assert len(model.non_shared_params()) == 1 and len(model.blocks[0].non_shared_params()) == 4
    assert model.extra_repr() == "world_size=2, units: 6 FULL_SHARD" and "Block(" in repr(model)
    assert model.params_with_grad == [] and model.reshard_after_forward is None
    for refused in (
        lambda: model.register_comm_hook(None, print),
        lambda: model.set_gradient_divide_factors(1, 2, True),
    ):
        with pytest.raises(osdp.ShardingError, match="is not supported: "):
            refused()


@pytest.mark.outcome("`summon_full_params` within itself", osdp.ShardingError)
def test_summoning_and_what_else_the_class_has(ranks):
    ranks(summoned, world=2)


def files(me: Member) -> None:
    model = wrapped(me)
    plan = osdp.Plan.uniform(describe_once(net(SEED), torch.zeros(2, 3, dtype=torch.long)), "FULL_SHARD", 2)
    sliced = FSDP(net(SEED + me.rank), me.group, plan=plan)
    for each in (model, sliced):
        local: dict[str, Tensor] = each.local_state_dict()
        told = me.everywhere((local, each.local_metadata_dict()))
        weights, metadata = zip(*told, strict=True)
        same(FSDP.consolidate_shard_weights(weights, metadata), net(SEED).state_dict())
        each.load_local_state_dict({name: value * 2 for name, value in local.items()})
        close(each.state_dict()["table.weight"], 2 * net(SEED).table.weight, 1e-9, "table")
    assert runtime_of(sliced).plan.choices["blocks.0.up"].granularity == 2
    weights[1].pop("inner.0.up.weight")
    assert "inner.0.up.weight" not in FSDP.consolidate_shard_weights(weights, metadata, strict=False)
    for broken, match in (
        ((weights, metadata), "has no 'inner"),
        ((weights, [{}, {}]), "does not come from osdp's"),
    ):
        with pytest.raises(osdp.FormatError, match=match):
            FSDP.consolidate_shard_weights(*broken)
    with pytest.raises(osdp.InvalidProblemError, match="pass both from every rank"):
        FSDP.consolidate_shard_weights(weights, metadata[:1])


@pytest.mark.outcome("local state dicts consolidated where a rank lacks a parameter", osdp.FormatError)
def test_a_file_per_rank(ranks):
    ranks(files, world=2)
