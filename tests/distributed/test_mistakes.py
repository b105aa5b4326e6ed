"""What a sharded model must not do silently: it works, or a typed error says what to do instead."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from harness import Member
from support import blocks
from support.pair import Pair, naming
from support.workload import Workload, vectors
from torch import nn

import osdp

MODES = ("NO_SHARD", "FULL_SHARD")


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def pair_of(me: Member, mode: str) -> Pair:
    return Pair(me, Workload(build, vectors(6, 4)), mode)


def copies(me: Member) -> None:
    pair = pair_of(me, "FULL_SHARD")
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(osdp.ShardingError, match=r"cannot be copied or pickled.*before fully_shard"):
            make(pair.sharded)
    pair.train(steps=1)


def test_copying_a_sharded_model(ranks):
    ranks(copies, world=2)


def conversions(me: Member) -> None:
    for mode in MODES:
        with naming(mode):
            pair = pair_of(me, mode)
            pair.sharded.to(torch.float64).cpu()  # nothing to do: nothing happens
            pair.train(steps=1)
            pair.sharded.float()
            with pytest.raises(
                osdp.ShardingError, match=r"'0\.weight' is now .* Float.*Double.*before fully_shard"
            ):
                pair.sharded(torch.randn(2, 6))
            pair.sharded.double()  # and back: usable again
            pair.whole.float().double()  # rounded alike
            pair.evaluate()


def test_another_dtype_after_sharding(ranks):
    ranks(conversions, world=2)


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
            with pytest.raises(osdp.ShardingError, match=r"'0\.weight' is now \[3, 6\].*summon_full_params"):
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


def clipped_by_torch(me: Member) -> None:
    """Each rank sees another norm, scales its replicas by it, and they drift apart: told at the next step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), "FULL_SHARD")
    osdp.fully_shard(model, plan.replace({"2": osdp.Choice("NO_SHARD")}), me.group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(me.rank)
    for step in range(2):
        loss = model(torch.randn(2, 8)).square().sum()
        if step == 1:
            with pytest.raises(osdp.ReplicaError, match=r"'2\.(weight|bias)'.*clip_grad_norm_"):
                loss.backward()
            return
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()


def test_replicas_that_drift_apart_are_told(ranks):
    ranks(clipped_by_torch, world=2)


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
    with pytest.raises(osdp.ReplicaError, match="not the same on all ranks that hold it"):
        model(torch.randn(2, 8)).square().sum().backward()


def test_lines_that_drift_apart_are_told(ranks):
    ranks(noise_by_rank, world=4)
