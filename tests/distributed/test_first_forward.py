"""A wrap without a sample: the first forward in training makes the plan, with the same losses and parameter objects."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from harness import Member
from support.nested import Net, net, train
from support.pair import SEED, adamw, close, held
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import StateDictType
from torch.nn.modules.module import register_module_forward_hook

import osdp
from osdp import _C
from osdp.sharding.sharded_model import runtime_of

FSDP = osdp.FullyShardedDataParallel


class Layers(nn.Module):
    """Its units are too large to travel together. A method reads a parameter, and forward another, but not always."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.first = nn.Linear(300, 300)
        self.rest = nn.Sequential(*(nn.Linear(300, 300) for _ in range(3)))

    def forward(self, x: Tensor, tied: bool = False) -> Tensor:
        x = self.rest(self.first(x))
        return x @ self.first.weight if tied else x

    def norm(self) -> Tensor:
        return self.first.bias.square().sum()


def places(model: nn.Module) -> dict[str, tuple[str, ...]]:
    return {o.name: o.gather_at for o in runtime_of(model).plan.description.operators if o.parameters}


def regrouped(me: Member) -> None:
    whole, inner = Layers(), Layers()
    parameters = list(inner.parameters())
    model = FSDP(inner, me.group)
    # AdamW's step is as long for a gradient of 1e-9 as for one of 1, with the sign that rounding gave it: hence eps.
    both = [(m, torch.optim.AdamW(m.parameters(), 1e-3, eps=1e-4)) for m in (whole, model)]
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    osdp.register_forward_method(model, "norm")
    before = {"first": ("",), **dict.fromkeys(("rest.0", "rest.1", "rest.2"), ("rest",))}
    assert places(model) == before
    torch.manual_seed(3)
    model.eval(), model(torch.randn(2, 300)), model.train()
    with torch.no_grad():
        model(torch.randn(2, 300))
    assert places(model) == before, "an evaluation plans nothing"
    runtime, rows = runtime_of(model).runtime, [p.data_ptr() for p in inner.parameters()]
    taken, graph = inner.first.forward, model.eval()(me.part(torch.randn(2 * me.world, 300)))
    model.train()
    for step in range(3):
        for micro in range(2):
            x = torch.randn(2 * me.world, 300)
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                losses = [m(d, tied=step == 1).square().mean() for m, d in ((whole, x), (model, me.part(x)))]
                for loss in losses:
                    loss.backward()
            close(me.mean(losses[1]), losses[0], 1e-5, f"loss of step {step}")
        for _, optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
    assert places(model) == {"first": ("",), **{name: (name,) for name in ("rest.0", "rest.1", "rest.2")}}
    assert len(model.plan.units) == 4 and type(inner) is Layers
    assert runtime_of(model).runtime is runtime and rows == [p.data_ptr() for p in inner.parameters()]
    for stale in (lambda: taken(torch.randn(2, 300)), lambda: graph.sum().backward()):
        with pytest.raises(osdp.ShardingError, match="travels in other units"):
            stale()
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    close(model.norm(), whole.norm(), 1e-4, "a method")
    assert FSDP.get_state_dict_type(model).state_dict_type is StateDictType.SHARDED_STATE_DICT
    state = model.state_dict()
    for name, value in whole.state_dict().items():
        close(state[name].full_tensor(), value, 1e-5, name)


def test_parameters_are_gathered_where_the_first_forward_reads_them(ranks):
    ranks(regrouped, world=2)


def others_at_first(me: Member) -> None:
    """Before the first forward a script replaces a layer, or calls the model with other tensors in its parameters' place."""
    for rows in (300, 20):
        plain, inner = Layers(), Layers()
        models = (plain, FSDP(inner, me.group))
        for model in models:
            torch.manual_seed(3)
            model.rest[2] = nn.Linear(300, rows)
        given = {name: 2 * value for name, value in plain.state_dict().items()}
        x = torch.randn(2, 300)
        calls = [torch.func.functional_call(m, given, (x,)) for m in (plain, inner)]
        close(calls[1], calls[0], 1e-5, "functional_call")
        for model in models:
            model(x).square().mean().backward()
        close(models[1](x), plain(x), 1e-5, "output")
        with osdp.summon_full_params(inner, with_grads=True):
            for got, wanted in zip(inner.parameters(), plain.parameters(), strict=True):
                close(got.grad, wanted.grad, 1e-5, "gradient")


def test_another_layer_or_other_tensors_before_the_first_forward(ranks):
    ranks(others_at_first, world=2)


def blocks_and_the_rest(me: Member) -> None:
    whole, model = net(SEED), net(SEED + me.rank)
    mesh = DeviceMesh.from_group(me.group, "cpu")
    for block in model.blocks:
        osdp.fully_shard(block, mesh=mesh)
    rows = [p.data_ptr() for p in model.blocks.parameters()]
    osdp.fully_shard(model, mesh=mesh)
    assert rows == [p.data_ptr() for p in model.blocks.parameters()], "rows that stay are not copied"
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    assert places(model)["inner.0.up"] == ("inner.0",) and places(model)["table"] == ("",)
    train(me, whole, model)
    assert set(places(model)["table"]) == {"table", "head"} and places(model)["inner.0.up"] == ("inner.0.up",)
    assert ("blocks.0.up", "blocks.0.down") in runtime_of(model).plan.units
    assert isinstance(model, osdp.FSDPModule) and isinstance(model, Net)


def test_marked_blocks_stay_units(ranks):
    ranks(blocks_and_the_rest, world=2)


def kept_as_it_is(me: Member) -> None:
    """Where watching would be seen, or cannot be done."""
    for register in (nn.Module.register_forward_hook, lambda _, hook: register_module_forward_hook(hook)):
        calls: list[nn.Module] = []
        hooked = net(SEED)
        handle = register(hooked.head, lambda module, *_, calls=calls: calls.append(module))
        model = FSDP(hooked, me.group)
        train(me, net(SEED), model, steps=2)
        handle.remove()
        assert calls.count(hooked.head) == 2 and not any(is_fake(p) for m in calls for p in m.parameters())
        assert places(model)["table"] == ("",)

    class Asks(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x * 2 if x.sum().item() > 0 else x

    layers = Asks(*(nn.Linear(300, 300) for _ in range(2)))
    model = FSDP(layers, me.group)
    x = torch.randn(2, 300)
    close(model(x), model(x), 1e-6, "output")
    assert places(model)["0"] == ("",)
    searches = FSDP(Asks(nn.Linear(4, 4), nn.Linear(4, 4)), me.group, memory="1GiB")
    with pytest.raises(osdp.DescribeError, match="depends on the values of tensors"):
        searches(torch.randn(2, 4))


def test_a_forward_that_cannot_be_watched(ranks):
    ranks(kept_as_it_is, world=2)


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another one, whose state is its own, as in frameworks."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        return self.inner.state


def searched(me: Member) -> None:
    """An optimizer has loaded its state before the rows are cut anew."""
    whole, model = net(SEED), net(SEED + me.rank)
    parameters = list(model.parameters())
    theirs = adamw(whole.parameters())
    tokens = torch.randint(10, (2, 4), generator=torch.Generator().manual_seed(2))
    whole(tokens).square().mean().backward()
    theirs.step(), theirs.zero_grad()
    model = FSDP(model, me.group, memory="1GiB", search={"modes": ["NO_SHARD"]})
    ours = adamw(model.parameters())
    model.load_state_dict(whole.state_dict())
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    wrapping = Wrapping(ours)
    assert model.plan.searched is None and {c.mode for c in model.plan.choices.values()} == {"FULL_SHARD"}
    train(me, whole, model, optimizer=ours, whole_optimizer=theirs)
    assert model.plan.searched is not None and model.plan.batch_size == 2 and wrapping.state is ours.state
    assert {c.mode for c in model.plan.choices.values()} == {"NO_SHARD"}
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_memory_searches_with_the_first_inputs(ranks):
    ranks(searched, world=2)


def searched_with_the_same_rows(me: Member) -> None:
    """Other modes with the same rows: the runtime, rows, gradients and optimizer states stay where they are."""
    whole, model = net(SEED), net(SEED + me.rank)
    theirs = adamw(whole.parameters())
    modes = {"modes": ["SHARD_GRAD_OP"], "batch_size": 2}
    model = FSDP(model, me.group, memory="1GiB", search=modes)
    ours = adamw(model.parameters())
    model.load_state_dict(whole.state_dict())
    tokens = torch.randint(10, (2, 4), generator=torch.Generator().manual_seed(2))
    for each in (whole, model):
        each.eval()(tokens).square().mean().backward()  # an evaluation, with gradients
        each.train()
    theirs.step(), ours.step()
    runtime, rows = runtime_of(model).runtime, [p.data_ptr() for p in model.parameters()]
    states = [s["exp_avg"].data_ptr() for s in ours.state.values()]
    close(model(tokens), whole(tokens), 1e-9, "output")
    assert {c.mode for c in model.plan.choices.values()} == {"SHARD_GRAD_OP"}
    assert runtime_of(model).runtime is runtime and rows == [p.data_ptr() for p in model.parameters()]
    assert states and states == [s["exp_avg"].data_ptr() for s in ours.state.values()]
    train(me, whole, model, optimizer=ours, whole_optimizer=theirs)


def test_a_searched_plan_that_keeps_rows_moves_nothing(ranks):
    ranks(searched_with_the_same_rows, world=2)


def gradients_of_moved_rows(me: Member) -> None:
    model = FSDP(net(SEED), me.group, memory="1GiB", search={"modes": ["NO_SHARD"]})
    tokens = torch.randint(10, (2, 4))
    model.eval()(tokens).sum().backward()
    model.train()
    with pytest.raises(osdp.ShardingError, match=r"table\.weight"):
        model(tokens)
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.grad.clone() for p in trained]
    model.eval()(tokens)
    assert all(torch.equal(b, p.grad) for b, p in zip(before, trained, strict=True))
    model.zero_grad()
    model.train()(tokens).sum().backward()
    assert {c.mode for c in model.plan.choices.values()} == {"NO_SHARD"}


def test_gradients_of_rows_that_move_are_not_dropped(ranks):
    ranks(gradients_of_moved_rows, world=2)


def other_units(me: Member) -> None:
    """`Runtime.regroup` by itself: what it refuses changes nothing."""
    layers = Layers()
    described = osdp.describe(layers, torch.randn(2, 300))
    osdp.fully_shard(layers, osdp.Plan.uniform(described), me.group)
    runtime, names = runtime_of(layers).runtime, list(runtime_of(layers).index)
    everything, x = list(range(len(names))), torch.randn(2, 300)
    full, some = _C.Mode.FULL_SHARD, everything[1:]
    for mode, indices, why in (
        (_C.Mode.NO_SHARD, everything, names[0]),
        (_C.Mode.HYBRID_SHARD, everything, names[0]),
        (full, some, names[0]),
        (full, [*everything, 1], names[1]),
    ):
        with pytest.raises(osdp.ShardingError, match=why):
            runtime.regroup([_C.UnitSpec("all", mode, indices)])
    with osdp.summon_full_params(layers), pytest.raises(osdp.ShardingError, match="summon_full_params"):
        runtime.regroup([_C.UnitSpec("all", full, everything)])
    with osdp.no_sync(layers):
        layers(x).sum().backward()
    with pytest.raises(osdp.ShardingError, match="kept under no_sync"):
        runtime.regroup([_C.UnitSpec("all", full, everything)])
    layers.zero_grad()
    layers(x).sum().backward()


def test_what_regrouping_refuses_changes_nothing(ranks):
    ranks(other_units, world=2)


def refused(me: Member) -> None:
    """The model goes on as it was."""
    model = FSDP(net(SEED), me.group, memory="1KiB")
    optimizer = torch.optim.Adagrad(model.parameters())
    tokens = torch.randint(10, (2, 4))
    for _ in range(2):
        with pytest.raises(osdp.InfeasibleError, match="the smallest"):
            model(tokens)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.state[next(model.parameters())]["rows"] = torch.zeros(3)
    with pytest.raises(osdp.ShardingError, match=r"'rows'.*'table.weight'"):
        model(tokens)
    del optimizer
    with pytest.raises(osdp.ShardingError, match="first forward, which is being compiled"):
        torch.compile(model, backend="eager")(tokens)
    model.eval()
    close(model(tokens), net(SEED).eval()(tokens), 1e-9, "output")


def test_a_plan_that_cannot_be_made_changes_nothing(ranks):
    ranks(refused, world=2)


def made_with_states(me: Member) -> None:
    """Adagrad's constructor makes states, which nothing tells of before its first step."""
    model = FSDP(net(SEED), me.group, memory="1GiB", search={"modes": ["NO_SHARD"]})
    early = torch.optim.Adagrad(model.parameters())
    tokens = torch.randint(10, (2, 4))
    model(tokens).square().mean().backward()
    assert model.plan.searched is not None
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(osdp.ShardingError, match=r"Adagrad.*'sum'"):
        early.step()
    assert all(torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
    torch.optim.Adagrad(model.parameters()).step()


def test_an_optimizer_that_was_made_with_states_before_rows_moved(ranks):
    ranks(made_with_states, world=2)


def within_a_transform(me: Member) -> None:
    """torch.func's transforms exchange no parameters, and leave graphs: units stay as they are. The process ended by a
    signal, and where another forward came before backward (MeanFlow) the graph was one of before."""
    for wrap in (lambda m: FSDP(m, me.group), lambda m: osdp.fully_shard(m, process_group=me.group)):
        whole, model = Layers(), wrap(Layers())
        x = torch.randn(2 * me.world, 300, generator=torch.Generator().manual_seed(3))
        derivatives = [
            torch.func.jvp(m, (given,), (given,))[1] for m, given in ((whole, x), (model, me.part(x)))
        ]
        close(derivatives[1], me.part(derivatives[0]), 1e-5, "jvp")
        outputs = [torch.vmap(m)(given) for m, given in ((whole, x), (model, me.part(x)))]
        close(outputs[1], me.part(outputs[0]), 1e-5, "vmap")
        assert places(model)["rest.0"] == ("rest",)
        for m, given, derivative in ((whole, x, derivatives[0]), (model, me.part(x), derivatives[1])):
            (m(given).square().mean() + derivative.square().mean()).backward()
        for name, parameter in model.named_parameters():
            got = runtime_of(model).gather_whole(name.removeprefix("module."), held(parameter.grad))
            close(got, whole.get_parameter(name.removeprefix("module.")).grad, 1e-5, name)
        assert places(model)["rest.0"] == ("rest",)


def test_the_first_forward_within_a_transform(ranks):
    ranks(within_a_transform, world=2)
