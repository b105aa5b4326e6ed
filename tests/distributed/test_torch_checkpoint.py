"""torch.distributed.checkpoint and optimizer state dicts with sharded models: as in one process, from any ranks to any."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import Pair, adamw, close, naming
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import osdp

PLANS: dict[str, Callable[[osdp.ModelDescription], osdp.Plan] | str] = {
    "FULL_SHARD": "FULL_SHARD",
    "slices along in": lambda d: plans.in_slices(d, "in"),
    "mixture": lambda d: plans.mixture(d, 3),
    "HYBRID_SHARD": "HYBRID_SHARD",
}
WHOLE = StateDictOptions(full_state_dict=True)


def pair_of(me: Member, plan: str) -> Pair:
    """The ranks of a case are those of a mesh of their own; here all ranks are the default group too."""
    hosts = {"ranks_per_host": me.world // 2} if plan == "HYBRID_SHARD" and me.world > 2 else {}
    return Pair(me, blocks.workload(), PLANS[plan], **hosts)


def same_state(pair: Pair) -> None:
    """The whole optimizer's state and the sharded one's full state agree."""
    got = get_optimizer_state_dict(pair.sharded, pair.sharded_optimizer, options=WHOLE)
    wanted = get_optimizer_state_dict(pair.whole, pair.whole_optimizer)
    assert got["state"].keys() == wanted["state"].keys()
    for name, state in wanted["state"].items():
        for key, value in state.items():
            assert type(got["state"][name][key]) is torch.Tensor
            close(got["state"][name][key], value, 1e-9, f"{key} of {name}")
    assert got["param_groups"] == wanted["param_groups"]


def write(me: Member, plan: str, directory: Path) -> None:
    pair = pair_of(me, plan)
    pair.train(steps=2)
    same_state(pair)
    rows = {p: dict(state) for p, state in pair.sharded_optimizer.state.items()}
    model, optimizer = get_state_dict(pair.sharded, pair.sharded_optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=directory, process_group=me.group)
    for p, state in rows.items():  # the optimizer's own state is rows still
        assert all(pair.sharded_optimizer.state[p][k] is v for k, v in state.items())
    offloaded = StateDictOptions(full_state_dict=True, cpu_offload=True)
    on_one = get_optimizer_state_dict(pair.sharded, pair.sharded_optimizer, options=offloaded)
    if dist.get_rank() == 0:
        wanted = get_optimizer_state_dict(pair.whole, pair.whole_optimizer)
        close(
            on_one["state"]["head.weight"]["exp_avg"],
            wanted["state"]["head.weight"]["exp_avg"],
            1e-9,
            "rank 0",
        )
        torch.save(
            {"model": pair.whole.state_dict(), "optimizer": pair.whole_optimizer.state_dict()},
            directory / "whole.pt",
        )
    else:
        assert not on_one
    dist.barrier(me.group)


def resumed(pair: Pair, saved: dict) -> None:
    """Both go on where the checkpoint was, as if nothing had happened."""
    pair.whole.load_state_dict(saved["model"])
    pair.whole_optimizer.load_state_dict(saved["optimizer"])
    pair.same_parameters()
    same_state(pair)
    pair.train(steps=2)


def read(me: Member, plan: str, directories: list[Path]) -> None:
    for directory in directories:
        with naming(f"{directory} read under {plan}"):
            pair = pair_of(me, plan)
            model, optimizer = get_state_dict(pair.sharded, pair.sharded_optimizer)
            dcp.load(
                {"model": model, "optimizer": optimizer}, checkpoint_id=directory, process_group=me.group
            )
            set_state_dict(
                pair.sharded, pair.sharded_optimizer, model_state_dict=model, optim_state_dict=optimizer
            )
            resumed(pair, torch.load(directory / "whole.pt"))
            # One process's full state dict, by torch's functions and by the optimizer's own.
            full = get_optimizer_state_dict(pair.sharded, pair.sharded_optimizer, options=WHOLE)
            pair = pair_of(me, plan)
            saved = torch.load(directory / "whole.pt")
            pair.sharded.load_state_dict(saved["model"])
            pair.sharded_optimizer.load_state_dict(saved["optimizer"])
            resumed(pair, torch.load(directory / "whole.pt"))
            set_optimizer_state_dict(pair.sharded, pair.sharded_optimizer, full, options=WHOLE)
            from_first = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            if me.group.size() == dist.get_world_size():
                first = pair.whole.state_dict() if me.rank == 0 else {}
                set_model_state_dict(pair.sharded, first, options=from_first)
                set_optimizer_state_dict(
                    pair.sharded, pair.sharded_optimizer, full if me.rank == 0 else {}, options=from_first
                )
                pair.same_parameters()
                got = get_optimizer_state_dict(pair.sharded, pair.sharded_optimizer, options=WHOLE)
                for name, state in full["state"].items():
                    assert all(torch.equal(got["state"][name][key], value) for key, value in state.items()), (
                        name
                    )


@pytest.mark.outcome(
    "`dcp.save` and `dcp.load`, `get_state_dict`, `set_state_dict`; other ranks, another plan", "equal"
)
@pytest.mark.outcome("`get_optimizer_state_dict(full_state_dict=True, cpu_offload=True)`", "equal")
@pytest.mark.outcome("`optimizer.load_state_dict` of one process's full state dict", "equal")
@pytest.mark.parametrize(
    ("writers", "world", "reader", "readers"),
    [
        ("mixture", 2, "slices along in", 3),
        ("slices along in", 3, "HYBRID_SHARD", 4),
        ("HYBRID_SHARD", 4, "FULL_SHARD", 4),
    ],
)
def test_torchs_checkpoints(ranks, tmp_path, writers, world, reader, readers):
    ranks(write, writers, tmp_path / "step", world=world)
    ranks(read, reader, [tmp_path / "step"], world=readers)


def own_files(me: Member, directory: Path) -> None:
    """torch.save(optimizer.state_dict()): on every rank; on rank 0 alone; the same file for all."""
    for plan in ("FULL_SHARD", "slices along in"):
        with naming(plan):
            pair = pair_of(me, plan)
            pair.train(steps=1)
            state = pair.sharded_optimizer.state_dict()
            file = directory / f"{plan} {me.rank}.pt"
            torch.save(state, file)
            kept = copy.deepcopy(state)
            pair.train(steps=1)
            for loaded in (torch.load(file), kept):
                pair = pair_of(me, plan)
                pair.train(steps=1)  # the state that was saved, once more
                wanted = {p: dict(state) for p, state in pair.sharded_optimizer.state.items()}
                pair.sharded_optimizer.state.clear()
                pair.sharded_optimizer.load_state_dict(loaded)
                for p, values in wanted.items():
                    for key, value in values.items():
                        close(pair.sharded_optimizer.state[p][key], value, 0.0, key)
                pair.train(steps=1)
            dist.barrier(me.group)
            other = torch.load(directory / f"{plan} 0.pt")
            again = pair_of(me, plan)
            if me.rank == 0:
                if plan == "FULL_SHARD":
                    again.sharded_optimizer.load_state_dict(other)
            else:
                with pytest.raises(osdp.ShardingError, match=rf"rank {me.rank}: .*osdp\.save"):
                    again.sharded_optimizer.load_state_dict(other)
                assert not again.sharded_optimizer.state
            rows = {
                **state,
                "state": {
                    i: {k: getattr(v, "_local_tensor", v) for k, v in s.items()}
                    for i, s in state["state"].items()
                },
            }
            with pytest.raises(osdp.ShardingError, match="cannot tell which part this is"):
                again.sharded_optimizer.load_state_dict(rows)


@pytest.mark.outcome("`torch.save(optimizer.state_dict())` on every rank, loaded by the same ranks", "equal")
@pytest.mark.outcome(
    "`torch.save(optimizer.state_dict())` on rank 0 alone, loaded by other ranks", osdp.ShardingError
)
def test_files_of_ones_own(ranks, tmp_path):
    ranks(own_files, tmp_path, world=2)


def made_before(me: Member) -> None:
    """An optimizer that was made, and has a state, before the model was sharded: its parameters are the same objects."""
    pair = Pair(me, blocks.workload(), "NO_SHARD")
    model = blocks.workload().model(7, torch.float64)
    optimizer = adamw(model.parameters())
    plan = osdp.Plan.uniform(describe_once(model, *pair._part(pair.data(0))[0]), "FULL_SHARD")
    osdp.fully_shard(model, plan, me.group)
    pair.sharded, pair.sharded_optimizer = model, optimizer
    pair.both = (pair.both[0], (model, optimizer))
    pair.train(steps=2)
    same_state(pair)


@pytest.mark.outcome("an optimizer created before `fully_shard`, without state", "equal")
def test_optimizers_made_before_sharding(ranks):
    ranks(made_before, world=2)


def stepped_before(me: Member) -> None:
    pair = Pair(me, blocks.workload(), "NO_SHARD")
    for kind in (torch.optim.AdamW, lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)):
        model = blocks.workload().model(7, torch.float64)
        optimizer = kind(model.parameters())
        batch = pair._part(pair.data(0))[0]
        model(*batch).square().mean().backward()
        optimizer.step(), optimizer.zero_grad()
        osdp.fully_shard(model, osdp.Plan.uniform(describe_once(model, *batch), "FULL_SHARD"), me.group)
        model(*batch).square().mean().backward()
        before = [p.detach().clone() for p in model.parameters()]
        stepped = r"of 'embed\.weight' in (AdamW|SGD) has the full shape .* stepped before fully_shard"
        with pytest.raises(osdp.ShardingError, match=stepped):
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.outcome("an optimizer that has stepped before `fully_shard`", osdp.ShardingError)
def test_optimizers_that_have_stepped_before_sharding(ranks):
    ranks(stepped_before, world=2)


class Odd(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p]["columns"] = torch.zeros(7)


def odd(me: Member) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD", optimizer=lambda ps: Odd(ps, lr=0.1))
    pair.train(steps=1)
    with pytest.raises(osdp.ShardingError, match=r"'columns' .*'embed\.weight' .*\[7\]"):
        pair.sharded_optimizer.state_dict()


@pytest.mark.outcome(
    "`optimizer.state_dict()` with a state that has neither the parameter's shape nor one element",
    osdp.ShardingError,
)
def test_states_of_other_shapes(ranks):
    ranks(odd, world=2)
