"""Wraps around parts of a model and around the model: units as marked, gradients of one process."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from harness import Member
from support.nested import WIDTH, Block, Net, net, train
from support.pair import SEED, adamw, close
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy, size_based_auto_wrap_policy

import osdp
from osdp.fsdp.wrap import auto_wrap, enable_wrap, wrap
from osdp.sharding.sharded_model import runtime_of

FSDP = osdp.FullyShardedDataParallel


def whole_and(make, me: Member) -> tuple[Net, nn.Module]:
    whole = net(SEED)
    return whole, make(net(SEED + me.rank).double())


def by_hand(me: Member, strategy: ShardingStrategy) -> None:
    def part(module: nn.Module) -> nn.Module:
        return FSDP(module.double(), me.group, sharding_strategy=strategy)

    whole, parts = net(SEED), net(SEED + me.rank, part)
    assert parts.blocks[0].up.weight.shape == (2 * WIDTH // me.world, WIDTH)
    optimizer = adamw(parts.parameters())  # before the whole is wrapped
    model = FSDP(parts, me.group)
    assert [type(b) for b in model.blocks] == [FSDP] * 3 and isinstance(model.inner[1], FSDP)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in whole.named_parameters()]
    assert model.plan.choices["blocks.0.up"].mode == strategy.name
    with pytest.raises(
        osdp.ShardingError,
        match=r"outermost wrap: 'blocks\.0'",
    ):
        model.blocks[0].no_sync()
    units = {unit for unit in model.plan.units if len(unit) > 1}
    assert units == {
        *((f"blocks.{i}.up", f"blocks.{i}.down") for i in range(3)),
        ("inner.0.up", "inner.0.down"),
        ("inner.1.up", "inner.1.down"),
    }
    assert model.blocks[0].rank == me.rank and model.blocks[0].plan == model.plan
    train(me, whole, model, optimizer=optimizer)
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    close(model.blocks[1](x), whole.blocks[1](x), 1e-9, "a part by itself")


@pytest.mark.parametrize(
    ("world", "strategy"), [(2, ShardingStrategy.FULL_SHARD), (3, ShardingStrategy.SHARD_GRAD_OP)]
)
@pytest.mark.outcome("`FullyShardedDataParallel` around parts of a model and around the model", "equal")
def test_parts_wrapped_by_hand_and_the_whole(ranks, world, strategy):
    ranks(by_hand, strategy, world=world)


def used_before(me: Member) -> None:
    """A part is trained by itself, with an optimizer; then the whole is wrapped, in another mode."""
    whole = net(SEED)
    model = net(SEED + me.rank)
    parameters = list(model.parameters())
    model.inner = FSDP(model.inner, me.group)
    optimizer = adamw(model.inner.parameters())
    theirs = adamw(whole.inner.parameters())
    torch.manual_seed(5)
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    for part, stepper in ((whole.inner, theirs), (model.inner, optimizer)):
        part(x).sum().backward()
        stepper.step()
        stepper.zero_grad()
    wrapped = FSDP(model, me.group, sharding_strategy="SHARD_GRAD_OP")
    assert all(a is b for a, b in zip(parameters, wrapped.parameters(), strict=True))
    train(me, whole, wrapped)


def test_a_part_that_was_trained_by_itself(ranks):
    ranks(used_before, world=2)


def refused(me: Member) -> None:
    """Nothing is changed: the parts go on as they were."""
    model = net(SEED + me.rank)
    model.inner = FSDP(model.inner, me.group)
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    before = model.inner(x)
    bad = osdp.Plan.uniform(nn.Linear(2, 2))
    for named, error, match in (
        ({"plan": bad}, osdp.PlanMismatchError, "only in the"),
        (
            {"mixed_precision": True, "memory": "1GiB"},
            osdp.ShardingError,
            "'inner' was wrapped with mixed_precision=None",
        ),
    ):
        with pytest.raises(error, match=match):
            FSDP(model, **{"process_group": me.group, **named})
        assert torch.equal(model.inner(x), before)
    with (
        model.inner.summon_full_params(),
        pytest.raises(osdp.ShardingError, match="inside summon_full_params"),
    ):
        FSDP(model, me.group)
    assert torch.equal(model.inner(x), before)
    planned = net(SEED + me.rank)
    osdp.fully_shard(planned.inner, osdp.Plan.uniform(planned.inner), me.group)
    with pytest.raises(osdp.ShardingError, match=r"'inner', .* already sharded"):
        FSDP(planned, me.group)


@pytest.mark.outcome("wraps of one model under a plan in different precisions", osdp.ShardingError)
def test_what_cannot_be_one_model_is_refused_and_the_parts_stay(ranks):
    ranks(refused, world=2)


class Mixed(nn.Sequential):
    """Its middle part computes in bfloat16, and what is in it in another part of its own."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        super().__init__(nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, WIDTH))


def other_precisions(me: Member) -> None:
    low = osdp.MixedPrecision(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    whole, model = Mixed(), Mixed()
    model[1][2] = FSDP(model[1][2], me.group)  # in float32: it casts nothing
    model[1] = FSDP(model[1], me.group, mixed_precision=low)
    model[1].module[1].register_forward_hook(lambda module, args, output: output.float())
    wrapped = FSDP(model, me.group)
    parts = [copy.deepcopy(whole[1][0]).bfloat16(), copy.deepcopy(whole[1][1])]
    torch.manual_seed(3)
    x = torch.randn(4 * me.world, WIDTH)
    y = parts[1](parts[0](whole[0](x).bfloat16())).float()
    loss = whole[2](whole[1][2](y)).square().mean()
    # A batch norm's statistics are a rank's own, so every rank gets the whole batch.
    mine = wrapped(x).square().mean()
    close(mine, loss, 1e-6, "loss")
    loss.backward()
    mine.backward()
    gradients = {**dict(whole.named_parameters()), "1.0.weight": parts[0].weight, "1.0.bias": parts[0].bias}
    gradients |= {"1.1.weight": parts[1].weight, "1.1.bias": parts[1].bias}
    runtime = runtime_of(wrapped)
    for name, parameter in wrapped.named_parameters():
        assert parameter.dtype == torch.float32
        full = runtime.gather_whole(name, parameter.grad)
        close(full, gradients[name].grad.float(), 1e-6, name)


def test_parts_in_other_precisions(ranks):
    ranks(other_precisions, world=2)


def ignoring(me: Member) -> None:
    """What is ignored is each rank's own: other values, gradients that nobody averages."""
    mesh = DeviceMesh.from_group(me.group, "cpu")

    def build() -> nn.Sequential:
        model = Mixed()
        model[1][0].weight.data.fill_(me.rank)
        return model

    def by_function(model: nn.Sequential) -> nn.Module:
        own = {*model[1].parameters()}
        for part in (model[0], model[2]):
            osdp.fully_shard(part, mesh=mesh, ignored_params=own)
        return osdp.fully_shard(model, mesh=mesh, ignored_params=own)

    for way in (
        lambda m: FSDP(m, me.group, ignored_modules=[m[1]], auto_wrap_policy=ModuleWrapPolicy({nn.Linear})),
        lambda m: FSDP(m, me.group, ignored_states=m[1].parameters()),
        by_function,
    ):
        whole, model = build(), build()
        parameters, order = list(model.parameters()), list(whole.state_dict())
        wrapped = way(model)
        assert all(a is b for a, b in zip(parameters, wrapped.parameters(), strict=True))
        assert model[1][0].weight.shape == (WIDTH, WIDTH) and type(model[1][0]) is nn.Linear
        optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (whole, wrapped)]
        torch.manual_seed(4)
        for _ in range(2):
            x = torch.randn(4, WIDTH)
            for each, optimizer in zip((whole, wrapped), optimizers, strict=True):
                optimizer.zero_grad()
                each(x).square().mean().backward()
            close(model[1][0].weight.grad, whole[1][0].weight.grad, 1e-6, "a gradient of this rank's own")
            for p in [*whole[0].parameters(), *whole[2].parameters()]:
                p.grad = me.mean(p.grad)
            for optimizer in optimizers:
                optimizer.step()
        FSDP.set_state_dict_type(wrapped, StateDictType.FULL_STATE_DICT)
        state = wrapped.state_dict()
        assert list(state) == order
        for name, value in whole.state_dict().items():
            close(state[name], value, 1e-6, name)
        wrapped.load_state_dict(state)
    with pytest.raises(osdp.ShardingError, match=r"1\.0\.bias"):
        osdp.save(wrapped, None, "nowhere")
    with pytest.raises(osdp.InvalidProblemError, match=r"ignored_modules .* str"):
        FSDP(build(), me.group, ignored_modules=["1"])
    model = build()
    model[0] = FSDP(model[0], me.group)
    with pytest.raises(osdp.InvalidProblemError, match="ignored but is already sharded"):
        FSDP(model, me.group, ignored_modules=[model[0]])
    FSDP(model, me.group, ignored_modules=[model[1]])


def test_what_is_ignored_stays_a_ranks_own(ranks):
    ranks(ignoring, world=2)


def wrapped_inside_ignored(me: Member) -> None:
    whole, model = Mixed().double(), Mixed().double()
    del whole[1][1], model[1][1]  # batch norm: its statistics are a rank's own
    model[1][1] = FSDP(model[1][1], me.group)
    wrapped = FSDP(model, me.group, ignored_modules=[model[1]])
    assert len(model[1][0].weight) == WIDTH  # ignored
    assert len(model[1][1].module.weight) == WIDTH // 2  # wrapped by itself
    torch.manual_seed(4)
    x = torch.randn(2 * me.world, WIDTH).double()
    for _ in range(2):
        whole(x).square().mean().backward()
        wrapped(me.part(x)).square().mean().backward()
    with osdp.summon_full_params(wrapped, with_grads=True):
        for (name, p), mine in zip(whole.named_parameters(), wrapped.parameters(), strict=True):
            gradient = mine.grad if not name.startswith("1.0.") else me.mean(mine.grad)
            close(gradient, p.grad, 1e-9, name)


def test_a_wrapped_part_of_an_ignored_module(ranks):
    ranks(wrapped_inside_ignored, world=2)


def policies(me: Member) -> None:
    def blocks(module: nn.Module, recurse: bool, unwrapped_params: int, module_is_root: bool) -> bool:
        return recurse or isinstance(module, Block)

    for policy, mode in (
        (ModuleWrapPolicy({Block}), "FULL_SHARD"),
        (blocks, "FULL_SHARD"),
        (functools.partial(size_based_auto_wrap_policy, min_num_params=140), "FULL_SHARD"),
        (
            CustomPolicy(lambda m: {"sharding_strategy": "SHARD_GRAD_OP"} if isinstance(m, Block) else False),
            "SHARD_GRAD_OP",
        ),
    ):
        whole, model = whole_and(functools.partial(FSDP, process_group=me.group, auto_wrap_policy=policy), me)
        assert ("blocks.0.up", "blocks.0.down") in model.plan.units
        assert (
            model.plan.choices["blocks.0.up"].mode == mode
            and model.plan.choices["table"].mode == "FULL_SHARD"
        )
        assert isinstance(model.blocks[0], FSDP) and isinstance(model.inner[0], FSDP)
    train(me, whole, model, steps=2)


def test_policies_mark_units(ranks):
    ranks(policies, world=2)


class Fairseqs(FSDP):
    """As fairseq has it: a class of its own, with an argument of its own."""

    def __init__(self, *args, use_sharded_state: bool = False, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.use_sharded_state = use_sharded_state

    @property
    def unwrapped_module(self) -> nn.Module:
        return self.module.module if self.flatten_parameters else self.module

    def state_dict(self, destination=None, prefix="", keep_vars=False):
        state = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        return state if self.rank == 0 else destination or {}


def annotated(me: Member) -> None:
    plain = net(SEED, wrap)
    assert not any(isinstance(m, FSDP) for m in plain.modules())
    with enable_wrap(wrapper_cls=Fairseqs, process_group=me.group, flatten_parameters=True):
        unwrapped = net(SEED, wrap)
        for part in unwrapped.modules():  # as fairseq does before each wrap
            if isinstance(part, FSDP):
                part._reset_lazy_init()
        model = wrap(unwrapped, use_sharded_state=True)
        assert model.unwrapped_module is unwrapped
        assert model.use_sharded_state and not model.blocks[0].use_sharded_state
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=140)
        chosen = auto_wrap(nn.Sequential(Block(), nn.Linear(2, 2)), policy)
        with (
            pytest.raises(osdp.InvalidProblemError, match="enable_wrap does not nest"),
            enable_wrap(wrapper_cls=FSDP),
        ):
            pass
    idle = FSDP(nn.Sequential(FSDP(nn.Tanh(), me.group), FSDP(nn.Linear(2, 2), me.group)), me.group)
    assert idle(torch.ones(1, 2)).shape == (1, 2) and isinstance(idle[0], FSDP)
    with pytest.raises(osdp.ShardingError, match="not part of a sharded model"):
        FSDP(nn.Tanh(), me.group).clip_grad_norm_(1.0)
    assert isinstance(chosen[0], Fairseqs) and not isinstance(chosen[1], FSDP)
    state, wanted = model.state_dict(), net(SEED).state_dict()
    assert not state if me.rank else list(state) == list(wanted)
    x = torch.randint(10, (2, 3))
    close(model(x), net(SEED)(x), 1e-9, "output")


def test_annotations_and_subclasses(ranks):
    ranks(annotated, world=2)


def in_the_middle(me: Member) -> None:
    """An exception in a part's forward or backward: the next step is right."""
    whole, model = whole_and(lambda m: FSDP(m, me.group, auto_wrap_policy=ModuleWrapPolicy({Block})), me)
    tokens = torch.randint(10, (2, 3))

    def fails(*_: object) -> None:
        raise ValueError("on purpose")

    handle = model.inner[0].down.register_forward_hook(fails)
    with pytest.raises(ValueError, match="on purpose"):
        model(tokens)
    handle.remove()
    handle = model.blocks[1].register_full_backward_hook(fails)
    with pytest.raises(ValueError, match="on purpose"):
        model(tokens).sum().backward()
    handle.remove()
    assert runtime_of(model).gathered_bytes() == 0
    model.zero_grad()
    whole.load_state_dict(model.state_dict())
    train(me, whole, model)


def test_exceptions_in_the_middle(ranks):
    ranks(in_the_middle, world=2)
