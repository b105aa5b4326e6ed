"""What a script adds to a sharded model, replaces or moves in it, trains as in one process, or is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import Pair, adamw, naming
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import osdp
from osdp.sharding.sharded_model import runtime_of

Change = Callable[[nn.Module], object]
WIDE, WORDS = blocks.HIDDEN, blocks.VOCABULARY


class Adapted(nn.Module):
    """A frozen layer with a trained product of low rank beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False, dtype=torch.float64)
        self.up = nn.Linear(2, base.out_features, bias=False, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class LowRank(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rows, 2, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(2, columns, dtype=torch.float64))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.a @ self.b


def new_head(model: nn.Module) -> None:
    model.head = nn.Linear(WIDE, WORDS, dtype=torch.float64)


def adapter(model: nn.Module) -> None:
    model.blocks[0].up = Adapted(model.blocks[0].up)


def one_more(model: nn.Module) -> None:
    model.blocks.append(blocks.Block().double())


def put_in_between(model: nn.Module) -> None:
    model.blocks.insert(1, blocks.Block().double())


def moved(model: nn.Module) -> None:
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]


def one_less(model: nn.Module) -> None:
    del model.blocks[1]


def over_another(model: nn.Module) -> None:
    model.norm.bias = nn.Parameter(torch.randn(WIDE, dtype=torch.float64))


def deleted_and_made_anew(model: nn.Module) -> None:
    del model.norm.weight
    model.norm.register_parameter("weight", nn.Parameter(torch.randn(WIDE, dtype=torch.float64)))


def parametrised(model: nn.Module) -> None:
    parametrize.register_parametrization(
        model.blocks[1].up, "weight", LowRank(blocks.INNER, WIDE), unsafe=True
    )


def buffer(model: nn.Module) -> None:
    model.register_buffer("drawn", torch.randn(3))


CHANGES: list[Change] = [
    new_head, adapter, one_more, put_in_between, moved, one_less, over_another, deleted_and_made_anew,
    buffer,
]  # fmt: skip


def change_both(pair: Pair, change: Change) -> None:
    """Ranks draw different values: rank 0's count."""
    torch.manual_seed(3)
    change(pair.whole)
    torch.manual_seed(3 + pair.me.rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change(pair.sharded)
    pair.whole_optimizer, pair.sharded_optimizer = (adamw(m.parameters()) for m in (pair.whole, pair.sharded))
    pair.both = ((pair.whole, pair.whole_optimizer), (pair.sharded, pair.sharded_optimizer))


def clipped(pair: Pair) -> None:
    pair.backward(pair.data(8))
    whole = nn.utils.clip_grad_norm_(pair.whole.parameters(), 0.01)
    torch.testing.assert_close(osdp.clip_grad_norm_(pair.sharded, 0.01), whole)
    pair.same_gradients()
    pair.update()


PLANS = {
    **{mode: lambda d, mode=mode: plans.apart(osdp.Plan.uniform(d, mode)) for mode in plans.MODES},
    "few units": "FULL_SHARD",
    "HYBRID_SHARD": "HYBRID_SHARD",
    "recomputed": lambda d: plans.recomputed(osdp.Plan.uniform(d, "FULL_SHARD"), "regather"),
}


def grown(me: Member, name: str) -> None:
    lines = {"ranks_per_host": 2} if name == "HYBRID_SHARD" else {}
    for change in CHANGES:
        with naming(change.__name__):
            pair = Pair(me, blocks.workload(), PLANS[name], **lines)
            pair.train(steps=1)
            pair.backward(pair.data(5))  # gradients that were there before are nobody's afterwards
            change_both(pair, change)
            for model, _ in pair.both:
                model.zero_grad()
            pair.train(steps=2)
            clipped(pair)
            pair.train(steps=1, micros=2, no_sync=True)


@pytest.mark.outcome("a module or parameter added, replaced, moved or deleted after `fully_shard`", "equal")
@pytest.mark.parametrize("name, world", [(n, {"HYBRID_SHARD": 4, "FULL_SHARD": 3}.get(n, 2)) for n in PLANS])
def test_what_is_added_trains_as_in_one_process(ranks, name, world):
    ranks(grown, name, world=world)


def removed_before_clipping(me: Member) -> None:
    """The gradients that a deleted module had do not count, whether or not a forward has been since."""
    for change in (one_less, new_head):
        for forwards in (0, 6):
            with naming(f"{change.__name__}, {forwards} forwards later"):
                pair = Pair(me, blocks.workload(), PLANS["FULL_SHARD"])
                pair.train(steps=10)
                pair.backward(pair.data(5))
                change_both(pair, change)
                for step in range(forwards):
                    pair.forward(pair.data(step))
                whole = nn.utils.clip_grad_norm_(pair.whole.parameters(), 0.01)
                torch.testing.assert_close(osdp.clip_grad_norm_(pair.sharded, 0.01), whole)
                pair.same_gradients()


def test_gradients_of_what_was_removed_do_not_count(ranks):
    ranks(removed_before_clipping, world=2)


def kept(me: Member, directory: str) -> None:
    """Saved right after it was added, and after training; read by one process and by ranks."""
    for name in ("NO_SHARD", "FULL_SHARD"):
        for steps in (0, 2):
            with naming(f"{name}, {steps} steps"):
                pair = Pair(me, blocks.workload(), PLANS[name])
                change_both(pair, new_head), change_both(pair, adapter)
                if steps:
                    pair.train(steps=steps)
                path = f"{directory}/{name}-{steps}"
                osdp.save(pair.sharded, pair.sharded_optimizer, path)
                alone = blocks.workload().model(1, torch.float64)
                new_head(alone), adapter(alone)
                osdp.load(alone, adamw(alone.parameters()), path, process_group=me.group)
                for key, value in pair.whole.state_dict().items():
                    torch.testing.assert_close(alone.state_dict()[key], value, rtol=1e-9, atol=1e-9)
                other = Pair(me, blocks.workload(), PLANS[name])
                change_both(other, new_head), change_both(other, adapter)
                osdp.load(other.sharded, other.sharded_optimizer, path)
                other.sharded.load_state_dict(other.sharded.state_dict())
                other.whole, other.whole_optimizer = pair.whole, pair.whole_optimizer
                other.both = ((pair.whole, pair.whole_optimizer), *other.both[1:])
                other.train(steps=1)


def test_what_is_added_is_saved_and_loaded(ranks, tmp_path: Path):
    ranks(kept, str(tmp_path), world=2)


def through_the_class(me: Member) -> None:
    """On FullyShardedDataParallel it is the module inside that gets it; computed in bf16 as the rest is."""
    policy = osdp.MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    model = osdp.FullyShardedDataParallel(
        nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), me.group, mixed_precision=policy
    )
    model(torch.randn(4, 6)).float().sum().backward()  # what is added before is planned with the rest
    model.zero_grad()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.add_module("1", nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
        model[1][0].register_buffer("kept", torch.rand(3))
        torch.manual_seed(me.rank)
        assert model(torch.randn(4, 6)).dtype == torch.bfloat16
        assert any("'1.0.weight' and 3 more parameters were added" in str(w.message) for w in caught) == (
            me.rank == 0
        )
    model(torch.randn(4, 6)).float().square().sum().backward()
    assert (
        model.module[1][0].weight.dtype == torch.float32 and model.module[1][0].kept.dtype == torch.bfloat16
    )
    assert model.state_dict()["1.0.kept"].dtype == torch.float32
    for parameter in model[1].parameters():
        values = me.everywhere((parameter.detach(), parameter.grad))
        assert all(torch.equal(a, b) for other in values for a, b in zip(values[0], other, strict=True))
    model[1][0](torch.randn(2, 8, dtype=torch.bfloat16)).sum().backward()  # by itself
    model.extra = nn.Parameter(torch.zeros(3))
    assert model.module.extra is model.extra and "extra" in model.state_dict()
    del model.extra
    assert "extra" not in model.state_dict()


def test_the_class_and_mixed_precision(ranks):
    ranks(through_the_class, world=2)


# --- refused


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.grows = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.grows:
            self.late = nn.Parameter(torch.ones(4))
            self.register_buffer("cache", torch.zeros(len(x)))
        return self.layer(x)


def small(me: Member, mode: str = "FULL_SHARD") -> nn.Module:
    model = Lazy()
    return osdp.fully_shard(model, osdp.Plan.uniform(describe_once(model, torch.randn(2, 4)), mode), me.group)


def refused(me: Member) -> None:
    x = torch.randn(2, 4)

    def unregistered(model: nn.Module) -> None:
        model.layer._parameters["bias"] = nn.Parameter(torch.zeros(4))

    def a_part(model: nn.Module) -> None:
        model.layer.weight = nn.Parameter(torch.zeros_like(model.layer.weight))

    def with_a_gradient(model: nn.Module) -> None:
        model.late = nn.Parameter(torch.zeros(4))
        model.late.grad = torch.ones(4)

    def grow(model: nn.Module) -> None:
        model.grows = True

    for change, match in (
        (unregistered, r"'layer\.bias' was put into the model.*without being registered"),
        (a_part, r"'layer\.weight' (was|is) replaced by a (parameter|tensor)"),
        (lambda m: prune.l1_unstructured(m.layer, "weight", 0.5), r"'layer\.weight' was pruned"),
        (lambda m: parametrizations.weight_norm(m.layer), r"'layer\.weight' was pruned, normalised"),
        (lambda m: nn.utils.weight_norm(m.layer), r"'layer\.weight' was pruned, normalised"),
        (with_a_gradient, r"'late' was added after fully_shard and already has a gradient"),
        (grow, r"'late' was created during a forward"),
    ):
        for sharded_first in (False, True):
            model = small(me)
            if sharded_first:
                model(x)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                change(model)
            with naming(match), pytest.raises(osdp.ShardingError, match=match):
                model(x)
            if change not in (grow,):
                with naming(match), pytest.raises(osdp.ShardingError, match=match):
                    model.state_dict()
    model = nn.Sequential(nn.Linear(4, 4))
    choice = {"0": osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=1, split="out")}
    osdp.fully_shard(
        model, osdp.Plan.uniform(describe_once(model, x), "FULL_SHARD").replace(choice), me.group
    )
    model[0].bias = nn.Parameter(torch.ones(4))
    with pytest.raises(osdp.ShardingError, match=r"'0' .* its bias was replaced"):
        model(x)

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    osdp.fully_shard(model, plans.apart(osdp.Plan.uniform(describe_once(model, x))), me.group)
    model[1].weight = model[0].weight
    with pytest.raises(osdp.ShardingError, match=r"'1\.weight' was tied to '0\.weight' after fully_shard"):
        model(x)


@pytest.mark.outcome("parameters of a plan that are tied after `fully_shard`", osdp.ShardingError)
@pytest.mark.outcome("a parameter written to `module._parameters` directly", osdp.ShardingError)
@pytest.mark.outcome("a parameter created in a forward", osdp.ShardingError)
@pytest.mark.outcome(
    "`prune`, `weight_norm` or another parametrisation of a shard's values", osdp.ShardingError
)
def test_what_cannot_be_taken_in(ranks):
    ranks(refused, world=2)


def different(me: Member) -> None:
    model = small(me)
    model.late = nn.Linear(4, 2 + me.rank)
    with pytest.raises(osdp.DisagreementError, match=r"rank 1 .*late\.weight"):
        model(torch.randn(2, 4))
    del model.late
    model(torch.randn(2, 4)).sum().backward()
    if me.rank == 1:
        model.late = nn.Parameter(torch.zeros(4), requires_grad=False)
        model.late.grad = torch.zeros(4)
    else:
        model.late = nn.Parameter(torch.zeros(4), requires_grad=False)
    with pytest.raises(osdp.ShardingError, match="'late'"):
        model(torch.randn(2, 4))
    model.late.grad = None
    model(torch.randn(2, 4)).sum().backward()
    model.late.requires_grad_()
    model(torch.randn(2, 4)).mul(model.late).sum().backward()
    assert torch.equal(*(grad for grad in me.everywhere(model.late.grad)))
    assert "late" in runtime_of(model).names()


@pytest.mark.outcome("ranks that add different modules", osdp.DisagreementError)
def test_ranks_that_add_different_things(ranks):
    ranks(different, world=2)


def of_another_model(me: Member) -> None:
    """Its rows would be taken for the whole, rank 0's written over them on all ranks, and the other model's lost."""
    for split in (False, True):
        with naming(f"slices: {split}"):
            plan = (lambda d: plans.in_slices(d, "out")) if split else "FULL_SHARD"
            pair, other = (Pair(me, blocks.workload(), plan) for _ in range(2))
            pair.train(steps=1)
            own, pair.sharded.blocks[0] = pair.sharded.blocks[0], other.sharded.blocks[0]
            with pytest.raises(
                osdp.ShardingError, match=r"'blocks\.0\.norm\.weight' of another sharded model"
            ):
                pair.sharded(me.part(pair.data(1)[0][0]))
            pair.sharded.blocks[0] = own
            pair.train(steps=1)
            other.same_parameters()


@pytest.mark.outcome(
    "a module of a sharded model that is put into another one after `fully_shard`", osdp.ShardingError
)
def test_a_module_of_another_sharded_model(ranks):
    ranks(of_another_model, world=2)


def buffers_of_forward(me: Member) -> None:
    """A cache is this rank's own, also where its shape is."""
    model = small(me)
    model.register_buffer("kept", None)
    model(torch.randn(2, 4))
    model.kept = torch.full((1 + me.rank,), float(me.rank))
    model(torch.randn(2, 4))
    assert model.kept.shape == (1 + me.rank,) and model.kept[0] == me.rank


def test_buffers_that_forward_makes(ranks):
    ranks(buffers_of_forward, world=2)


class MakesItsLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.CrossEntropyLoss()(self.layer(x), x)  # a module with a buffer


def built_beside(me: Member) -> None:
    model = MakesItsLoss()
    plan = osdp.Plan.uniform(osdp.describe(model), "FULL_SHARD")
    model = osdp.fully_shard(model, plan, process_group=me.group)
    runtime = runtime_of(model).runtime
    model(torch.ones(2, 4)).backward()
    nn.Sequential(nn.ReLU()).add_module("more", nn.GELU())
    assert (
        not runtime.tree_changed
    )  # else every call compares all modules: more than half of a T5's host time
    model.more = nn.Linear(4, 4)
    assert runtime.tree_changed
    model(torch.ones(2, 4)).backward()
    model.more.register_parameter("scale", nn.Parameter(torch.ones(4)))
    assert runtime.tree_changed


def test_modules_beside_the_model_do_not_count(ranks):
    ranks(built_beside, world=1)
