"""Parameters used more than once, elsewhere than in their owner's forward, or not at all."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import plans
from support.blocks import HIDDEN, VOCABULARY, surprise, tokens
from support.pair import Pair, naming, train_all
from support.workload import Workload, vectors
from support.worlds import worlds
from torch import nn
from torch.nn import functional as F

import osdp
from osdp.sharding.sharded_model import runtime_of


class TiedHead(nn.Module):
    """The head is a Linear that owns the embedding's weight too; `through` picks how it is read."""

    def __init__(self, through: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.body = nn.Sequential(nn.Linear(HIDDEN, 14), nn.GELU(), nn.Linear(14, HIDDEN))
        self.through = through
        if through == "a module":
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(self.embed(x))
        return self.head(h) if self.through == "a module" else F.linear(h, self.embed.weight)


class Twice(nn.Module):
    """One module called twice in a forward, with something else between, and a whole block called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.between = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.tanh(self.between(self.first(x))))
        return self.block(torch.tanh(self.block(x)))


class TableBlock(nn.Module):
    """Looks words up once more, in a block that may be recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.inner = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x) + self.words(indices))


class Tables(nn.Module):
    """A table with padding that is looked up twice and tied to a head with a bias, one of positions, a frozen one, and
    one in every block. Most rows are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=3)
        self.positions = nn.Embedding(6, HIDDEN)
        self.segments = nn.Embedding(4, HIDDEN)
        self.segments.weight.requires_grad_(False)
        self.blocks = nn.ModuleList(TableBlock() for _ in range(2))
        self.head = nn.Linear(HIDDEN, VOCABULARY)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x) + self.positions(torch.arange(x.shape[1])) + self.segments(x % 4)
        h = h + self.positions(torch.tensor(5)) * self.embed(x.flip(1).int())
        for block in self.blocks:
            h = block(h, x)
        return self.head(h + self.embed(x[:0]).sum())  # an empty batch


class Recursive(nn.Module):
    """A module that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        if depth == 0:
            return x
        return self(torch.tanh(self.layer(x)) * self.scale, depth - 1)


class Holder(nn.Module):
    """Its forward never runs: the parent reads its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 6))
        self.bias = nn.Parameter(torch.randn(7))


class ReadsAnother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.held = Holder()
        self.last = nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(F.linear(self.first(x), self.held.weight, self.held.bias)))


class Unused(nn.Module):
    """One layer is never used, and of another only the weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.unused = nn.Linear(6, 7)
        self.partial = nn.Linear(7, 7)
        self.last = nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(F.linear(self.first(x), self.partial.weight)))


class Branches(nn.Module):
    """Which layers run, and in which order, depends on `step`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.left = nn.Linear(6, 6)
        self.right = nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        order = [[self.left], [self.right], [self.left, self.right], [self.right, self.left], []]
        for layer in order[self.step % len(order)]:
            x = torch.tanh(layer(x))
        return self.last(x)


WORKLOADS = {
    "tied through a module": Workload(lambda: TiedHead("a module"), tokens, surprise),
    "tied through the parent": Workload(lambda: TiedHead("the parent"), tokens, surprise),
    "called twice": Workload(Twice, vectors(6, 6)),
    "recursive": Workload(Recursive, vectors(5, 5)),
    "read by the parent": Workload(ReadsAnother, vectors(6, 4)),
    "not used": Workload(Unused, vectors(6, 4)),
}


def train(me: Member, name: str) -> None:
    train_all(me, WORKLOADS[name], lambda d: plans.everything(d, mixtures=2), steps=2)


def accumulate(me: Member, name: str) -> None:
    train_all(me, WORKLOADS[name], plans.uniform, steps=2, micros=2, no_sync=True)


@pytest.mark.parametrize(("name", "world"), [(name, 2 + i % 2) for i, name in enumerate(WORKLOADS)])
def test_training_is_that_of_one_process(ranks, name, world):
    ranks(train, name, world=world)


def tables(me: Member, dtype: torch.dtype, tolerance: float | None) -> None:
    """All in slices of rows and of columns, and mixtures; blocks recomputed, gradients accumulated."""

    def sliced(description):
        operators = {o.name: o for o in description.operators}
        assert set(operators["embed"].gather_at) == {"embed", "head"} and operators["embed"].look_ups == (
            "embed",
        )
        found = {f"slices along {s}": plans.in_slices(description, s, me.world) for s in ("out", "in")}
        for plan in found.values():
            assert all(
                plan.choices[n].granularity > 1 for n in ("embed", "positions", "segments", "blocks.1.words")
            )
        found["recomputed"] = plans.recomputed(found["slices along out"], "hold")
        return found | {"mixture": plans.recomputed(plans.mixture(description, me.world), "regather")}

    train_all(
        me, Workload(Tables, tokens, surprise), sliced, dtype=dtype, tolerance=tolerance, steps=2, micros=2,
        no_sync=me.world == 3,
    )  # fmt: skip


def changed_since_described(me: Member) -> None:
    def sliced(description):
        return plans.in_slices(description, "out")

    def renormed(model: nn.Module) -> None:
        model.positions.max_norm = 1.0

    plain = Pair(me, Workload(Tables, tokens, surprise), sliced).sharded
    plan = runtime_of(plain).plan
    with pytest.raises(osdp.ShardingError, match=r"'positions'.*max_norm"):
        Pair(me, Workload(Tables, tokens, surprise), plan, prepare=renormed)


def test_a_table_that_slices_cannot_be_of_is_refused(ranks):
    ranks(changed_since_described, world=1)


@pytest.mark.parametrize("world", worlds(1, 3, more=(2, 4)))
def test_tables_in_slices(ranks, world):
    ranks(tables, torch.float64, None, world=world)


def test_tables_in_slices_in_16_bits(ranks):
    ranks(tables, torch.bfloat16, 0.05, world=2)


@pytest.mark.parametrize("name", WORKLOADS)
def test_accumulating_without_sync(ranks, name):
    ranks(accumulate, name, world=2)


def unused_stays_untouched(me: Member) -> None:
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(me, WORKLOADS["not used"], mode)
            before = pair.sharded.unused.weight.detach().clone()
            bias = pair.sharded.partial.bias.detach().clone()
            pair.train(steps=2)
            pair.backward(pair.data(3))
            assert pair.sharded.unused.weight.grad is None
            assert pair.sharded.partial.bias.grad is None
            pair.update()
            assert torch.equal(pair.sharded.unused.weight, before)
            assert torch.equal(pair.sharded.partial.bias, bias)
            assert not pair.sharded_optimizer.state.get(pair.sharded.unused.weight)


def test_an_unused_parameter_has_no_gradient_and_the_optimizer_leaves_it(ranks):
    ranks(unused_stays_untouched, world=2)


def branch_by_step(me: Member) -> None:
    workload = Workload(Branches, vectors(6, 4))
    model = workload.model(0, torch.float64)
    described = osdp.describe(model, *workload.data(0, 2, torch.float64)[0])
    for name, plan in plans.everything(described, mixtures=2).items():
        with naming(name):
            pair = Pair(me, workload, plan)
            for step in range(10):
                pair.whole.step = pair.sharded.step = step
                with naming(f"step {step}"):
                    pair.backward(pair.data(step))
                    pair.same_gradients()
                    pair.update()
            pair.same_parameters()


@pytest.mark.parametrize("world", worlds(3, more=(2,)))
def test_a_branch_that_depends_on_the_step(ranks, world):
    ranks(branch_by_step, world=world)


def tied_names_stay(me: Member) -> None:
    pair = Pair(me, WORKLOADS["tied through a module"])
    assert pair.sharded.head.weight is pair.sharded.embed.weight
    state = pair.sharded.state_dict()
    assert torch.equal(state["head.weight"], state["embed.weight"])
    assert state["head.weight"].shape == (VOCABULARY, HIDDEN)


def test_tied_parameters_stay_one(ranks):
    ranks(tied_names_stay, world=2)


class Named(nn.Module):
    """One parameter by two names in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))
        self.alias = self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).tanh() @ self.alias


def two_names(me: Member) -> None:
    workload = Workload(lambda: nn.Sequential(Named(), nn.Linear(5, 5)), vectors(5, 5))
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(me, workload, mode)
            pair.train(steps=2)  # compares state dicts: both names are full
            state = {name: value + 1 for name, value in pair.whole.state_dict().items()}
            for model, _ in pair.both:
                assert model.load_state_dict(state, strict=True) == ([], [])
            pair.train(steps=1)
            if me.world == 1 or mode == "NO_SHARD":
                continue
            local = {name: p.detach() for name, p in pair.sharded.named_parameters()}
            for wrong in ({**state, "0.alias": local["0.weight"]}, {"0.alias": local["0.weight"]}):
                with pytest.raises(RuntimeError, match=r"size mismatch for 0\.alias"):
                    pair.sharded.load_state_dict(wrong, strict=False)


@pytest.mark.outcome("a parameter with two names in one module; its state dict", "equal")
@pytest.mark.parametrize("world", [1, 2])
def test_two_names_in_one_module(ranks, world):
    ranks(two_names, world=world)


class Added(nn.Module):
    """Two parameters viewed and added: autograd hands both the same memory as their gradients.

    Of a size that the ranks divide: others are padded, and so copied, before they are reduced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 8))
        self.second = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ (self.first.view(-1) + self.second.view(-1)).view(8, 8))


class AddedInUnits(nn.Module):
    """The same with each parameter in a module, so that they can be in units of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ (self.first.weight.view(-1) + self.second.weight.view(-1)).view(8, 8))


def gradients_in_one_memory(me: Member) -> None:
    for build in (Added, AddedInUnits):
        for mode in ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"):
            with naming(f"{build.__name__} {mode}"):
                pair = Pair(
                    me, Workload(build, vectors(8, 8)), lambda d, m=mode: plans.apart(osdp.Plan.uniform(d, m))
                )
                pair.train(steps=3)


@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_gradients_that_share_memory(ranks, world):
    ranks(gradients_in_one_memory, world=world)
