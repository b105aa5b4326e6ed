"""torch.nn.utils' functions on gradients and parameters, given the parts that a rank holds: as in one process."""

from __future__ import annotations

import math

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import Pair, close, naming
from support.worlds import worlds
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm  # as scripts do: before anything is sharded

import osdp

PLANS = {
    "NO_SHARD": "NO_SHARD",
    "FULL_SHARD": "FULL_SHARD",
    "HYBRID_SHARD": "HYBRID_SHARD",
    "slices along in": lambda d: plans.in_slices(d, "in"),
    "mixture": lambda d: plans.mixture(d, 3),
}


def pairs(me: Member):
    for name, plan in PLANS.items():
        with naming(name):
            hosts = {"ranks_per_host": 2} if name == "HYBRID_SHARD" and me.world == 4 else {}
            yield Pair(me, blocks.workload(), plan, **hosts)


def clip(me: Member) -> None:
    cases = [
        (1e-3, 2.0, None),
        (1e6, 2.0, False),
        (0.5, 1.0, True),
        (1e-3, 3.0, None),
        (0.01, math.inf, None),
    ]
    for pair in pairs(me):
        for step, (most, norm_type, foreach) in enumerate(cases):
            with naming(f"to {most}, order {norm_type}"):
                pair.backward(pair.data(step))
                norms = [
                    clip_grad_norm_(model.parameters(), most, norm_type, foreach=foreach)
                    for model, _ in pair.both
                ]
                close(norms[1], norms[0], 1e-9, "norm")
                pair.same_gradients()
                pair.update()
        pair.same_parameters()


@pytest.mark.outcome("`torch.nn.utils.clip_grad_norm_`, imported before or after sharding", "equal")
@pytest.mark.parametrize("world", worlds(4, more=(2, 3)))
def test_torchs_clipping_sees_all_ranks(ranks, world):
    ranks(clip, world=world)


def parts_of_models(me: Member) -> None:
    """Groups of parameters, one parameter of fewer rows than ranks, two models and a tensor of neither, in one call."""
    build = lambda: nn.Sequential(nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 5))  # noqa: E731
    torch.manual_seed(0)
    models = [(build(), build()) for _ in range(2)]
    x = torch.randn(2 * me.world, 6)
    for (whole, sharded), mode in zip(models, ("FULL_SHARD", "SHARD_GRAD_OP"), strict=True):
        sharded.load_state_dict(whole.state_dict())
        osdp.fully_shard(sharded, osdp.Plan.uniform(describe_once(sharded, x), mode), me.group)
        whole(x).square().sum().backward()
        (sharded(me.part(x)).square().sum() * me.world).backward()
    lone = nn.Parameter(torch.ones(3))
    lone.grad = torch.full((3,), 2.0)
    for choose in (
        lambda m: [m[0][0].bias],  # 2 rows: with 3 ranks one has none
        lambda m: [m[1][2].weight, lone, m[0][0].weight],
        lambda m: [p for model in m for p in model.parameters()],
        lambda m: m[0][2].weight,
    ):
        whole, sharded = (choose([pair[which] for pair in models]) for which in (0, 1))
        gradients = lambda ps: [p.grad for p in ([ps] if isinstance(ps, torch.Tensor) else ps)]  # noqa: E731
        close(get_total_norm(gradients(sharded)), get_total_norm(gradients(whole)), 1e-5, "get_total_norm")
        close(get_total_norm(sharded), get_total_norm(whole), 1e-5, "norm of the parameters")
        views = [g.detach() for g in gradients(sharded)]
        close(get_total_norm(views, math.inf), get_total_norm(gradients(whole), math.inf), 1e-5, "views")
        before = get_total_norm(gradients(whole))
        for turned in (lambda g: g.view(-1), lambda g: g.t()):
            close(
                get_total_norm([turned(g) for g in gradients(sharded)]),
                before,
                1e-5,
                "views of another shape",
            )
        close(clip_grad_norm_(sharded, 1e6), before, 1e-5, "norm")
    with pytest.raises(osdp.ShardingError, match=r"some of the rows of '2\.weight'"):
        get_total_norm([models[1][1][2].weight.grad[:, :1], lone.grad])
    norm = get_total_norm(gradients(models[0][0].parameters()))
    nn.utils.clip_grads_with_norm_(models[0][1].parameters(), 0.1, norm)
    close(get_total_norm(gradients(models[0][1].parameters())), torch.tensor(0.1), 1e-4, "after clipping")
    assert clip_grad_norm_((p for p in ()), 1.0) == 0.0
    with osdp.summon_full_params(models[0][1], with_grads=True, writeback=False):
        close(get_total_norm(gradients(models[0][1].parameters())), torch.tensor(0.1), 1e-4, "summoned")


@pytest.mark.outcome("`get_total_norm`, `clip_grads_with_norm_`; of groups, of several models", "equal")
@pytest.mark.parametrize("world", worlds(3, more=(2,)))
@pytest.mark.filterwarnings("ignore:.*empty generator")
def test_total_norm_of_parts(ranks, world):
    ranks(parts_of_models, world=world)


def not_finite(me: Member) -> list[str]:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    pair.backward(pair.data(0))
    if me.rank == 1:
        pair.sharded.head.weight.grad[0, 0] = torch.inf
    before = [p.grad.clone() for p in pair.sharded.parameters()]
    with pytest.raises(osdp.GradientError, match="on every rank") as caught:
        clip_grad_norm_(pair.sharded.parameters(), 1.0, error_if_nonfinite=True)
    assert all(torch.equal(b, p.grad) for b, p in zip(before, pair.sharded.parameters(), strict=True))
    with pytest.raises(osdp.ShardingError, match="positive norm type"):
        clip_grad_norm_(pair.sharded.parameters(), 1.0, 0.0)
    return [str(caught.value)]


@pytest.mark.outcome(
    "`clip_grad_norm_(error_if_nonfinite=True)`, one rank's part is infinite", osdp.GradientError
)
def test_a_norm_that_is_not_finite_is_told_on_all_ranks(ranks):
    messages = ranks(not_finite, world=2)
    assert messages[0] == messages[1]


def values(me: Member) -> None:
    pair = Pair(me, blocks.workload(), lambda d: plans.mixture(d, 3))
    pair.backward(pair.data(0))
    for model, _ in pair.both:
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    pair.same_gradients()
    vectors = (nn.utils.parameters_to_vector, lambda ps: nn.utils.vector_to_parameters(torch.zeros(9999), ps))
    for function in vectors:
        with pytest.raises(osdp.ShardingError, match=r"rank \d: parameters_to_vector.*summon_full_params"):
            function(pair.sharded.parameters())
    with osdp.summon_full_params(pair.sharded):
        got = nn.utils.parameters_to_vector(pair.sharded.parameters())
        close(got, nn.utils.parameters_to_vector(pair.whole.parameters()), 1e-9, "vector")
    pair.same_parameters()
    whole = Pair(me, blocks.workload(), "NO_SHARD")
    got = nn.utils.parameters_to_vector(whole.sharded.parameters())
    close(got, nn.utils.parameters_to_vector(whole.whole.parameters()), 1e-9, "vector")


@pytest.mark.outcome("`torch.nn.utils.clip_grad_value_`", "equal")
@pytest.mark.outcome(
    "`parameters_to_vector`, `vector_to_parameters` of sharded parameters", osdp.ShardingError
)
def test_values_and_vectors(ranks):
    ranks(values, world=2)
