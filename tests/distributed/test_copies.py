"""Deep copies of a sharded model, and torch's AveragedModel on them: equal to one process's, and nothing is shared."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.experts import OneProcess, by_hand, new_mixture, same_state, train
from support.nested import Block, net
from support.pair import SEED, Pair, adamw, close, naming
from support.workload import Workload, vectors
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import osdp
from osdp.sharding.sharded_model import runtime_of

FSDP = osdp.FullyShardedDataParallel


def full(model: nn.Module) -> dict[str, Tensor]:
    shown = model.state_dict()
    return {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in shown.items()}


def same(got: nn.Module, wanted: nn.Module, tolerance: float = 1e-9) -> None:
    shown, values = full(got), wanted.state_dict()
    assert list(shown) == list(values)
    for name, value in values.items():
        close(shown[name], value, tolerance, name)


def averaged(model: nn.Module, **options) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), **options)


def follow(
    me: Member, whole: nn.Module, model: nn.Module, workload: Workload, steps: int = 3, **options
) -> None:
    """Both are trained, averaged from the start and copied in the middle; then the copies are trained by themselves, and
    the sources once more."""
    averages = averaged(whole, **options), averaged(model, **options)
    copies: tuple[nn.Module, ...] = ()

    def train(models: tuple[nn.Module, ...], after: Callable[[], None] = lambda: None) -> None:
        nonlocal copies
        optimizers = [adamw(m.parameters()) for m in models]
        for s in range(steps):
            arguments, target = workload.data(s, 2 * me.world, torch.float64)
            mine = (tuple(map(me.part, arguments)), me.part(target))
            for each, optimizer, (given, wanted) in zip(
                models, optimizers, ((arguments, target), mine), strict=True
            ):
                workload.loss(each(*given), wanted).backward()
                optimizer.step()
                optimizer.zero_grad()
            if s == 1 and not copies:
                copies = copy.deepcopy(whole), copy.deepcopy(model)
            after()

    train(
        (whole, model),
        lambda: [a.update_parameters(m) for a, m in zip(averages, (whole, model), strict=True)],
    )
    assert all(p.grad is None for p in copies[1].parameters())
    assert [(n, p.requires_grad) for n, p in copies[1].named_parameters()] == [
        (n, p.requires_grad) for n, p in whole.named_parameters()
    ]
    train(copies)
    train((whole, model))
    for pair in ((whole, model), copies, averages):
        same(pair[1], pair[0])
    arguments, _ = workload.data(9, 2 * me.world, torch.float64)
    with torch.no_grad():
        wanted = averages[0].eval()(*arguments)
        close(averages[1].eval()(*arguments), wanted, 1e-9, "of the average")


def wrapped(me: Member) -> dict[str, Callable[[nn.Module], nn.Module]]:
    mesh = DeviceMesh.from_group(me.group, "cpu")

    def by_class(model: nn.Module) -> nn.Module:
        model.blocks[0] = FSDP(model.blocks[0], me.group)
        return FSDP(model, me.group)

    def by_blocks(model: nn.Module) -> nn.Module:
        for block in model.blocks:
            osdp.fully_shard(block, mesh=mesh, reshard_after_forward=False)
        return osdp.fully_shard(model, mesh=mesh)

    def by_plan(model: nn.Module, make: Callable[[osdp.ModelDescription], osdp.Plan]) -> nn.Module:
        described = osdp.describe(model, blocks.tokens(2)[0][0])
        return osdp.fully_shard(model, make(described), me.group)

    ways = {
        **{mode: (lambda d, mode=mode: osdp.Plan.uniform(d, mode)) for mode in plans.MODES},
        "slices": lambda d: plans.in_slices(d, "in"),
        "recomputed": lambda d: plans.recomputed(plans.mixture(d, 0), "regather"),
    }
    by_plans = {name: (lambda m, make=make: by_plan(m, make)) for name, make in ways.items()}
    return {"class": by_class, "by blocks": by_blocks, **by_plans}


def all_ways(me: Member) -> None:
    workload = blocks.workload()
    for name, wrap in wrapped(me).items():
        with naming(name):
            model = workload.model(SEED + me.rank, torch.float64)
            follow(me, workload.model(SEED, torch.float64), wrap(model), workload)


@pytest.mark.outcome("`copy.deepcopy(model)`, and training both", "equal")
@pytest.mark.outcome("`torch.optim.swa_utils.AveragedModel(model)`: EMA, SWA", "equal")
def test_copies_and_averages_train_as_one_process(ranks):
    ranks(all_ways, world=2)


def in_lines(me: Member) -> None:
    workload = blocks.workload(count=1)
    pair = Pair(me, workload, lambda d: plans.apart(osdp.Plan.uniform(d, "HYBRID_SHARD")), ranks_per_host=2)
    follow(me, pair.whole, pair.sharded, workload)


def test_copies_under_hybrid_shard(ranks):
    ranks(in_lines, world=4)


# --- what is in the model


class Norms(nn.Module):
    """Batch norms, a tied and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.first.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def norms(me: Member) -> None:
    """Buffers are each rank's own, in the source and in the average."""
    torch.manual_seed(SEED)
    whole = Norms().double()
    model = osdp.fully_shard(
        copy.deepcopy(whole), osdp.Plan.uniform(osdp.describe(whole), "FULL_SHARD"), me.group
    )
    whole.norm.eval(), model.norm.eval()
    for use_buffers in (False, True):
        follow(me, whole, model, Workload(Norms, vectors(6, 6)), use_buffers=use_buffers)
    averages = averaged(whole), averaged(model)
    data = torch.randn(4, 6, dtype=torch.float64)
    for each, given in zip(averages, (data, data), strict=True):
        each.train()
        update_bn([given], each)
    same(averages[1], averages[0])
    assert not torch.equal(averages[1].module.norm.running_mean, model.norm.running_mean)
    model.norm.running_mean += me.rank
    assert torch.equal(copy.deepcopy(model).norm.running_mean, model.norm.running_mean)


def test_buffers_tied_and_frozen_weights(ranks):
    ranks(norms, world=2)


def in_inference_mode(me: Member) -> None:
    """What is described, sharded and copied there is trained afterwards."""
    whole = Norms().double().eval()
    for by_plan in (True, False):
        model = copy.deepcopy(whole)
        with torch.inference_mode():
            plan = (osdp.Plan.uniform(osdp.describe(model, torch.rand(2, 6).double()), "FULL_SHARD"),)
            model = osdp.fully_shard(model, *(plan if by_plan else ()), process_group=me.group)
            copied = copy.deepcopy(model)
        for each in (model, copied):
            follow(me, copy.deepcopy(whole), each, Workload(Norms, vectors(6, 6)))


def test_what_is_made_in_inference_mode(ranks):
    ranks(in_inference_mode, world=2)


def mixed(me: Member) -> None:
    """Shards stay in full precision, and buffers have the same values in low precision: also one that the script has
    replaced, and one whose own precision is lower than what it is cast to."""
    torch.manual_seed(SEED)
    whole = nn.Sequential(nn.Linear(6, 6), Block(), nn.Linear(6, 6))
    whole[1].register_buffer("wide", torch.rand(3).half())
    policy = osdp.MixedPrecision(torch.bfloat16, torch.float32, torch.float32)
    plan = osdp.Plan.uniform(osdp.describe(whole, torch.ones(2, 6)), "FULL_SHARD")
    model = osdp.fully_shard(copy.deepcopy(whole), plan, me.group, mixed_precision=policy)
    model[1].wide += 1e-6
    model[1].calls = torch.full((1,), 3.0)
    made = copy.deepcopy(model)
    assert made[1].wide.dtype == torch.float32
    assert torch.equal(made[1].wide, model[1].wide)
    found = full(made)
    for name, value in full(model).items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    x = torch.randn(4, 6)
    for each in (model, made):
        each(x).sum().backward()
    for (name, p), q in zip(model.named_parameters(), made.parameters(), strict=True):
        assert q.dtype == torch.float32
        assert torch.equal(p.grad, q.grad), name


def test_mixed_precision(ranks):
    ranks(mixed, world=2)


def nested_wraps(me: Member) -> None:
    whole, model = net(SEED), FSDP(net(SEED, lambda m: FSDP(m, me.group)), me.group)
    for times in range(2):  # while it waits for its first forward, and after
        made, expected = copy.deepcopy(model), copy.deepcopy(whole)
        assert type(made) is FSDP and type(made.module.blocks[0]) is FSDP
        assert made.blocks[0].check_is_root() is False
        assert made.module.head.weight is made.module.table.weight
        tokens = torch.arange(4 * me.world).view(2 * me.world, 2) % 10
        for each, data in (
            (expected, tokens),
            (made, me.part(tokens)),
            (whole, tokens),
            (model, me.part(tokens)),
        ):
            optimizer = adamw(each.parameters())
            each(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with naming(f"copy {times}"):
            same(made, expected)
            same(model, whole)


def test_nested_wraps_are_copied_with_the_model(ranks):
    ranks(nested_wraps, world=2)


def experts(me: Member) -> None:
    whole, model = OneProcess(me), new_mixture(me, by_hand(me))
    made = copy.deepcopy(model)
    before = {k: v.clone() for k, v in full(model).items()}
    train(me, whole, made)
    same_state(whole, made)
    for name, value in full(model).items():
        assert torch.equal(value, before[name])


def test_experts_are_copied_with_the_model(ranks):
    ranks(experts, world=2)


# --- what the script has done to it


class Around(nn.Module):
    """A list of the model's parameters is found before the model itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.listed = list(model.parameters())
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) * self.scale


class Passing(nn.Module):
    """Passes attributes on to the model, as PEFT's and torch.compile's wrappers do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> object:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def pair_of(me: Member) -> Pair:
    return Pair(me, Workload(build, vectors(6, 4)), "FULL_SHARD")


def around(me: Member) -> None:
    pair = pair_of(me)
    pair.train(steps=1)
    for name, outer in {
        "a module": Around(pair.sharded),
        "one that passes on": Passing(pair.sharded),
    }.items():
        with naming(name):
            made = copy.deepcopy(outer)
            assert type(made) is type(outer) and made.model is not pair.sharded
            runtime_of(made.model)
            close(made(torch.ones(2, 6).double()), outer(torch.ones(2, 6).double()), 1e-12, "output")
            if name == "a module":
                assert [id(p) for p in made.listed] == [id(p) for p in made.model.parameters()]


def test_modules_around_the_model_are_copied_with_it(ranks):
    ranks(around, world=2)


def script(me: Member) -> None:
    """Hooks, attributes, modes, an added module, a registered method: all are the copy's own."""
    pair = pair_of(me)
    early, late = Counting(), Counting()
    pair.sharded[0].register_forward_hook(late)
    pair.sharded.notes = {"seen": [1]}
    pair.sharded[1].eval()
    for model in (pair.whole, pair.sharded):
        torch.manual_seed(5)
        model.append(nn.Linear(4, 4).double())
        model.append(nn.BatchNorm1d(4).double().eval())
    with pytest.warns(UserWarning, match="added after fully_shard") if me.rank == 0 else naming("rank 1"):
        pair.forward(pair.data(0))
    made = copy.deepcopy(pair.sharded)
    made.notes["seen"].append(2)
    assert pair.sharded.notes == {"seen": [1]}
    assert [m.training for m in made.modules()] == [m.training for m in pair.sharded.modules()]
    copied = next(h for h in made[0]._forward_hooks.values() if isinstance(h, Counting))
    assert copied is not late and copied.calls == late.calls == 1
    both = Pair.__new__(Pair)
    both.__dict__.update(pair.__dict__)
    both.whole, both.sharded = copy.deepcopy(pair.whole), made
    both.whole_optimizer, both.sharded_optimizer = (adamw(m.parameters()) for m in (both.whole, made))
    both.both = ((both.whole, both.whole_optimizer), (made, both.sharded_optimizer))
    both.train(steps=2)
    pair.same_parameters()
    assert (copied.calls, late.calls, early.calls) == (3, 1, 0)


def test_what_the_script_has_done_is_copied(ranks):
    ranks(script, world=2)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head, self.own = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.head(torch.tanh(self.table(x))))

    def loss_of(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.table(x)), self.head.weight).square().mean()


def methods_and_ignored(me: Member) -> None:
    torch.manual_seed(SEED)
    whole = Heads().double()
    mine = copy.deepcopy(whole)
    model = FSDP(mine, me.group, ignored_modules=[mine.own])
    osdp.register_forward_method(model, "loss_of")
    torch.manual_seed(2)
    x = torch.randn(2 * me.world, 6, dtype=torch.float64)
    for times in range(2):
        made, expected = copy.deepcopy(model), copy.deepcopy(whole)
        close(me.mean(made.loss_of(me.part(x))), expected.loss_of(x), 1e-12, f"loss of copy {times}")
        made(me.part(x)).square().mean().backward()
        expected(x).square().mean().backward()
        own = made.own.weight.grad
        assert made.module.own.weight is not mine.own.weight
        close(me.mean(own), expected.own.weight.grad, 1e-12, "of the ignored module, not averaged")
        assert me.world == 1 or not torch.allclose(own, expected.own.weight.grad)
        model(me.part(x)).sum().backward()
        for p in model.parameters():
            p.grad = None


def test_registered_methods_and_ignored_modules(ranks):
    ranks(methods_and_ignored, world=2)


def memory(me: Member) -> None:
    """A copy needs memory for its rows: at no time for a full parameter."""
    model = nn.Sequential(*(nn.Linear(500, 500, bias=False) for _ in range(4)))
    plan = osdp.Plan.uniform(osdp.describe(model, torch.ones(2, 500)), "FULL_SHARD")
    model = osdp.fully_shard(model, plan, me.group)
    rows = sum(p.nbytes for p in model.parameters())
    before = osdp._C.memory_live_bytes()
    most = osdp._C.memory_peak_bytes
    osdp._C.memory_reset_peak()
    copied = copy.deepcopy(model)
    assert osdp._C.memory_live_bytes() - before == pytest.approx(rows, rel=0.05)
    assert most() - before < 1.1 * rows
    assert runtime_of(copied).runtime is not runtime_of(model).runtime


def test_a_copy_takes_the_memory_of_its_rows(ranks):
    ranks(memory, world=2)


# --- what is refused


class Anew(nn.Linear):
    def __deepcopy__(self, memo: object) -> Anew:
        return Anew(self.in_features, self.out_features)


def refused(me: Member) -> None:
    pair = pair_of(me)
    for make, match in (
        (copy.deepcopy, r"'0' is a part of a sharded model.*copy\.deepcopy\(model\)"),
        (pickle.dumps, "pickled"),
    ):
        with pytest.raises(osdp.ShardingError, match=match):
            make(pair.sharded[0])
    with pytest.raises(osdp.ShardingError, match="pickled"):
        pickle.dumps(pair.sharded)
    with osdp.summon_full_params(pair.sharded), pytest.raises(osdp.ShardingError, match="summon_full_params"):
        copy.deepcopy(pair.sharded)

    def within(*_: object) -> None:
        with pytest.raises(osdp.ShardingError, match="in its forward or backward"):
            copy.deepcopy(pair.sharded)

    handle = pair.sharded[1].register_forward_hook(within)
    pair.forward(pair.data(0))
    handle.remove()
    pair.train(steps=1)

    waiting = FSDP(build(), me.group, memory="1GiB")
    with pytest.raises(osdp.ShardingError, match="run one step before"):
        copy.deepcopy(waiting)

    anew = nn.Sequential(Anew(6, 6))
    anew = osdp.fully_shard(anew, osdp.Plan.uniform(osdp.describe(anew), "FULL_SHARD"), me.group)
    with pytest.raises(osdp.ShardingError, match=r"'0\.weight' .* __deepcopy__"):
        copy.deepcopy(anew)
    anew(torch.ones(2, 6)).sum().backward()

    pair.sharded[2] = nn.Sequential(pair.sharded[2])
    with pytest.raises(osdp.ShardingError, match=r"'2\.weight' was renamed or removed"):
        copy.deepcopy(pair.sharded)


@pytest.mark.outcome("`pickle`, `torch.save(model)`, and a copy of a part of the model", osdp.ShardingError)
def test_what_cannot_be_copied(ranks):
    ranks(refused, world=2)


def one_rank_fails(me: Member) -> None:
    """A copy that fails on one rank fails on all, and the models train on."""
    pair = pair_of(me)
    if me.rank == 1:
        pair.sharded.not_copyable = (n for n in ())
    with pytest.raises(TypeError if me.rank == 1 else osdp.OSDPError, match=r"pickle|failed on rank 1"):
        copy.deepcopy(pair.sharded)
    pair.train(steps=1)


def test_a_copy_that_fails_on_one_rank(ranks):
    ranks(one_rank_fails, world=2)


def within_no_sync(me: Member) -> None:
    """A copy made there keeps its gradients until the end of the source's."""
    pair = pair_of(me)
    with osdp.no_sync(pair.sharded):
        made = copy.deepcopy(copy.deepcopy(pair.sharded))
        losses = []
        for micro in range(2):
            (whole, target), (mine, my_target) = pair.data(0, micro), pair._part(pair.data(0, micro))
            losses.append((pair.workload.loss(pair.whole(*whole), target), (mine, my_target)))
        arguments, target = losses[0][1]
        pair.workload.loss(made(*arguments), target).backward()
        with pytest.raises(osdp.ShardingError, match="no_sync"):
            torch.optim.SGD(made.parameters(), lr=0.1).step()
    arguments, target = losses[1][1]
    pair.workload.loss(made(*arguments), target).backward()
    for whole_loss, _ in losses:
        whole_loss.backward()
    pair.sharded = made
    pair.same_gradients()


def test_a_copy_within_no_sync(ranks):
    ranks(within_no_sync, world=2)
