"""Which ranks make a line of HYBRID_SHARD: told by a mesh, by two groups, by numbers, or found by host names."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import SEED, Pair, adamw, close
from support.workload import Workload, vectors
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import ShardingStrategy

import osdp
from osdp.ranks.process_groups import group_of_ranks
from osdp.ranks.rank_group import Together
from osdp.sharding.hybrid_mesh import RankGrid, given_or_found
from osdp.sharding.sharded_model import runtime_of


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 4))


def mixed(description: osdp.ModelDescription) -> osdp.Plan:
    """HYBRID_SHARD beside FULL_SHARD and NO_SHARD."""
    plan = osdp.Plan.uniform(description, "HYBRID_SHARD")
    return plans.apart(plan.replace({"2": osdp.Choice("FULL_SHARD"), "4": osdp.Choice("NO_SHARD")}))


WORKLOAD = Workload(layers, vectors(6, 4))


def grid_of(pair: Pair) -> tuple[tuple[int, ...], ...]:
    grid = runtime_of(pair.sharded).grid
    assert grid is not None
    return grid.lines


def mesh(me: Member, shape: list[list[int]]) -> None:
    device_mesh = DeviceMesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    pair = Pair(me, WORKLOAD, mixed, device_mesh=device_mesh)
    assert grid_of(pair) == tuple(map(tuple, shape))
    pair.train(steps=2)
    again = Pair(me, WORKLOAD, mixed, process_group=device_mesh)
    again.train(steps=1)


@pytest.mark.parametrize(
    "shape", [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[3, 0], [1, 2]], [[0], [1], [2], [3]]]
)
def test_a_mesh_of_two_dimensions(ranks, shape):
    ranks(mesh, shape, world=4)


def mesh_of_one(me: Member) -> None:
    device_mesh = init_device_mesh("cpu", (4,))
    plan = osdp.Plan.uniform(describe_once(layers(), torch.zeros(2, 6)))
    for how in ({"device_mesh": device_mesh}, {"process_group": device_mesh}):
        model = osdp.fully_shard(layers(), plan, **how)
        assert runtime_of(model).runtime.world == 4
    Pair(me, WORKLOAD, mixed, device_mesh=device_mesh, ranks_per_host=2).train(steps=1)


def test_a_mesh_of_one_dimension_is_its_group(ranks):
    ranks(mesh_of_one, world=4)


def pair_of_groups(me: Member) -> None:
    """As FSDP1 takes them: the ranks that shard, and those that hold the same shard."""
    rows = [dist.new_group(r) for r in ([0, 1], [2, 3])]
    columns = [dist.new_group(r) for r in ([0, 2], [1, 3])]
    groups = rows[me.rank // 2], columns[me.rank % 2]
    pair = Pair(me, WORKLOAD, mixed, process_group=groups)
    assert grid_of(pair) == ((0, 1), (2, 3))
    pair.train(steps=2)
    with pytest.raises(osdp.ProcessGroupError, match="do not form a grid"):
        Pair(me, WORKLOAD, mixed, process_group=(rows[me.rank // 2], rows[me.rank // 2]))
    with pytest.raises(osdp.ProcessGroupError, match="two process groups"):
        Pair(me, WORKLOAD, mixed, process_group=(rows[me.rank // 2], None))


def test_a_shard_group_and_a_replicate_group(ranks):
    ranks(pair_of_groups, world=4)


def part_of_the_job(me: Member, directory) -> None:
    """Two models at once, each on two of the four ranks: the planes of a mesh with another dimension."""
    if me.rank == 0:
        dist.new_group([0], use_local_synchronization=True)  # ranks need not have made the same groups before
    cube = DeviceMesh("cpu", [[[0, 1]], [[2, 3]]], mesh_dim_names=("replicate", "tensor", "other"))
    plane = cube["replicate", "tensor"]
    inside = Member(me.rank // 2, 2, me.group)
    described = describe_once(layers().double(), torch.zeros(2, 6, dtype=torch.float64))
    whole = WORKLOAD.model(SEED, torch.float64)
    model = osdp.fully_shard(WORKLOAD.model(SEED + me.rank // 2, torch.float64), mixed(described), plane)
    sharded = runtime_of(model)
    assert sharded.runtime.world == 2
    assert sharded.grid == RankGrid(((0,), (1,)))
    x, target = WORKLOAD.data(5, 4, torch.float64)
    optimizers = [adamw(whole.parameters()), adamw(model.parameters())]
    for _ in range(2):
        WORKLOAD.loss(whole(*x), target).backward()
        WORKLOAD.loss(model(inside.part(x[0])), inside.part(target)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    osdp.save(model, optimizers[1], directory / str(me.rank % 2))
    loaded = WORKLOAD.model(SEED + 9, torch.float64)
    dist.barrier()
    osdp.load(loaded, None, directory / "1", process_group=me.group)
    for name, value in model.state_dict().items():
        close(value, whole.state_dict()[name], 1e-9, name)
        assert torch.equal(value, loaded.state_dict()[name]), name


def test_a_mesh_over_some_of_the_ranks(ranks, tmp_path):
    ranks(part_of_the_job, tmp_path, world=4)


def found(me: Member, hosts: list[str]) -> None:
    was, socket.gethostname = socket.gethostname, lambda: hosts[me.rank]
    try:
        pair = Pair(me, WORKLOAD, mixed)
    finally:
        socket.gethostname = was
    order = list(dict.fromkeys(hosts))
    assert grid_of(pair) == tuple(tuple(r for r in range(4) if hosts[r] == h) for h in order)
    pair.train(steps=1)


@pytest.mark.parametrize("hosts", [["a", "a", "b", "b"], ["a", "b", "a", "b"], ["a"] * 4, list("abcd")])
def test_hosts_found_by_their_names(ranks, hosts):
    ranks(found, hosts, world=4)


def told_by_the_environment(me: Member) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSDP_RANKS_PER_HOST", "2")
        assert grid_of(Pair(me, WORKLOAD, mixed)) == ((0, 1), (2, 3))
        assert grid_of(Pair(me, WORKLOAD, mixed, ranks_per_host=1)) == ((0,), (1,), (2,), (3,))
        # Beside tensor parallelism of 2 over neighbours a host has one rank of each model: 0 and 2, of two hosts.
        over = together_of([me.rank % 2, me.rank % 2 + 2])
        assert given_or_found(over, None, None).lines == ((0,), (1,))
        patch.setenv("OSDP_RANKS_PER_HOST", "4")
        assert given_or_found(over, None, None).lines == ((0, 1),)


def together_of(ranks: list[int]) -> Together:
    return Together(group_of_ranks(ranks), "the test")


def test_hosts_told_by_the_environment(ranks):
    ranks(told_by_the_environment, world=4)


def refused(me: Member) -> None:
    model = WORKLOAD.model(SEED, torch.float64)
    plan = mixed(describe_once(model, torch.zeros(2, 6, dtype=torch.float64)))
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    square = init_device_mesh("cpu", (2, 2))
    cases = [
        (osdp.InvalidProblemError, "divides the 4 ranks", {"ranks_per_host": 3}),
        (osdp.DisagreementError, "different hosts: .* on rank 1", {"ranks_per_host": 2 if me.rank else 1}),
        (osdp.ProcessGroupError, "3 dimensions", {"device_mesh": init_device_mesh("cpu", (2, 2, 1))}),
        (osdp.ProcessGroupError, "not both", {"device_mesh": square, "process_group": me.group}),
    ]
    for error, match, how in cases:
        with pytest.raises(error, match=match):
            osdp.fully_shard(model, plan, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "odd" if me.rank == 3 else "even")
        with pytest.raises(osdp.ProcessGroupError, match="even: 3, odd: 1"):
            osdp.fully_shard(model, plan)
        patch.setenv("OSDP_RANKS_PER_HOST", "two")
        with pytest.raises(osdp.InvalidProblemError, match="'two'"):
            osdp.fully_shard(model, plan)
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
    Pair(me, WORKLOAD, mixed, ranks_per_host=2).train(steps=1)


def test_what_cannot_be_a_grid_is_refused_with_nothing_changed(ranks):
    ranks(refused, world=4)


def the_class(me: Member) -> None:
    square = init_device_mesh("cpu", (2, 2))
    wanted = {
        ShardingStrategy.HYBRID_SHARD: "HYBRID_SHARD",
        ShardingStrategy._HYBRID_SHARD_ZERO2: "HYBRID_SHARD",
        ShardingStrategy.FULL_SHARD: "FULL_SHARD",
        ShardingStrategy.SHARD_GRAD_OP: "SHARD_GRAD_OP",
        ShardingStrategy.NO_SHARD: "NO_SHARD",
        "HYBRID_SHARD": "HYBRID_SHARD",
        None: "HYBRID_SHARD",  # a mesh of two dimensions says so
    }
    for strategy, mode in wanted.items():
        model = osdp.FullyShardedDataParallel(layers(), device_mesh=square, sharding_strategy=strategy)
        assert {c.mode for c in model.plan.choices.values()} == {mode}
        model(torch.ones(2, 6)).sum().backward()
    model = osdp.FullyShardedDataParallel(
        blocks.Blocks(1), sharding_strategy="HYBRID_SHARD", ranks_per_host=2, process_group=me.group
    )
    assert model.blocks[0].up.weight.shape == (9, 10)
    assert osdp.FullyShardedDataParallel(blocks.Blocks(1)).blocks[0].up.weight.shape[0] in (3, 5)
    with pytest.raises(osdp.InvalidProblemError, match="'ZERO'"):
        osdp.FullyShardedDataParallel(layers(), sharding_strategy="ZERO")
    with pytest.raises(osdp.InvalidProblemError, match="sharding_strategy"):
        osdp.FullyShardedDataParallel(layers(), plan=model.plan, sharding_strategy="FULL_SHARD")


def test_sharding_strategies_of_the_class(ranks):
    ranks(the_class, world=4)


def searched_by_the_class(me: Member) -> None:
    """With memory= the search knows of the hosts that were found."""
    model = osdp.FullyShardedDataParallel(
        layers(),
        memory="1GiB",
        sample=(torch.zeros(2, 6),),
        search={"modes": "HYBRID_SHARD"},
        ranks_per_host=2,
    )
    assert model.plan.searched.hosts == 2
    assert model[0].weight.shape == (4, 6)
    model(torch.ones(2, 6)).sum().backward()


def test_the_class_searches_for_the_hosts_it_finds(ranks):
    ranks(searched_by_the_class, world=4)
