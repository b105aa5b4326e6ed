"""Several sharded models in one process, and a sharded part of a larger model."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from harness import Member
from support import plans
from support.descriptions import describe_once
from support.pair import adamw, close, naming
from torch import nn

import osdp


def network(seed: int, width_in: int, width_out: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width_in, 7), nn.Tanh(), nn.Linear(7, width_out)).double()


def shard(me: Member, model: nn.Module, width_in: int, mode: str) -> nn.Module:
    described = describe_once(model, torch.randn(2, width_in, dtype=torch.float64))
    return osdp.fully_shard(model, plans.apart(osdp.Plan.uniform(described, mode)), process_group=me.group)


def same(model: nn.Module, whole: nn.Module, what: str) -> None:
    for name, value in model.state_dict().items():
        close(value, whole.state_dict()[name], 1e-9, f"{what}: {name}")


def adversaries(me: Member, mode: str) -> None:
    """A generator trained through a critic, and the critic on what it makes, in turns."""
    whole = network(1, 5, 4), network(2, 4, 1)
    mine = shard(me, network(1, 5, 4), 5, mode), shard(me, network(2, 4, 1), 4, "FULL_SHARD")
    sides = []
    for generator, critic in (whole, mine):
        sides.append((generator, critic, adamw(generator.parameters()), adamw(critic.parameters())))
    for step in range(4):
        torch.manual_seed(step)
        noise, real = torch.randn(2 * me.world, 5), torch.randn(2 * me.world, 4)
        for side, (generator, critic, for_generator, for_critic) in enumerate(sides):
            z, x = (t.double() if side == 0 else me.part(t).double() for t in (noise, real))
            loss = critic(generator(z).detach()).mean() - critic(x).square().mean()
            loss.backward()
            for_critic.step()
            for_critic.zero_grad()
            (-critic(generator(z)).mean()).backward()
            for_generator.step()
            for_generator.zero_grad()
            for_critic.zero_grad()
    same(mine[0], whole[0], "generator")
    same(mine[1], whole[1], "critic")


@pytest.mark.parametrize("mode", plans.MODES)
def test_one_model_trained_through_another(ranks, mode):
    ranks(adversaries, mode, world=2)


class Larger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = network(3, 5, 6)
        self.body = network(4, 6, 6)
        self.after = network(5, 6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.body(torch.tanh(self.body(self.before(x)))))


def part_of_a_model(me: Member) -> None:
    """Only `body` is sharded, and called twice; the user all-reduces the rest."""
    for mode in plans.MODES:
        with naming(mode):
            whole, mine = Larger(), Larger()
            shard(me, mine.body, 6, mode)
            optimizers = [adamw(model.parameters()) for model in (whole, mine)]
            for step in range(4):
                torch.manual_seed(step)
                x = torch.randn(2 * me.world, 5).double()
                whole(x).square().mean().backward()
                mine(me.part(x)).square().mean().backward()
                for rest in (mine.before, mine.after):
                    for parameter in rest.parameters():
                        dist.all_reduce(parameter.grad, group=me.group)
                        parameter.grad /= me.world
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            same(mine, whole, "model")


def test_a_sharded_part_of_a_larger_model(ranks):
    ranks(part_of_a_model, world=2)


def gone(me: Member) -> None:
    """Models that are dropped, in the middle of a pass too, leave nothing that disturbs the next."""
    for _ in range(3):
        model = shard(me, network(1, 5, 4), 5, "FULL_SHARD")
        loss = model(torch.randn(2, 5).double()).sum()
        del model
        loss.backward()
        model = shard(me, network(1, 5, 4), 5, "FULL_SHARD")
        model(torch.randn(2, 5).double())
        rows = [weakref.ref(p) for p in model.parameters()]
        del model, loss
        gc.collect()  # once: what the first only makes garbage would stay until another
        assert not any(row() is not None for row in rows)


def test_dropping_a_model_with_a_graph_that_is_still_there(ranks):
    ranks(gone, world=2)


def collected(me: Member) -> None:
    """Rank 0 collects another model as garbage where rank 1 still has it, and where the model's own plan is made."""
    other = shard(me, network(1, 5, 4), 5, "FULL_SHARD")
    model = osdp.FullyShardedDataParallel(network(2, 5, 4), me.group, memory="1GiB")
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():  # as torch.distributed.checkpoint initialises an optimizer's state
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    if me.rank == 0:
        del other
        gc.collect()
    for _ in range(3):
        model(torch.randn(2, 5).double()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_model_that_one_rank_has_still_and_another_has_not(ranks):
    ranks(collected, world=2)


class TwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.single = nn.Linear(5, 6)
        self.double_ = nn.Linear(6, 6).double()
        self.brief = nn.Linear(6, 3).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.brief(self.double_(self.single(x).double()).bfloat16()).float()


def several_types(me: Member, mode: str) -> None:
    """Parameters of three types in one model: every mode does what NO_SHARD does."""
    results = []
    for each in ("NO_SHARD", mode):
        torch.manual_seed(0)
        model = TwoTypes()
        plan = osdp.Plan.uniform(describe_once(model, torch.randn(2, 5)), each)
        osdp.fully_shard(model, plan, process_group=me.group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            torch.manual_seed(10 * step + me.rank)
            model(torch.randn(2, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append({name: value.clone() for name, value in model.state_dict().items()})
    for name, value in results[0].items():
        assert results[1][name].dtype == value.dtype
        assert torch.equal(results[1][name], value), name


@pytest.mark.parametrize("mode", ["SHARD_GRAD_OP", "FULL_SHARD"])
def test_parameters_of_several_types(ranks, mode):
    ranks(several_types, mode, world=2)
