"""Full state dicts under the unwrapped names, and the map from a rank's pieces to the full tensors."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, cut, naming
from support.workload import Workload
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of


def load_into_every_placement(me: Member) -> None:
    """A full state dict from one process goes into any plan, and comes out of it the same."""
    source = blocks.workload().model(99, torch.float64).state_dict()
    example = blocks.workload().data(0, 2, torch.float64)[0]
    described = osdp.describe(blocks.workload().model(0, torch.float64), *example)
    for name, plan in plans.everything(described).items():
        with naming(name):
            pair = Pair(me, blocks.workload(), plan)
            for model, _ in pair.both:
                result = model.load_state_dict({key: value.clone() for key, value in source.items()})
                assert not result.missing_keys and not result.unexpected_keys
            for key, value in pair.sharded.state_dict().items():
                assert torch.equal(value, source[key]), key
            pair.train(steps=2)
            # Taken between backward and step, and after: it never shows an old value.
            pair.backward(pair.data(5))
            pair.same_parameters()
            pair.update()
            pair.same_parameters()


@pytest.mark.parametrize("world", [1, 3])
def test_a_full_state_dict_goes_in_and_out(ranks, world):
    ranks(load_into_every_placement, world=world)


def state_is_a_snapshot(me: Member) -> None:
    """Training on does not change a state dict of sharded parameters taken before."""
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    state = pair.sharded.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    pair.train(steps=1)
    for name, value in state.items():
        assert not value.requires_grad, name
        assert torch.equal(value, before[name]), name


def test_a_state_dict_of_sharded_parameters_is_a_snapshot(ranks):
    ranks(state_is_a_snapshot, world=2)


def tied_state(me: Member) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    body[1].weight = body[0].weight
    whole = nn.Sequential(body)
    plan = osdp.Plan.uniform(osdp.describe(whole, torch.zeros(2, 3, dtype=torch.long)), "FULL_SHARD")
    sharded = osdp.fully_shard(whole, plan, process_group=me.group)
    state = sharded.state_dict(prefix="model.")
    assert list(state) == ["model.0.0.weight", "model.0.1.weight"]
    assert state["model.0.0.weight"].shape == (8, 4)
    assert state["model.0.0.weight"] is state["model.0.1.weight"]


def test_the_names_of_one_parameter_have_one_tensor(ranks):
    ranks(tied_state, world=2)


def bad_state(me: Member) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    state = pair.sharded.state_dict()
    wrong = {**state, "head.weight": torch.zeros(3, 3, dtype=torch.float64)}
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        pair.sharded.load_state_dict(wrong)
    del state["norm.weight"]
    with pytest.raises(RuntimeError, match=r"norm\.weight"):
        pair.sharded.load_state_dict(state)
    result = pair.sharded.load_state_dict({**state, "extra": torch.zeros(1)}, strict=False)
    assert result.missing_keys == ["norm.weight"]
    assert result.unexpected_keys == ["extra"]
    pair.same_parameters()
    pair.train(steps=1)


def test_a_state_dict_that_does_not_fit_is_refused_as_torch_does(ranks):
    ranks(bad_state, world=2)


def pieces_tile_every_parameter(me: Member) -> None:
    example = blocks.workload().data(0, 2, torch.float64)[0]
    described = osdp.describe(blocks.workload().model(0, torch.float64), *example)
    for plan_name, plan in plans.everything(described).items():
        with naming(plan_name):
            pair = Pair(me, blocks.workload(), plan)
            runtime = runtime_of(pair.sharded)
            whole = dict(pair.whole.named_parameters())
            assert set(runtime.names()) == set(whole)
            for name, parameter in pair.sharded.named_parameters():
                assert tuple(runtime.full_shape(name)) == tuple(whole[name].shape)
                mine = torch.zeros_like(whole[name])
                once = torch.zeros_like(whole[name])
                for piece in runtime.pieces(name):
                    close(piece.view(parameter), cut(piece, whole[name]), 0.0, name)
                    cut(piece, mine).add_(1)
                    if not piece.replicated or me.rank == 0:
                        cut(piece, once).add_(1)
                assert int(mine.sum()) == parameter.numel(), f"{name}: elements outside every piece"
                total = me.mean(once) * me.world
                assert torch.equal(total.round(), torch.ones_like(total)), f"{name}: not tiled once"


@pytest.mark.parametrize("world", [3, 4])
def test_the_pieces_of_all_ranks_tile_every_parameter_once(ranks, world):
    ranks(pieces_tile_every_parameter, world=world)


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("kept", torch.randn(3))
        self.register_buffer("passing", torch.randn(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + self.kept.sum() + self.passing.sum()


def buffers(me: Member) -> None:
    """Wrapping broadcasts rank 0's buffers; they stay local afterwards; only persistent ones are saved."""
    workload = Workload(WithBuffers, lambda s: ((torch.randn(s, 4),), torch.randn(s, 4)))
    first = workload.model(0, torch.float64)
    model = workload.model(me.rank, torch.float64)
    described = osdp.describe(model, torch.randn(3, 4, dtype=torch.float64))
    osdp.fully_shard(model, osdp.Plan.uniform(described, "FULL_SHARD"), process_group=me.group)
    for (name, got), (_, wanted) in zip(model.named_buffers(), first.named_buffers(), strict=True):
        assert torch.equal(got, wanted), name
    torch.manual_seed(me.rank)
    model(torch.randn(6, 4, dtype=torch.float64) + me.rank).sum().backward()
    means = me.everywhere(model.norm.running_mean)
    assert not torch.equal(means[0], means[1])
    state = model.state_dict()
    assert list(state) == list(first.state_dict())
    assert torch.equal(state["norm.running_mean"], model.norm.running_mean)
    assert int(state["norm.num_batches_tracked"]) == 1


def test_buffers_are_broadcast_once_and_then_local(ranks):
    ranks(buffers, world=2)
