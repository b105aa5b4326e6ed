"""What a sharded model must not do silently: it works, or a typed error says what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from harness import Member
from support import blocks, plans
from support.pair import Pair, naming
from support.workload import Workload, vectors
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard as torchs_fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import osdp

MODES = ("NO_SHARD", "FULL_SHARD")
PLANS = {**{mode: mode for mode in plans.MODES}, "slices": lambda d: plans.in_slices(d, "out")}


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def pair_of(me: Member, mode: object) -> Pair:
    return Pair(me, Workload(build, vectors(6, 4)), mode)


def conversions(me: Member) -> None:
    for mode in MODES:
        with naming(mode):
            pair = pair_of(me, mode)
            pair.sharded.to(torch.float64).cpu()  # nothing to do: nothing happens
            pair.train(steps=1)
            pair.sharded.float()
            with pytest.raises(osdp.ShardingError, match=r"'0\.weight'.*Float.*Double"):
                pair.sharded(torch.randn(2, 6))
            pair.sharded.double()  # and back: usable again
            pair.whole.float().double()  # rounded alike
            pair.evaluate()


def test_another_dtype_after_sharding(ranks):
    ranks(conversions, world=2)


def there_and_back(me: Member) -> None:
    """Converted and taken back between steps, also after the error that says it is usable again; trained after it."""
    ways = {
        "bfloat16": lambda m: m.bfloat16().double(),
        "half, frozen meanwhile": lambda m: m.requires_grad_(False).half().requires_grad_(True).double(),
        "one parameter's data": lambda m: m[0].weight.__setattr__("data", m[0].weight.data.float().double()),
        "to(device), cpu, share_memory": lambda m: m.to("cpu").cpu().share_memory(),
    }
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan)
            pair.train(steps=1)
            for way, convert in ways.items():
                with naming(way):
                    for model, _ in pair.both:
                        convert(model)
                    pair.train(steps=2)
            pair.whole.bfloat16().double(), pair.sharded.bfloat16()
            with pytest.raises(osdp.ShardingError, match="before fully_shard"):
                pair.sharded(torch.randn(2, 6))
            pair.sharded.double()
            pair.train(steps=2)


@pytest.mark.outcome("`model.bfloat16()` and back to its dtype, after sharding", "equal")
def test_conversions_that_are_taken_back(ranks):
    ranks(there_and_back, world=2)


def stepped_in_no_sync(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan)
            with osdp.no_sync(pair.sharded):
                pair.backward(pair.data(0), 2)
                with pytest.raises(
                    osdp.ShardingError, match=r"AdamW\.step\(\).*no_sync.*'\d\.(weight|bias)'"
                ):
                    pair.sharded_optimizer.step()
            with pytest.raises(osdp.ShardingError, match="outside of no_sync"):
                pair.sharded_optimizer.step()
            torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()  # not of this model
            pair.backward(pair.data(1), 2)
            pair.same_gradients()
            pair.update()
            with osdp.no_sync(pair.sharded):
                pair.backward(pair.data(2))
            pair.whole.zero_grad(), pair.sharded.zero_grad()  # dropped: nothing to step with
            pair.update()
            pair.train(steps=1)


@pytest.mark.outcome(
    "`optimizer.step()` inside `no_sync`, or before a backward has averaged", osdp.ShardingError
)
@pytest.mark.outcome(
    "the same by hand, without an Optimizer",
    "not detected: nothing tells it from other changes to a parameter",
)
def test_a_step_with_gradients_of_no_sync(ranks):
    ranks(stepped_in_no_sync, world=2)


def kept_and_changed(me: Member) -> None:
    """Between micro-batches: gradients are dropped in any way, or scaled, which zeros that stand for them do not show."""

    def each(change: Callable[[nn.Parameter], object]) -> Callable[[nn.Module], object]:
        return lambda model: [change(p) for p in model.parameters()]

    dropped = {
        "zero_grad(False)": lambda m: m.zero_grad(set_to_none=False),
        "zero_()": each(lambda p: p.grad.zero_()),
        "other zeros": each(lambda p: setattr(p, "grad", torch.zeros_like(p.grad))),
    }
    changed = {
        "scaled": each(lambda p: p.grad.mul_(0.5)),
        "others": each(lambda p: setattr(p, "grad", p.grad * 0.5)),
        "clipped": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1e9),
    }
    for name, plan in (p for p in PLANS.items() if p[0] != "NO_SHARD"):
        for what, change in (dropped | changed).items():
            with naming(f"{name}, {what}"):
                pair = pair_of(me, plan)
                for step in range(2):  # in the second .grad begins with zeros
                    with osdp.no_sync(pair.sharded):
                        pair.backward(pair.data(step))
                    change(pair.whole), change(pair.sharded)
                    if what in changed:
                        torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()  # not of this model
                        with pytest.raises(
                            osdp.ShardingError, match="was changed between a backward under no_sync"
                        ):
                            pair.backward(pair.data(step, 1))
                        pair.whole.zero_grad(), pair.sharded.zero_grad()
                    pair.backward(pair.data(step, 1))
                    pair.same_gradients()
                    pair.update(set_to_none=False)


@pytest.mark.outcome(
    "gradients that are scaled or clipped between a `no_sync` backward and the one that reduces",
    osdp.ShardingError,
)
@pytest.mark.outcome("`zero_grad` between them, in any way", "equal")
def test_gradients_of_no_sync_that_are_changed(ranks):
    ranks(kept_and_changed, world=2)


def graded(me: Member) -> None:
    for mode in MODES:
        with naming(mode):
            model = build()
            plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 6)), mode)
            model(torch.randn(2, 6)).sum().backward()
            with pytest.raises(osdp.ShardingError, match=r"'0\.weight'.*zero_grad"):
                osdp.fully_shard(model, plan, me.group)
            model.zero_grad()
            osdp.fully_shard(model, plan, me.group)


@pytest.mark.outcome("`fully_shard` of a model with gradients", osdp.ShardingError)
def test_gradients_from_before_sharding(ranks):
    ranks(graded, world=2)


def new_data(me: Member) -> None:
    """Data of this rank's shape, also strided otherwise, is its part from then on; any other shape is refused."""
    for mode in MODES:
        with naming(mode):
            pair = pair_of(me, mode)
            weight = pair.sharded[0].weight
            weight.data = weight.data.t().contiguous().t()
            assert not weight.is_contiguous()
            pair.train(steps=2)
            kept = weight.data
            weight.data = torch.zeros(3, 6, dtype=torch.float64)
            with pytest.raises(osdp.ShardingError, match=r"'0\.weight'.*\[3, 6\]"):
                pair.sharded(torch.randn(2, 6, dtype=torch.float64))
            weight.data = kept
            pair.train(steps=1)


def test_data_given_to_a_parameter(ranks):
    ranks(new_data, world=2)


def unfreeze(me: Member) -> None:
    """Frozen when sharded and trained later, or the other way round: as in one process."""
    for mode in MODES:
        with naming(mode):
            pair = Pair(
                me, blocks.workload(), mode, prepare=lambda m: m.blocks[0].up.requires_grad_(False) and None
            )
            pair.train(steps=2)
            for freeze in (False, True, False):
                for model, _ in pair.both:
                    model.blocks[0].up.requires_grad_(not freeze)
                    model.norm.requires_grad_(freeze)
                pair.train(steps=2)


def test_requires_grad_after_sharding(ranks):
    ranks(unfreeze, world=2)


def sparse(me: Member) -> None:
    for mode in MODES:
        with naming(mode):
            model = nn.Sequential(nn.Embedding(8, 4, sparse=True))
            sample = torch.tensor([[1, 2], [3, 4]])
            osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, sample), mode), me.group)
            loss = model(sample).sum()
            with pytest.raises(osdp.ShardingError, match=r"'0\.weight' got a sparse gradient"):
                loss.backward()


def test_sparse_gradients(ranks):
    ranks(sparse, world=2)


def not_finite(me: Member, norm_type: float) -> list[str]:
    """One rank's part of one gradient is not a number: every rank gets the same norm, and raises alike."""
    pair = pair_of(me, "FULL_SHARD")
    pair.backward(pair.data(0))
    if me.rank == 1:
        pair.sharded[0].weight.grad[0, 0] = torch.nan
    before = pair.sharded[2].weight.grad.clone()
    with pytest.raises(osdp.GradientError, match="on every rank") as caught:
        osdp.clip_grad_norm_(pair.sharded, 1.0, norm_type, error_if_nonfinite=True)
    assert torch.equal(before, pair.sharded[2].weight.grad)
    assert osdp.clip_grad_norm_(pair.sharded, 1.0, norm_type).isnan()
    assert pair.sharded[2].weight.grad.isnan().all()
    for _, optimizer in pair.both:
        optimizer.zero_grad()
    pair.train(steps=1)
    return [str(caught.value)]


@pytest.mark.parametrize("norm_type", [2.0, torch.inf])
def test_gradients_that_are_not_finite(ranks, norm_type):
    messages = ranks(not_finite, norm_type, world=3)
    assert messages[0] == messages[1] == messages[2]


def scaled_by_rank(me: Member) -> None:
    """The last rank scales its gradients otherwise, and the replicas drift apart: told at the next step, and of whom."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), "FULL_SHARD")
    osdp.fully_shard(model, plan.replace({"2": osdp.Choice("NO_SHARD")}), me.group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(me.rank)
    for step in range(2):
        loss = model(torch.randn(2, 8)).square().sum()
        if step == 1:
            apart = r"'2\.(weight|bias)' .and 1 more.*one value on rank 0, rank 1; another on rank 2\..*checkpoint"
            with pytest.raises(osdp.ReplicaError, match=apart):
                loss.backward()
            return
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.mul_(1 + me.rank // 2)
        optimizer.step()
        optimizer.zero_grad()


def test_replicas_that_drift_apart_are_told(ranks):
    ranks(scaled_by_rank, world=3)


def noise_by_rank(me: Member) -> None:
    """HYBRID_SHARD on 2 lines of 2: twins hold the same rows, and one adds other noise to them than the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), "HYBRID_SHARD")
    osdp.fully_shard(model, plan, me.group, ranks_per_host=2)
    model(torch.randn(2, 8)).square().sum().backward()
    torch.manual_seed(me.rank // 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    twins = f"one value on rank {me.rank % 2}; another on rank {me.rank % 2 + 2}\\."
    with pytest.raises(osdp.ReplicaError, match=f"same value on all ranks.*{twins}"):
        model(torch.randn(2, 8)).square().sum().backward()


def test_lines_that_drift_apart_are_told(ranks):
    ranks(noise_by_rank, world=4)


def by_function(model: nn.Module, process_group: dist.ProcessGroup) -> nn.Module:
    return osdp.fully_shard(model, osdp.Plan.uniform(model, "FULL_SHARD"), process_group)


def sharded_twice(me: Member) -> None:
    """A plan for the whole says nothing of parts that were sharded before, which have other shapes on each rank."""
    for part in (osdp.FullyShardedDataParallel, by_function):
        outer = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 5))
        outer[1] = part(outer[1], process_group=me.group)
        with pytest.raises(osdp.ShardingError, match=r"'1', a Linear .*outermost"):
            by_function(outer, me.group)


@pytest.mark.outcome("`osdp.fully_shard` of a part of a model and then of the model", osdp.ShardingError)
def test_sharding_parts_and_the_whole(ranks):
    ranks(sharded_twice, world=2)


def sharing_memory(me: Member) -> None:
    """Refused before anything is sent, so that the group can be used on."""
    window = torch.arange(5.0).as_strided((3, 3), (1, 1))
    for name, bad in {
        "row": torch.ones(1).expand(4),
        "rows": torch.ones(4).expand(3, 4),
        "window": window,
    }.items():
        model = nn.Linear(6, 4)
        model.register_buffer(name, bad)
        with pytest.raises(osdp.ShardingError, match=f"buffer '{name}'"):
            osdp.FullyShardedDataParallel(model, me.group)
    for trained in (False, True):
        model = nn.Linear(6, 4)
        model.scale = nn.Parameter(torch.ones(4, 1).expand(4, 4), requires_grad=trained)
        with pytest.raises(osdp.ShardingError, match="parameter 'scale'"):
            by_function(model, me.group)
        for parts in (
            False,
            True,
        ):  # beside parts that are sharded already, whose parameters have no memory then
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            model[1].weight = nn.Parameter(torch.ones(1).expand(4, 4), requires_grad=trained)
            if parts:
                osdp.fully_shard(model[0], process_group=me.group)
            with pytest.raises(osdp.ShardingError, match=r"parameter '1\.weight'"):
                osdp.fully_shard(model, process_group=me.group)
            model[1].weight = nn.Parameter(torch.ones(4, 4), requires_grad=trained)
            osdp.fully_shard(model, process_group=me.group)
    flat, model = torch.rand(16), nn.Linear(6, 4)
    model.left, model.right = nn.Parameter(flat[:8].view(2, 4)), nn.Parameter(flat[8:].view(2, 4))
    model.register_buffer("turned", torch.rand(3, 4).t())
    model.register_buffer("every", torch.rand(8)[::2])
    model.register_buffer("none", torch.ones(1).expand(0, 4))
    wanted = {k: v.clone() for k, v in model.state_dict().items()}
    sharded = osdp.FullyShardedDataParallel(model, me.group).state_dict()
    if me.rank == 0:
        assert all(torch.equal(sharded[k], v) for k, v in wanted.items())


@pytest.mark.outcome(
    "an expanded buffer or parameter (stride 0), one whose elements share memory", osdp.ShardingError
)
def test_tensors_whose_elements_share_memory(ranks):
    ranks(sharing_memory, world=2)


def tensor_parallel(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[1].weight = nn.Parameter(distribute_tensor(torch.randn(2, 4), mesh, [Shard(0)]))
    with pytest.raises(osdp.ShardingError, match=r"parameter '1\.weight'.*\[0, 1\]"):
        osdp.FullyShardedDataParallel(model, me.group)
    torchs = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    torchs_fully_shard(torchs[1], mesh=mesh)
    with pytest.raises(osdp.ShardingError, match=r"'1' .* torch's fully_shard"):
        osdp.describe(torchs)
    with pytest.raises(osdp.ShardingError, match=r"'adjacent' .*torch\.sparse_coo"):
        sparse = nn.Linear(2, 2)
        sparse.register_buffer("adjacent", torch.eye(3).to_sparse())
        osdp.FullyShardedDataParallel(sparse, me.group)
    extended = nn.Linear(2, 2)
    extended.weight.fsdp_pre_all_gather = lambda *_: ((extended.weight.bfloat16(),), None)
    with pytest.raises(osdp.ShardingError, match=r"'weight' .* fsdp_pre_all_gather"):
        osdp.fully_shard(extended, mesh=mesh)


@pytest.mark.outcome(
    "a `DTensor` parameter over the ranks it would be sharded over, a sparse buffer, or a tensor with `fsdp_pre_all_gather`",
    osdp.ShardingError,
)
def test_tensors_that_are_not_plain(ranks):
    ranks(tensor_parallel, world=2)
