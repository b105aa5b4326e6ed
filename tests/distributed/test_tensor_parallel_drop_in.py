"""Tensor parallelism under FSDP2's manner of wrapping and under the class, beside torch's FSDP2 over the same mesh."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.pair import adamw, close, naming
from support.tensor_parallel import Net, TensorPair, loss, mesh_of, net, parallelized, tokens
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torchs_fully_shard
from torch.distributed.tensor import DTensor

import osdp


def by_blocks(
    me: Member, function: Any, dtype: torch.dtype = torch.float64, tied: bool = False, **options: Any
) -> Net:
    mesh = mesh_of(me, me.world // 2, 2)
    model = parallelized(net(dtype, tied), mesh["tp"])
    for block in model.blocks:
        function(block, mesh=mesh["dp"], **options)
    function(model, mesh=mesh["dp"], **options)
    return model


def one_call(me: Member, **options: Any) -> torch.nn.Module:
    mesh = mesh_of(me, me.world // 2, 2)
    model = parallelized(net(), mesh["tp"])
    return osdp.FullyShardedDataParallel(model, device_mesh=mesh["dp"], **options)


def wrapped(me: Member, names: list[str]) -> None:
    kinds: dict[str, Any] = {
        "blocks, then the model": lambda: by_blocks(me, osdp.fully_shard),
        "tied": lambda: by_blocks(me, osdp.fully_shard, tied=True),
        "kept after forward": lambda: by_blocks(me, osdp.fully_shard, reshard_after_forward=False),
        "the class": lambda: one_call(me),
        "the class with memory": lambda: one_call(me, memory="1GiB"),
    }
    for name in names:
        with naming(name):
            pair = TensorPair(kinds[name](), net(tied=name == "tied"), me.rank // 2, me.world // 2)
            pair.train(steps=2)
            pair.same_parameters()


@pytest.mark.parametrize(
    ("world", "names"),
    [
        (2, ["blocks, then the model"]),
        (4, ["blocks, then the model", "tied", "the class with memory"]),
        pytest.param(4, ["kept after forward", "the class"], marks=pytest.mark.extras),
    ],
)
def test_both_drop_ins_train_as_one_process(ranks, world, names):
    ranks(wrapped, names, world=world)


def step_of(model: Any, optimizer: torch.optim.Optimizer, me: Member, step: int) -> None:
    batch, targets = (tokens(step + k, 4).chunk(2)[me.rank // 2] for k in (0, 50))
    loss(model(batch), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


def low_precision(me: Member) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ours = by_blocks(me, osdp.fully_shard, torch.float32, mp_policy=policy)
    theirs = by_blocks(me, torchs_fully_shard, torch.float32, mp_policy=policy)
    whole = parallelized(net(torch.float32), mesh_of(me, 2, 2)["tp"])
    described = describe_once(whole, tokens(0, 2))
    mixed = osdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    plan = osdp.Plan.uniform(described, "NO_SHARD")
    osdp.fully_shard(whole, plan, device_mesh=mesh_of(me, 2, 2)["dp"], mixed_precision=mixed)
    models = {"FSDP2": theirs, "FULL_SHARD": ours, "NO_SHARD": whole}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.5) for name, model in models.items()}
    for step in range(2):
        for name, model in models.items():
            step_of(model, optimizers[name], me, 10 * step)
    wanted = full(theirs.state_dict())
    for name in ("FULL_SHARD", "NO_SHARD"):
        for key, value in full(models[name].state_dict()).items():
            close(value, wanted[key], 1e-6, f"{name}: {key}")


def full(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}


def test_bfloat16_is_fsdp2s(ranks):
    ranks(low_precision, world=4)


def layouts(me: Member) -> None:
    ours, theirs = (by_blocks(me, function) for function in (osdp.fully_shard, torchs_fully_shard))
    optimizers = [adamw(m.parameters()) for m in (ours, theirs)]
    for step in range(2):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            step_of(model, optimizer, me, step)
    same_layout(ours.state_dict(), theirs.state_dict())
    same_layout(get_model_state_dict(ours), get_model_state_dict(theirs))
    states = [
        get_optimizer_state_dict(m, o)["state"] for m, o in zip((ours, theirs), optimizers, strict=True)
    ]
    assert states[0].keys() == states[1].keys()
    for name, state in states[1].items():
        same_layout(states[0][name], state)
    # Full, and one's into the other.
    options = StateDictOptions(full_state_dict=True)
    wanted = full(theirs.state_dict())
    for key, value in get_model_state_dict(ours, options=options).items():
        assert not isinstance(value, DTensor)
        close(value, wanted[key], 1e-9, key)
    for source, target, of in (
        (theirs, by_blocks(me, osdp.fully_shard), optimizers[1]),
        (ours, by_blocks(me, torchs_fully_shard), optimizers[0]),
    ):
        into = adamw(target.parameters())
        set_model_state_dict(target, get_model_state_dict(source))
        # A copy: optimizers keep the tensors that they are given.
        set_optimizer_state_dict(target, into, copy.deepcopy(get_optimizer_state_dict(source, of)))
        step_of(source, of, me, 7)
        step_of(target, into, me, 7)
        wanted = full(source.state_dict())
        for key, value in full(target.state_dict()).items():
            close(value, wanted[key], 1e-9, key)


def same_layout(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        if not isinstance(value, DTensor):
            continue
        found = got[name]
        assert found.placements == value.placements, f"{name}: {found.placements}, {value.placements}"
        assert found.device_mesh == value.device_mesh, f"{name}: {found.device_mesh}, {value.device_mesh}"
        assert found.shape == value.shape
        close(found.to_local(), value.to_local(), 1e-9, name)


def test_state_dicts_are_laid_out_as_fsdp2s(ranks):
    ranks(layouts, world=4)


def in_files(me: Member, folder: str) -> None:
    def over_all() -> Any:  # no tensor parallelism: all ranks shard
        return osdp.fully_shard(net(seed=3), process_group=me.group)

    def divided() -> Any:  # tensor parallelism alone
        mesh = mesh_of(me, 1, 4)
        return osdp.fully_shard(parallelized(net(seed=3), mesh["tp"], sequence=False), mesh=mesh["dp"])

    kinds: dict[str, Any] = {
        "FSDP2": lambda: by_blocks(me, torchs_fully_shard),
        "2 x 2": lambda: by_blocks(me, osdp.fully_shard),
        "1 x 4": over_all,
        "4 x 1": divided,
    }
    parts = {"FSDP2": (2, me.rank // 2), "2 x 2": (2, me.rank // 2), "1 x 4": (4, me.rank), "4 x 1": (1, 0)}

    def step(name: str, model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        batch, targets = (tokens(number + k, 4).chunk(parts[name][0])[parts[name][1]] for k in (0, 50))
        loss(model(batch), targets).backward()
        optimizer.step(), optimizer.zero_grad()

    for writer, flattened in (("2 x 2", False), ("1 x 4", True)):
        source = kinds[writer]()
        trained = adamw(source.parameters())
        step(writer, source, trained, 0)
        file = f"{folder}/{writer}"
        dcp.save(states_of(source, trained, flattened), checkpoint_id=file)
        step(writer, source, trained, 1)
        wanted = full(source.state_dict())
        for name, make in kinds.items():
            with naming(f"{writer} into {name}"):
                target = make()
                with torch.no_grad():
                    for parameter in target.parameters():
                        parameter.zero_()
                optimizer = adamw(target.parameters())
                states = states_of(target, optimizer, flattened)
                dcp.load(states, checkpoint_id=file)
                set_state_dict(
                    target,
                    optimizer,
                    model_state_dict=states["model"],
                    optim_state_dict=states["optimizer"],
                    options=StateDictOptions(flatten_optimizer_state_dict=flattened),
                )
                step(name, target, optimizer, 1)
                for key, value in full(target.state_dict()).items():
                    close(value, wanted[key], 1e-9, key)


def states_of(model: Any, optimizer: torch.optim.Optimizer, flattened: bool) -> dict[str, Any]:
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options), strict=True))


def test_dcp_checkpoints_go_into_fsdp2_and_other_degrees(ranks, tmp_path):
    ranks(in_files, str(tmp_path), world=4)


def in_lines(me: Member) -> None:
    mesh = mesh_of(me, 2, 2, 1, names=("replicate", "dp", "tp"))
    models = []
    for function in (osdp.fully_shard, torchs_fully_shard):
        models.append(parallelized(net(), mesh["tp"]))
        function(models[-1], mesh=mesh["replicate", "dp"])
    same_layout(models[0].state_dict(), models[1].state_dict())


def test_hybrid_state_dicts_are_laid_out_as_fsdp2s(ranks):
    ranks(in_lines, world=4)


def own_files(me: Member, folder: str) -> None:
    def by_plan(mode: str) -> Any:
        mesh = mesh_of(me, 2, 2)
        model = parallelized(net(seed=3), mesh["tp"])
        osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model), mode), device_mesh=mesh["dp"])
        return model

    source = by_blocks(me, osdp.fully_shard)
    trained = adamw(source.parameters())
    step_of(source, trained, me, 0)
    osdp.save(source, trained, folder)
    step_of(source, trained, me, 1)
    wanted = full(source.state_dict())
    alone = mesh_of(me, 1, 4)
    targets = {
        "whole over dp": by_plan("NO_SHARD"),
        "no tensor parallelism": osdp.fully_shard(net(seed=3), process_group=me.group),
        "tensor parallelism alone": osdp.fully_shard(
            parallelized(net(seed=3), alone["tp"], sequence=False), mesh=alone["dp"]
        ),
    }
    for name, target in targets.items():
        with naming(name):
            optimizer = adamw(target.parameters())
            osdp.load(target, optimizer, folder)
            whole = tokens(1, 4), tokens(51, 4)  # what all ranks of `source` saw together
            parts, rank = (2, me.rank // 2) if name == "whole over dp" else (1, 0)
            batch, targets_ = (t.chunk(parts)[rank] for t in whole)
            loss(target(batch), targets_).backward()
            optimizer.step()
            for key, value in full(target.state_dict()).items():
                close(value, wanted[key], 1e-9, key)
    osdp.save(targets["whole over dp"], None, folder + "-again")
    plain = net(seed=9)
    osdp.load(plain, None, folder + "-again")
    wanted = plain.state_dict()
    for key, value in full(targets["whole over dp"].state_dict()).items():
        close(value, wanted[key], 0, key)


def test_own_checkpoints_go_into_other_degrees(ranks, tmp_path):
    ranks(own_files, str(tmp_path / "step"), world=4)
