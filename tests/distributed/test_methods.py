"""Methods other than forward that read sharded parameters: registered ones work, others say what to do."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, close, naming
from support.said import ungathered
from support.workload import Workload
from support.worlds import worlds
from torch import nn
from torch.nn import functional as F

import osdp
from osdp.sharding.sharded_model import runtime_of

VOCABULARY, WIDTH = 9, 6


class Scaled(nn.Module):
    """Reads a parameter of its own, and calls modules: called by itself, all of them must be gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(x * self.scale).tanh()


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.body = Scaled()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))

    def loss_of(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Reads the head's parameters itself, in a method of its own, and calls the others."""
        hidden = self.body(self.embed(tokens))
        return F.cross_entropy(self.scores(hidden).flatten(0, 1), target.flatten())

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.head.weight, self.head.bias)

    def similar(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.embed.weight.T

    def detached(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.detach() @ self.embed.weight.detach().T

    def looked_up(self, tokens: torch.Tensor) -> torch.Tensor:
        table = self.embed.weight
        return table[tokens]

    def through_a_list(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * [self.body][0].scale

    def generate(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(3):
                tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)
        return tokens

    @torch.no_grad()
    def moved_towards(self, other: torch.Tensor) -> int:
        """What may be done with a rank's rows: shapes, changes element by element, norms."""
        self.head.weight.lerp_(other, 0.5)
        self.head.weight.mul_(torch.full((1,), 2.0))
        assert torch.cat([p.flatten() for p in (self.head.weight, self.embed.weight)]).norm() >= 0
        assert self.head.weight.norm() >= 0
        return self.head.weight.shape[0]


def tokens(samples: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    drawn = torch.randint(VOCABULARY, (samples, 4))
    return (drawn[:, :-1],), drawn[:, 1:]


def surprise(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


WORKLOAD = Workload(Language, tokens, surprise)
PLANS = {
    **{mode: lambda d, mode=mode: plans.apart(osdp.Plan.uniform(d, mode)) for mode in plans.MODES},
    "few units": "FULL_SHARD",
    "mixed": lambda d: plans.apart(
        osdp.Plan.uniform(d, "FULL_SHARD").replace(
            {"head": osdp.Choice("NO_SHARD"), "body.up": osdp.Choice("SHARD_GRAD_OP")}
        )
    ),
}


def both(pair: Pair, method: str, *whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the method returns of the whole model on everything, and of the sharded one on this rank's part."""
    mine = getattr(pair.sharded, method)(*(pair.me.part(t) for t in whole))
    return getattr(pair.whole, method)(*whole), mine


def train_by_method(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = Pair(me, WORKLOAD, plan)
            osdp.register_forward_method(pair.sharded, "loss_of")
            for step in range(3):
                (given,), target = pair.data(step)
                whole, mine = both(pair, "loss_of", given, target)
                close(me.mean(mine), whole, 1e-9, "loss")
                whole.backward(), mine.backward()
                pair.same_gradients()
                pair.update()
                assert runtime_of(pair.sharded).gathered_bytes() == 0
                pair.train(steps=1)  # forward in between
            with torch.no_grad():
                whole, mine = both(pair, "loss_of", *pair.data(9)[0], pair.data(9)[1])
                close(me.mean(mine), whole, 1e-9, "loss without gradients")


@pytest.mark.parametrize("world", worlds(1, 3, more=(2,)))
def test_a_registered_method_trains_as_one_process(ranks, world):
    ranks(train_by_method, world=world)


def methods_of_all_kinds(me: Member) -> None:
    pair = Pair(me, WORKLOAD, PLANS["FULL_SHARD"])
    hidden = torch.randn(2 * me.world, 3, WIDTH, dtype=torch.float64)
    (given,), _ = pair.data(0)
    with pytest.raises(osdp.ShardingError, match=r"'embed\.weight'"):
        pair.sharded.detached(me.part(hidden))
    calls = {"scores": hidden, "similar": hidden, "looked_up": given, "through_a_list": hidden}
    for name, argument in calls.items():
        with naming(name):
            with pytest.raises(osdp.ShardingError, match=f"register_forward_method.*'{name}'"):
                getattr(pair.sharded, name)(me.part(argument))
            reads = None if name in ("scores", "similar") else ["embed.weight", "body.scale"]
            osdp.register_forward_method(pair.sharded, name, reads)
            whole, mine = both(pair, name, argument)
            close(mine, me.part(whole), 1e-9, name)
            (whole.square().sum() / me.world).backward(), mine.square().sum().backward()
            pair.same_gradients()
            pair.update()
    pair.train(steps=2)
    assert torch.equal(*both(pair, "generate", given)) or me.world > 1
    whole, mine = both(pair, "generate", given)
    assert torch.equal(mine, me.part(whole))
    assert pair.sharded.moved_towards(torch.zeros_like(pair.sharded.head.weight)) == len(
        pair.sharded.head.weight
    )


def test_methods_are_told_to_be_registered_and_then_work(ranks):
    ranks(methods_of_all_kinds, world=2)


def not_said_to_be_read(me: Member) -> None:
    """Read but not listed: an error that names it, and the model can be used again."""
    pair = Pair(me, WORKLOAD, PLANS["FULL_SHARD"])
    osdp.register_forward_method(pair.sharded, "looked_up", reads=[])
    for _ in range(2):
        with pytest.raises(RuntimeError, match=ungathered(r"embed\.weight")):
            pair.sharded.looked_up(me.part(pair.data(0)[0][0]))
        pair.train(steps=1)
    with osdp.summon_full_params(pair.sharded):
        whole, mine = both(pair, "scores", torch.randn(2 * me.world, 3, WIDTH, dtype=torch.float64))
        close(mine, me.part(whole), 1e-9, "summoned")


def test_a_parameter_that_a_method_did_not_say_it_reads(ranks):
    ranks(not_said_to_be_read, world=2)


def refusals(me: Member) -> None:
    pair = Pair(me, WORKLOAD, PLANS["FULL_SHARD"])
    for module, name, reads, match in (
        (Language(), "loss_of", None, "not part of a sharded model"),
        (pair.sharded, "nothing", None, "no method 'nothing'"),
        (pair.sharded, "forward", None, "needs no registration"),
        (pair.sharded, "scores", ["tail.weight"], r"'tail\.weight'.*not a parameter"),
    ):
        with pytest.raises(osdp.ShardingError, match=match):
            osdp.register_forward_method(module, name, reads)
    sliced = Pair(me, WORKLOAD, lambda d: plans.in_slices(d, "in"))
    with pytest.raises(osdp.ShardingError, match=r"'head\.weight', .* in slices"):
        osdp.register_forward_method(sliced.sharded, "scores")
    wrapped = osdp.FullyShardedDataParallel(WORKLOAD.model(1, torch.float64), me.group)
    osdp.register_forward_method(wrapped, "loss_of")
    (given,), target = pair.data(0)
    wrapped.loss_of(me.part(given), me.part(target)).backward()
    assert wrapped.head.weight.grad.shape == wrapped.head.weight.shape
    wrapped(me.part(given)).sum().backward()


def test_what_cannot_be_registered(ranks):
    ranks(refusals, world=2)


def in_low_precision(me: Member) -> None:
    """Arguments are cast and parameters computed in bf16, as in forward."""
    policy = osdp.MixedPrecision(torch.bfloat16, torch.float32)
    pair = Pair(me, WORKLOAD, "FULL_SHARD", dtype=torch.float32, tolerance=0.05, mixed_precision=policy)
    osdp.register_forward_method(pair.sharded, "scores")
    whole, mine = both(pair, "scores", torch.randn(2 * me.world, 3, WIDTH))
    assert mine.dtype == torch.bfloat16
    close(mine.float(), me.part(whole), 0.05, "scores")


def test_methods_under_mixed_precision(ranks):
    ranks(in_low_precision, world=2)


def part_by_itself(me: Member) -> None:
    """A module with parameters of its own and modules inside, called without the root."""
    x = torch.randn(2 * me.world, 3, WIDTH, dtype=torch.float64)
    for name, plan in PLANS.items():
        with naming(name):
            pair = Pair(me, WORKLOAD, plan)
            for _ in range(2):
                whole, mine = pair.whole.body(x), pair.sharded.body(me.part(x))
                close(mine, me.part(whole), 1e-9, "output")
                (whole.square().sum() / me.world).backward(), mine.square().sum().backward()
                pair.same_gradients()
                pair.update()
                pair.train(steps=1)


@pytest.mark.parametrize("world", [2, 3])
def test_a_module_of_modules_called_by_itself(ranks, world):
    ranks(part_by_itself, world=world)
