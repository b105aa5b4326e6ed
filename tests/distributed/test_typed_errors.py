"""What cannot be right beside torch's own tools is an error of osdp that names the parameter; what can be, is right."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, close, naming
from support.said import ungathered
from support.workload import Workload, vectors
from torch import nn

import osdp

PLANS = {**{mode: mode for mode in plans.MODES}, "apart": lambda d: plans.uniform(d)["FULL_SHARD"]}
SLICES = {"slices": lambda d: plans.in_slices(d, "out")}


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def pair_of(me: Member, plan: object, make: Callable[[], nn.Module] = build) -> Pair:
    return Pair(me, Workload(make, vectors(6, 4)), plan)


def sharded(plan: str) -> bool:
    return plan != "NO_SHARD"


class Astray(nn.Module):
    """Reads a parameter that is gathered for another call: not when it was described, but from `stray` on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.stray = nn.Linear(6, 6), nn.Linear(6, 4), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.stray:
            x = x + self.last.weight.sum()
        return self.last(x)


class Hidden(nn.Module):
    """Keeps a tensor whose backward reads `inner`, and returns another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = nn.functional.linear(x.clone().requires_grad_() * 2, self.inner.weight).tanh()
        return self.last(x)


def unreadable(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan, Astray)
            pair.train(steps=1)
            pair.sharded.stray = pair.whole.stray = True
            if name in ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"):
                pair.train(steps=1)  # one unit: there when its first layer is
                continue
            with pytest.raises(
                osdp.ShardingError,
                match=ungathered(r"last\.weight") + r".*summon_full_params",
            ):
                pair.sharded(me.part(pair.data(0)[0][0]))
            pair.sharded.stray = pair.whole.stray = False
            pair.train(steps=1)


@pytest.mark.outcome(
    "a parameter read in forward by a module that did not when it was described", osdp.ShardingError
)
def test_a_read_of_what_is_not_gathered(ranks):
    ranks(unreadable, world=2)


def unreadable_in_backward(me: Member) -> None:
    pair = pair_of(me, PLANS["apart"], Hidden)
    for _ in range(2):
        pair.sharded(me.part(pair.data(0)[0][0]))
        with pytest.raises(osdp.ShardingError, match=ungathered(r"inner\.weight")):
            pair.sharded.kept.sum().backward()
        pair.sharded.zero_grad()
        pair.train(steps=1)


@pytest.mark.outcome(
    "backward from a tensor that left a module other than by its return value", osdp.ShardingError
)
def test_a_read_in_backward_of_what_is_not_gathered(ranks):
    ranks(unreadable_in_backward, world=2)


def penalty(me: Member) -> None:
    """An L2 term over model.parameters(), outside of forward: sharded ones are parts there."""
    for name, plan in {**PLANS, **SLICES}.items():
        with naming(name):
            pair = pair_of(me, plan)
            for alone in (False, True):
                for (model, _), loss in zip(pair.both, pair.forward(pair.data(0)), strict=True):
                    term = sum(p.square().sum() for p in model.parameters())
                    total = term if alone else loss + term
                    if sharded(name) and model is pair.sharded:
                        with pytest.raises(osdp.ShardingError, match=r"'\d\.(weight|bias)'.*weight_decay"):
                            total.backward()
                    else:
                        total.backward()
                if not sharded(name):
                    pair.same_gradients()
                for model, _ in pair.both:
                    model.zero_grad()
            pair.train(steps=1)


@pytest.mark.outcome(
    "an L2 term over `model.parameters()` in the loss, outside of forward, sharded", osdp.ShardingError
)
@pytest.mark.outcome("the same with NO_SHARD", "equal")
def test_a_penalty_on_the_weights_outside_of_forward(ranks):
    ranks(penalty, world=2)


def input_penalty(me: Member) -> None:
    """Gradient penalties: the second backward reads what the first one has gathered."""
    for name, plan in PLANS.items():
        for frozen in ((), ("2.",)):
            with naming(f"{name}, frozen: {frozen}"):
                pair = pair_of(me, plan)
                for step in range(3):
                    (x,), _ = pair.data(step)
                    for (model, _), mine in zip(pair.both, (x, me.part(x)), strict=True):
                        for key, parameter in model.named_parameters():
                            parameter.requires_grad_(not key.startswith(frozen or ("none",)))
                        mine = mine.clone().requires_grad_()
                        output = model(mine).sum(1)
                        (slope,) = torch.autograd.grad(output.sum(), mine, create_graph=True)
                        model(mine.detach())  # another forward in between
                        (slope.square().sum(1).mean() + (output.mean() if step else 0)).backward()
                    pair.same_gradients()
                    pair.update()
                pair.same_parameters()
                pair.train(steps=1)
                (x,), _ = pair.data(3)
                for (model, _), mine in zip(pair.both, (x, me.part(x)), strict=True):
                    # A gradient of a gradient that reaches no output of the model, and then a backward of it.
                    along = torch.ones_like(mine)
                    _, slope = torch.autograd.functional.jvp(model, mine, along, create_graph=True)
                    slope.square().sum(1).mean().backward()
                pair.same_gradients()
                assert osdp.sharding.sharded_model.runtime_of(pair.sharded).gathered_bytes() == 0


def layer(kind: str) -> nn.Module:
    """A model whose graph of the gradient begins with a node that reads a parameter itself."""
    torch.manual_seed(0)
    middle = {
        "layer norm": lambda: nn.LayerNorm(8),
        "RMS norm": lambda: nn.RMSNorm(8),
        "last": lambda: nn.Identity(),
        "convolution": lambda: nn.Sequential(nn.Unflatten(1, (8, 1)), nn.Conv1d(8, 8, 1), nn.Flatten()),
    }[kind]()
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), middle, nn.LayerNorm(8)).double()


def penalty_alone(me: Member) -> None:
    """A loss of the gradient alone, whose first node may read a parameter before any call's output is reached."""
    for kind in ("layer norm", "RMS norm", "last", "convolution"):
        for mode in ("FULL_SHARD", "SHARD_GRAD_OP"):
            with naming(f"{kind}, {mode}"):
                whole, model = layer(kind), layer(kind)
                plan = osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, 8).double()), mode)
                osdp.fully_shard(model, plan, process_group=me.group)
                torch.manual_seed(1)
                for data in torch.randn(2, 2 * me.world, 8).double():  # the second adds to what is kept
                    for each, mine in ((whole, data), (model, me.part(data))):
                        mine = mine.clone().requires_grad_()
                        (slope,) = torch.autograd.grad(each(mine).square().sum(), mine, create_graph=True)
                        slope.square().sum(1).mean().backward()
                sharded = osdp.sharding.sharded_model.runtime_of(model)
                for name, parameter in model.named_parameters():
                    wanted = whole.get_parameter(name).grad
                    wanted = torch.zeros_like(whole.get_parameter(name)) if wanted is None else wanted
                    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    close(sharded.gather_whole(name, grad), wanted, 1e-9, name)
                assert sharded.gathered_bytes() == 0


def test_a_loss_of_the_gradient_of_the_input_alone(ranks):
    ranks(penalty_alone, world=2)


def into_the_input(me: Member) -> None:
    """The first gradient goes into `x.grad`, not to the caller: by `inputs=`, or because all parameters are frozen."""
    for kind in ("layer norm", "last", "convolution"):
        for mode in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
            for frozen in (False, True):
                with naming(f"{kind}, {mode}, frozen: {frozen}"):
                    whole, model = layer(kind), layer(kind)
                    for each in (whole, model):
                        each.requires_grad_(not frozen)
                    plan = osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, 8).double()), mode)
                    osdp.fully_shard(model, plan, process_group=me.group)
                    torch.manual_seed(1)
                    for data in torch.randn(2, 2 * me.world, 8).double():
                        slopes = []
                        for each, mine in ((whole, data), (model, me.part(data))):
                            x = mine.clone().requires_grad_()
                            with warnings.catch_warnings(action="ignore"):  # of the cycle through x.grad
                                chosen = None if frozen else [x]
                                torch.autograd.backward(
                                    each(x).square().sum(), inputs=chosen, create_graph=True
                                )
                            slope, x.grad = x.grad, None
                            slope.square().sum(1).mean().backward()
                            slopes.append(x.grad)
                        close(slopes[1] / me.world, me.part(slopes[0]), 1e-9, "second gradient of the input")
                    sharded = osdp.sharding.sharded_model.runtime_of(model)
                    for name, parameter in model.named_parameters():
                        wanted = whole.get_parameter(name).grad
                        assert (parameter.grad is None) == (wanted is None) or parameter.numel() == 0, name
                        if wanted is not None:
                            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                            close(sharded.gather_whole(name, grad), wanted, 1e-9, name)
                    assert sharded.gathered_bytes() == 0


@pytest.mark.outcome(
    "`torch.autograd.backward(loss, inputs=[x], create_graph=True)`, then of `x.grad`", "equal"
)
def test_a_gradient_with_a_graph_in_the_inputs_grad(ranks):
    ranks(into_the_input, world=2)


@pytest.mark.outcome("a penalty on the gradient of the input (`create_graph=True`)", "equal")
def test_a_penalty_on_the_gradient_of_the_input(ranks):
    ranks(input_penalty, world=2)


def own_gradients(me: Member) -> None:
    for name, plan in {**PLANS, **SLICES}.items():
        with naming(name):
            pair = pair_of(me, plan)
            whole, mine = pair.forward(pair.data(0))
            parameters = list(pair.sharded.parameters())
            for create_graph in (False, True):
                with pytest.raises(osdp.ShardingError, match=r"'\d\.(weight|bias)'|slices"):
                    torch.autograd.grad(mine, parameters, create_graph=create_graph, retain_graph=True)
            if name not in SLICES:
                with osdp.no_sync(pair.sharded):
                    own = torch.autograd.grad(mine, parameters)
                for got, wanted in zip(
                    own, torch.autograd.grad(whole, list(pair.whole.parameters())), strict=True
                ):
                    close(me.mean(got), wanted, pair.tolerance, "own gradient")
            with pytest.raises(osdp.ShardingError, match=r"create_graph=True"):
                pair.forward(pair.data(0))[1].backward(create_graph=True)
            pair.sharded.zero_grad(), pair.whole.zero_grad()
            pair.train(steps=1)


@pytest.mark.outcome(
    "`torch.autograd.grad(loss, parameters)`, `backward(create_graph=True)`", osdp.ShardingError
)
def test_gradients_of_parameters_that_are_handed_out(ranks):
    ranks(own_gradients, world=2)


class InnerStep(nn.Module):
    """Meta-learning: its forward adapts its weight to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = nn.Linear(6, 6).double(), nn.Linear(6, 4).double()
        self.own_gradients: contextlib.AbstractContextManager[None] = contextlib.nullcontext()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.slow(x).tanh()
        with self.own_gradients:
            loss = self.fast(hidden).square().mean()
            (slope,) = torch.autograd.grad(loss, self.fast.weight, create_graph=True)
        return nn.functional.linear(hidden, self.fast.weight - slope).square().mean()


def inner_steps(me: Member) -> None:
    x = torch.randn(me.world, 3, 6, dtype=torch.double)
    whole = InnerStep()
    sum(whole(part) for part in x).div(me.world).backward()
    for mode in ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"):
        with naming(mode):
            model = copy.deepcopy(whole)
            osdp.fully_shard(
                model, osdp.Plan.uniform(osdp.describe(model, x[0]), mode), process_group=me.group
            )
            with pytest.raises(osdp.ShardingError, match=r"gradient of parameter 'fast.weight'.*no_sync"):
                model(x[me.rank])
            model.own_gradients = osdp.no_sync(model)
            model.zero_grad(), model(x[me.rank]).backward()
            for name, parameter in model.named_parameters():
                got = osdp.sharding.sharded_model.runtime_of(model).gather_whole(name, parameter.grad)
                close(got, whole.get_parameter(name).grad, 1e-9, name)


@pytest.mark.outcome(
    "`torch.autograd.grad` of parameters within a forward (meta-learning); within `no_sync` there",
    osdp.ShardingError,
)
def test_gradients_of_parameters_within_a_forward(ranks):
    ranks(inner_steps, world=2)


def loss_of(model: nn.Module, x: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.func.functional_call(model, given, (x,)).square().mean()


def functional(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan)
            (x,), _ = pair.data(0)
            output, part = pair.whole(x), me.part(x)
            for given in (dict(pair.sharded.named_parameters()), pair.sharded.state_dict()):
                called = torch.func.functional_call(pair.sharded, given, (part,))
                close(called, me.part(output), pair.tolerance, "functional_call")
            parts = {n: p.detach() for n, p in pair.sharded.named_parameters()}
            full = pair.sharded.state_dict()

            loss = partial(loss_of, pair.sharded, part)
            if sharded(name):
                with pytest.raises(osdp.ShardingError, match=r"'0\.weight' is replaced .*state_dict"):
                    loss(parts)
            with pytest.raises(osdp.ShardingError, match=r"'0\.weight'.*no_sync"):
                torch.func.grad(loss)(full)
            with osdp.no_sync(pair.sharded):
                own = torch.func.grad(loss)(full)
            output.square().mean().backward()
            for key, parameter in pair.whole.named_parameters():
                close(me.mean(own[key]), parameter.grad, pair.tolerance, key)
            pair.whole.zero_grad()
            mapped = torch.vmap(pair.sharded)(part)
            close(mapped, me.part(output), pair.tolerance, "vmap")
            mapped.square().mean().backward()
            pair.whole(x).square().mean().backward()
            pair.same_gradients()
            pair.whole.zero_grad(), pair.sharded.zero_grad()
            pair.train(steps=1)

    for split in ("out", "in"):
        with naming(f"slices along {split}"):
            pair = pair_of(me, lambda d, split=split: plans.in_slices(d, split))
            (x,), _ = pair.data(0)
            given = {n: 2 * p for n, p in pair.sharded.state_dict().items()}
            called = torch.func.functional_call(pair.sharded, given, (me.part(x),))
            wanted = torch.func.functional_call(pair.whole, given, (x,))
            close(called, me.part(wanted), pair.tolerance, "functional_call")


@pytest.mark.outcome(
    "`torch.vmap(model)`; `torch.func.functional_call` with full tensors or the model's own", "equal"
)
@pytest.mark.outcome(
    "`torch.func.functional_call` with parts; `torch.func.grad` of parameters", osdp.ShardingError
)
def test_functional_transforms(ranks):
    ranks(functional, world=2)


def of_one(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda sample: model(sample[None])[0]


def forward_derivative(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        output = model(torch.autograd.forward_ad.make_dual(x, 2 * x))
        return torch.autograd.forward_ad.unpack_dual(output).tangent.square().mean()


def mean_flow(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output, tangent = torch.func.jvp(model, (x,), (2 * x,))
    return (output - (output - tangent).detach()).square().mean()


DERIVATIVES: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "a detached tangent": mean_flow,
    "jvp": lambda m, x: torch.func.jvp(m, (x,), (2 * x,))[1].square().mean(),
    "forward_ad": forward_derivative,
    "jvp in vmap": lambda m, x: (
        torch.vmap(lambda v: torch.func.jvp(of_one(m), (v,), (v,))[1])(x).square().mean()
    ),
    "vjp": lambda m, x: torch.func.vjp(m, x)[1](torch.ones_like(m(x)))[0].square().mean(),
    "jacrev": lambda m, x: torch.vmap(torch.func.jacrev(of_one(m)))(x).square().mean(),
    "jacfwd": lambda m, x: torch.vmap(torch.func.jacfwd(of_one(m)))(x).square().mean(),
    "hessian": lambda m, x: torch.vmap(torch.func.hessian(lambda v: of_one(m)(v).square().sum()))(x).mean(),
}


def derivatives(me: Member) -> None:
    for plan in ("NO_SHARD", "FULL_SHARD"):
        pair = pair_of(me, plan)
        (x,), _ = pair.data(0)
        for name, loss_by in DERIVATIVES.items():
            with naming(f"{name}, {plan}"):
                loss_by(pair.whole, x).backward(), loss_by(pair.sharded, me.part(x)).backward()
                pair.same_gradients()
                pair.update()


@pytest.mark.outcome(
    "a loss of `torch.func.jvp` (MeanFlow), `jacrev`, `jacfwd`, `hessian`, `forward_ad`: derivatives by inputs",
    "equal",
)
def test_derivatives_by_inputs(ranks):
    ranks(derivatives, world=2)


def traced(me: Member) -> None:
    for name, plan in {**PLANS, **SLICES}.items():
        with naming(name):
            pair = pair_of(me, plan)
            x = me.part(pair.data(0)[0][0])
            if sharded(name):
                with pytest.raises(osdp.ShardingError, match=r"torch\.jit\.trace.*before fully_shard"):
                    torch.jit.trace(pair.sharded, (x,))
            pair.train(steps=1)


@pytest.mark.outcome("`torch.jit.trace(model)`, sharded", osdp.ShardingError)
def test_tracing(ranks):
    ranks(traced, world=2)


class Kept(nn.Module):
    """Keeps terms of its weights, which a script calls backward of by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 2), nn.Linear(2, 4)  # a rank's row broadcasts against both rows
        self.scale = nn.Parameter(torch.ones(6))
        self.terms: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.first.weight
        self.terms = {"square": weight.square().sum(), "scaled": (weight * self.scale).sum()}
        return self.last(self.first(x).tanh())


def scale_whole(description: osdp.ModelDescription) -> osdp.Plan:
    plan = osdp.Plan.uniform(description, "FULL_SHARD")
    return plan.replace(
        {o.name: osdp.Choice("NO_SHARD") for o in description.operators if "scale" in o.parameters}
    )


def kept_terms(me: Member) -> None:
    """By themselves they may read this rank's rows, which broadcast: another number. In one loss they are right."""
    plans_ = {**{mode: mode for mode in plans.MODES}, "whole scale": scale_whole}
    for name, plan in plans_.items():
        for term in ("square", "scaled"):
            with naming(f"{name}, {term}"):
                pair = pair_of(me, plan, Kept)
                pair.train(steps=1)
                for step in range(2):
                    for (model, _), loss in zip(pair.both, pair.forward(pair.data(step)), strict=True):
                        (loss + model.terms[term]).backward()
                    pair.same_gradients()
                    for model, _ in pair.both:
                        model.zero_grad()
                pair.forward(pair.data(0))
                if sharded(name):
                    with pytest.raises(osdp.ShardingError, match="a term that was kept from forward"):
                        pair.sharded.terms[term].backward()
                pair.sharded.zero_grad(), pair.whole.zero_grad()
                pair.train(steps=1)


@pytest.mark.outcome(
    "a term of a weight that is kept from forward, in the loss of the model's output", "equal"
)
@pytest.mark.outcome("its backward by itself, sharded", osdp.ShardingError)
def test_a_term_that_is_kept_from_forward(ranks):
    ranks(kept_terms, world=2)


def second_derivatives_of_slices(me: Member) -> None:
    pair = pair_of(me, SLICES["slices"])
    x = me.part(pair.data(0)[0][0]).requires_grad_()
    (slope,) = torch.autograd.grad(pair.sharded(x).square().sum(), x, create_graph=True)
    with pytest.raises(osdp.ShardingError, match="no second derivatives"):
        slope.square().sum().backward()
    pair.sharded.zero_grad()
    with pytest.raises(osdp.ShardingError, match=r"computed in slices.*torch\.func"):
        torch.func.jacrev(pair.sharded)(x.detach())
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(osdp.ShardingError, match="computed in slices"),
    ):
        pair.sharded(torch.autograd.forward_ad.make_dual(x.detach(), x.detach()))
    pair.train(steps=1)


@pytest.mark.outcome("a gradient penalty, or `torch.func`, of a weight in slices", osdp.ShardingError)
def test_second_derivatives_of_a_weight_in_slices(ranks):
    ranks(second_derivatives_of_slices, world=2)
