"""The cases: one way of training each, by name. A case is given its Setting, and tells it losses."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from training import GPT, VOCABULARY, Convolutions, Setting, described, sgd, steps, train

import osdp
from osdp.sharding.parameter_settings import STAYS_AFTER_BACKWARD, STAYS_AFTER_FORWARD, change_setting
from osdp.sharding.sharded_model import runtime_of

CASES: dict[str, Callable[[Setting], None]] = {}
FEW = ("FULL_SHARD", "NO_SHARD")
SEPARATE_REDUCTIONS = os.environ.get("SEPARATE_REDUCTIONS") == "1"  # of every plan
# One of each kind of memory that crosses streams, for what takes long: delayed streams.
ONE_OF_EACH = [
    "full_shard",
    "no_shard",
    "slices_in",
    "uneven_bf16",
    "accumulate_no_sync",
    "hybrid_bf16",
    "offloaded_hybrid",
    "exception_in_backward",
]
# What two ranks cannot show: lines of several ranks in columns of several.
AMONG_FOUR = ["hybrid_bf16", "hybrid_accumulate", "offloaded_hybrid", "two_levels"]
# What orders nothing that another case does not, and that case. `make test-accelerator-all` runs these, and so does
# test_sensitivity.py; CI does not.
SHOWN_BY_OTHERS = {
    "full_shard_few_units": "adamw",
    "hybrid_shard": "hybrid_bf16",
    "slices_out": "slices_in",
    "two_levels": "full_shard",  # two ranks have one level
    "two_levels_reduced_each_time": "two_levels",
    "checkpoint_reentrant": "called_again",
    "checkpoint_non_reentrant": "recompute_regather",
    "bf16": "bf16_no_sync",
    "other_methods": "inputs_from_the_host",
}
# What the lane for reductions is given: gradients of units, buckets and slices, of lines, and of host memory.
REDUCTIONS = ["full_shard", "no_shard", "slices_in", "accumulate", "hybrid_bf16", "offloaded"]


def case(function: Callable[[Setting], None]) -> Callable[[Setting], None]:
    CASES[function.__name__] = function
    return function


def plan_of(s: Setting, model: nn.Module, mode: str = "FULL_SHARD", apart: bool = True) -> osdp.Plan:
    """`apart`: every operator a unit of its own; small models would otherwise be one unit altogether."""
    plan = osdp.Plan.uniform(described(model), mode)
    plan = dataclasses.replace(plan, separate_reductions=SEPARATE_REDUCTIONS)
    return dataclasses.replace(plan, units=tuple((name,) for name in plan.choices)) if apart else plan


def sharded(s: Setting, mode: str = "FULL_SHARD", apart: bool = True, **sharding: Any) -> nn.Module:
    model = s.model()
    plan = plan_of(s, model, mode, apart)
    return osdp.fully_shard(model.to(s.device), plan, **sharding)


@case
def full_shard(s: Setting) -> None:
    train(s, sharded(s))


@case
def full_shard_few_units(s: Setting) -> None:
    train(s, sharded(s, apart=False))


@case
def shard_grad_op(s: Setting) -> None:
    train(s, sharded(s, "SHARD_GRAD_OP"))


@case
def no_shard(s: Setting) -> None:
    train(s, sharded(s, "NO_SHARD"))


def hybrid(s: Setting, **sharding: Any) -> nn.Module:
    return sharded(s, "HYBRID_SHARD", ranks_per_host=max(1, s.world // 2), **sharding)


@case
def hybrid_shard(s: Setting) -> None:
    train(s, hybrid(s))


@case
def hybrid_accumulate(s: Setting) -> None:
    """Rows that wait for their column are memory of their own, which the next ones may be given."""
    for no_sync in (False, True):
        accumulated(s, hybrid(s), no_sync)


@case
def hybrid_bf16(s: Setting) -> None:
    accumulated(s, hybrid(s, mixed_precision=BF16), False)


@case
def two_levels(s: Setting) -> None:
    """What came from other hosts is read by gathers of backward, and given back while others run."""
    for mode, no_sync in (("FULL_SHARD_HPZ", True), ("FULL_SHARD_HIERARCHICAL", False)):
        accumulated(s, sharded(s, mode, ranks_per_host=max(1, s.world // 2)), no_sync)


@case
def two_levels_reduced_each_time(s: Setting) -> None:
    accumulated(s, sharded(s, "FULL_SHARD_HPZ", ranks_per_host=max(1, s.world // 2)), False)


def in_slices(s: Setting, split: str) -> None:
    model = s.model()
    plan = plan_of(s, model)
    linear = [o.name for o in plan.description.operators if o.name.endswith((".up", ".down"))]
    choice = osdp.Choice("FULL_SHARD", granularity=4, sharded_slices=3, split=split)
    length = {"out": 0, "in": 1}[split]
    names = [n for n in linear if model.get_submodule(n).weight.shape[length] % 4 == 0]
    plan = plan.replace({name: choice for name in names})
    plan = dataclasses.replace(plan, units=tuple((name,) for name in plan.choices))
    train(s, osdp.fully_shard(model.to(s.device), plan))


@case
def slices_out(s: Setting) -> None:
    in_slices(s, "out")


@case
def slices_in(s: Setting) -> None:
    in_slices(s, "in")


@case
def convolutions_in_slices(s: Setting) -> None:
    torch.default_generator.manual_seed(7)
    model = Convolutions()
    choice = osdp.Choice("FULL_SHARD", granularity=4, sharded_slices=3, split="out")
    plan = plan_of(s, model).replace({"first": choice, "second": choice})
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        train(s, osdp.fully_shard(model.to(s.device), plan))


@case
def mixed_plan(s: Setting) -> None:
    model = s.model()
    plan = plan_of(s, model)
    modes = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
    choices = {name: osdp.Choice(modes[i % 3]) for i, name in enumerate(plan.choices)}
    train(s, osdp.fully_shard(model.to(s.device), plan.replace(choices)))


def recomputed(s: Setting, how: str) -> None:
    model = s.model()
    plan = plan_of(s, model)
    units = plan.units
    plan = plan.replace(recompute={block.name: how for block in plan.description.blocks})
    train(s, osdp.fully_shard(model.to(s.device), dataclasses.replace(plan, units=units)))


@case
def recompute_hold(s: Setting) -> None:
    recomputed(s, "hold")


@case
def recompute_regather(s: Setting) -> None:
    recomputed(s, "regather")


def checkpointed(s: Setting, how: str) -> None:
    model = s.model(checkpointing=how)
    plan = plan_of(s, model)
    train(s, osdp.fully_shard(model.to(s.device), plan))


@case
def checkpoint_reentrant(s: Setting) -> None:
    checkpointed(s, "reentrant")


@case
def checkpoint_non_reentrant(s: Setting) -> None:
    checkpointed(s, "non-reentrant")


def accumulated(s: Setting, model: nn.Module, no_sync: bool) -> None:
    optimizer = sgd(model.parameters())
    for step in range(2):
        for micro in range(3):
            loss = s.loss(model, 10 * step + micro)
            s.tell(loss)
            if no_sync and micro < 2:
                with osdp.no_sync(model):
                    (loss / 3).backward()
            else:
                (loss / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


@case
def accumulate(s: Setting) -> None:
    for mode in FEW:
        accumulated(s, sharded(s, mode), False)


@case
def accumulate_no_sync(s: Setting) -> None:
    for mode in FEW:
        accumulated(s, sharded(s, mode), True)


@case
def units_stay(s: Setting) -> None:
    """Gathered over micro-batches and forwards, by hand, and resharded where the optimizer steps."""
    for after_forward in (False, True):
        model = sharded(s)
        runtime = runtime_of(model).runtime
        change_setting(model.parameters(), STAYS_AFTER_BACKWARD, True)
        change_setting(model.parameters(), STAYS_AFTER_FORWARD, after_forward)
        accumulated(s, model, True)
        runtime.unshard(range(len(list(model.parameters()))), False)
        accumulated(s, model, False)


@case
def clipping(s: Setting) -> None:
    for mode in FEW:
        model = sharded(s, mode)
        for _ in steps(s, model, sgd(model.parameters())):
            s.tell(osdp.clip_grad_norm_(model, 0.5))
            s.tell(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4))


BF16 = osdp.MixedPrecision(param_dtype=torch.bfloat16)
FP16 = osdp.MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)


def low(s: Setting, precision: osdp.MixedPrecision) -> None:
    for mode in FEW:
        train(s, sharded(s, mode, mixed_precision=precision))


@case
def bf16(s: Setting) -> None:
    low(s, BF16)


@case
def bf16_fp32_reduce(s: Setting) -> None:
    low(s, osdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


@case
def bf16_no_sync(s: Setting) -> None:
    for mode in FEW:
        accumulated(s, sharded(s, mode, mixed_precision=BF16), True)


def unevenly(s: Setting, **sharding: Any) -> None:
    """Large and small tensors of which the last rank has fewer rows; a micro-batch is added to the one before."""
    torch.default_generator.manual_seed(7)
    model: nn.Module = nn.Sequential(nn.Linear(64, 301), nn.Tanh(), nn.Linear(301, 5))
    plan = osdp.Plan.uniform(described(model, torch.zeros(2, 64)), "FULL_SHARD")
    if not sharding.get("cpu_offload"):
        model = model.to(s.device)
    model = osdp.fully_shard(model, plan, device_id=s.device, **sharding)
    generator = torch.Generator().manual_seed(s.rank)
    optimizer = sgd(model.parameters())
    for _ in range(3):
        for _ in range(2):
            loss = model(torch.randn(2, 64, generator=generator).to(s.device)).float().square().mean()
            s.tell(loss)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@case
def uneven(s: Setting) -> None:
    unevenly(s)
    unevenly(s, cpu_offload=True)


@case
def uneven_bf16(s: Setting) -> None:
    unevenly(s, mixed_precision=BF16)
    unevenly(s, mixed_precision=BF16, cpu_offload=True)


@case
def fp16_scaler(s: Setting) -> None:
    for mode in FEW:
        model = sharded(s, mode, mixed_precision=FP16)
        optimizer = sgd(model.parameters())
        scaler = osdp.ShardedGradScaler(device=s.device.type, init_scale=256.0)
        for step in range(3):
            loss = s.loss(model, step)
            s.tell(loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@case
def fp16_least_gradients(s: Setting) -> None:
    """Every rank's gradient, and so the mean, is near the least that half can hold: what vanishes was scaled twice."""
    size = 2.0**-24 * s.world
    for mode in FEW:
        model: nn.Module = nn.Sequential(nn.Linear(32, 32, bias=False))
        plan = osdp.Plan.uniform(described(model, torch.zeros(1, 32)), mode)
        model = osdp.fully_shard(model.to(s.device), plan, mixed_precision=FP16)
        (model(torch.ones(1, 32, device=s.device)).float().sum() * size).backward()
        gradient = next(model.parameters()).grad
        assert gradient is not None
        s.tell(gradient.min() / size), s.tell(gradient.max() / size)


@case
def offloaded(s: Setting) -> None:
    model = s.model()
    plan = plan_of(s, model)
    # Five: comparing replicas waits for the device in the first three.
    model = osdp.fully_shard(model, plan, device_id=s.device, cpu_offload=True)
    for step in steps(s, model, sgd(model.parameters()), count=5):
        with torch.no_grad():  # copies rows to the device, which the optimizer writes on the host next
            s.tell(s.loss(model, 100 + step))
    model = s.model()
    some = {name: osdp.Choice("FULL_SHARD_OFFLOAD") for name in list(plan.choices)[::2]}
    model = osdp.fully_shard(model, plan.replace(some), device_id=s.device)
    if s.device.type != "cpu":  # some rest on the host, the others on the device
        assert {p.device.type for p in model.parameters()} == {"cpu", s.device.type}
    train(s, model, count=5)
    plan = osdp.Plan.uniform(described(s.model()), "FULL_SHARD_OFFLOAD", granularity=2)
    plan = dataclasses.replace(plan, separate_reductions=SEPARATE_REDUCTIONS)
    model = osdp.fully_shard(s.model(), plan, device_id=s.device)
    accumulated(s, model, False)  # of a slice's gradient first its own rows, then a sum
    train(s, model, count=3)


@case
def offloaded_hybrid(s: Setting) -> None:
    model = s.model()
    plan = plan_of(s, model, "HYBRID_SHARD")
    options: dict[str, Any] = {"device_id": s.device, "cpu_offload": True}
    train(s, osdp.fully_shard(model, plan, ranks_per_host=max(1, s.world // 2), **options), count=5)


@case
def wrapped_where_they_were_built(s: Setting) -> None:
    """Parts are wrapped first and are on the device then, or offloaded; the rest of the model is still on the host."""
    offloaded: dict[str, Any] = {"cpu_offload": True, "device_id": s.device}
    # By default on the accelerator, which this process has: so what is trained on the CPU beside says where.
    by_default = offloaded if s.device.type == "cpu" else {"cpu_offload": True}
    for options in ({"device_id": s.device}, offloaded, by_default):
        model = s.model()
        assert isinstance(model, GPT)
        for i, block in enumerate(model.blocks):
            model.blocks[i] = osdp.FullyShardedDataParallel(block, **options)
        train(s, osdp.FullyShardedDataParallel(model, **options))
    train(
        s, osdp.FullyShardedDataParallel(s.model(), memory="1GiB", **offloaded)
    )  # traced at the first forward


@case
def evaluation_between(s: Setting) -> None:
    for mode in FEW:
        model = sharded(s, mode)
        for step in steps(s, model, sgd(model.parameters())):
            with torch.no_grad():
                s.tell(s.loss(model, 100 + step))


class Failed(Exception):
    pass


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise Failed("in backward")


@case
def exception_in_backward(s: Setting) -> None:
    for mode in FEW:
        fail_in_backward(s, sharded(s, mode))


@case
def hybrid_exception_in_backward(s: Setting) -> None:
    fail_in_backward(s, hybrid(s))


def fail_in_backward(s: Setting, model: nn.Module) -> None:
    for round_ in range(3):
        train(s, model, count=1, first=round_)
        # In the middle, and before anything is reduced.
        where = model.head if round_ == 1 else model.blocks[1]
        handle = where.register_forward_hook(lambda m, i, o: FailsInBackward.apply(o))
        try:
            s.loss(model, 50 + round_).backward()
        except Failed:
            model.zero_grad()
        else:
            raise AssertionError("nothing was raised")
        handle.remove()
    train(s, model, count=1, first=9)


@case
def exception_in_forward(s: Setting) -> None:
    model = sharded(s)

    def fail(*_: Any) -> None:
        raise Failed("in forward")

    for round_ in range(2):
        train(s, model, count=1, first=round_)
        handle = model.blocks[1].register_forward_hook(fail)
        with contextlib.suppress(Failed):
            s.loss(model, 50)
        handle.remove()
    train(s, model, count=1, first=9)


@case
def frozen(s: Setting) -> None:
    model = s.model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name and "blocks.1" not in name)
    plan = plan_of(s, model)
    train(s, osdp.fully_shard(model.to(s.device), plan))


@case
def tied(s: Setting) -> None:
    model = s.model(tied=True)
    plan = plan_of(s, model)
    train(s, osdp.fully_shard(model.to(s.device), plan))


@case
def called_again(s: Setting) -> None:
    """Each call's backward is one of its own: gradients arrive again while those before are averaged."""
    for mode in FEW:
        model = s.model(checkpointing="reentrant")
        model.blocks[1] = model.blocks[0]
        plan = plan_of(s, model, mode)
        train(s, osdp.fully_shard(model.to(s.device), plan))


@case
def other_methods(s: Setting) -> None:
    model = sharded(s)
    optimizer = sgd(model.parameters())
    for step in range(3):
        loss = model.score(s.tokens(step)[0])
        s.tell(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@case
def inputs_from_the_host(s: Setting) -> None:
    """As data loaders give them: the model's call moves them, as those of FSDP and DDP do."""
    by_blocks = s.model().to(s.device)
    for block in by_blocks.blocks:
        osdp.fully_shard(block)
    for model in (
        sharded(s),
        osdp.fully_shard(by_blocks),
        osdp.FullyShardedDataParallel(s.model(), device_id=s.device),
        osdp.FullyShardedDataParallel(s.model(), device_id=s.device, memory="1GiB"),
        osdp.FullyShardedDataParallel(s.model(), device_id=s.device, cpu_offload=True),
    ):
        optimizer = sgd(model.parameters())
        for step in range(2):
            tokens, targets = (t.cpu() for t in s.tokens(step))
            logits = (model, model.forward)[step](tokens)
            assert logits.device == s.device
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1).cpu(), targets.flatten())
            s.tell(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model = sharded(s)
    s.tell(model.score(s.tokens(2)[0].cpu()))


@case
def state_dicts(s: Setting) -> None:
    for mode in FEW:
        model = sharded(s, mode)
        train(s, model, count=2)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        for value in state.values():
            s.tell(value.sum())
        other = sharded(s, mode)
        other.load_state_dict(state)
        train(s, other, count=2, first=2)
        with osdp.summon_full_params(other):
            for parameter in other.parameters():
                s.tell(parameter.detach().sum())
                with torch.no_grad():
                    parameter.mul_(0.5)
        train(s, other, count=1, first=4)


@case
def save_and_load(s: Setting) -> None:
    model = sharded(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    folder: list[Any] = [tempfile.mkdtemp() if s.rank == 0 else None]
    dist.broadcast_object_list(folder)
    for _ in steps(s, model, optimizer, count=2):
        pass
    osdp.save(model, optimizer, Path(folder[0]) / "checkpoint")
    other = sharded(s)
    again = torch.optim.AdamW(other.parameters(), lr=1e-3, eps=1e-3)
    osdp.load(other, again, Path(folder[0]) / "checkpoint")
    for _ in steps(s, other, again, count=2, first=2):
        pass


@case
def from_the_meta_device(s: Setting) -> None:
    with torch.device("meta"):
        model = s.model()
    generator = torch.Generator().manual_seed(5)

    def initialise(module: nn.Module) -> None:  # alike on every device
        for parameter in module.parameters(recurse=False):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)

    options: dict[str, Any] = {"device_id": s.device, "param_init_fn": initialise}
    train(s, osdp.fully_shard(model, plan_of(s, model), **options))


@case
def two_models(s: Setting) -> None:
    models = [sharded(s), sharded(s, "SHARD_GRAD_OP")]
    optimizers = [sgd(m.parameters()) for m in models]
    for step in range(3):
        losses = [s.loss(m, step) for m in models]
        (losses[0] + losses[1]).backward()
        s.tell(losses[0]), s.tell(losses[1])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@case
def on_a_side_stream(s: Setting) -> None:
    """The user trains on a stream of his own, which waits for what made the model."""
    model = sharded(s)

    def train_on() -> None:
        train(s, model)
        with s.counting():
            with osdp.no_sync(model):
                s.loss(model, 3).backward()
            train(s, model, count=1, first=4)  # adds to those gradients
        s.close()

    if s.device.type == "cpu":
        return train_on()
    side = torch.Stream(device=s.device)
    side.wait_stream(torch.accelerator.current_stream())
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(side)
    try:
        train_on()
    finally:
        torch.accelerator.set_stream(before)


@case
def host_and_device(s: Setting) -> None:
    """Two models of one process group, each kind of device with a backend of its own."""
    train(
        Setting(s.rank, s.world, torch.device("cpu")),
        osdp.fully_shard(s.model(), plan_of(s, s.model())),
        count=2,
    )
    train(s, sharded(s), count=2)


@case
def adamw(s: Setting) -> None:
    model = sharded(s, apart=False)
    for _ in steps(s, model, torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)):
        pass


def without_a_wait(s: Setting) -> None:
    """Not right: a stream reads what another one writes."""
    if s.device.type == "cpu":
        return
    x = torch.empty(1000, device=s.device).fill_(1.0)
    side, before = torch.Stream(device=s.device), torch.accelerator.current_stream()
    torch.accelerator.set_stream(side)
    x.sum()
    torch.accelerator.set_stream(before)


def host_does_not_wait(s: Setting) -> None:
    """Not right: the host reads pinned memory that the device writes, and writes what the device reads."""
    if s.device.type == "cpu":
        return
    on_device = torch.empty(1000, device=s.device).fill_(1.0)
    for waits in (True, False):
        pinned = torch.zeros(2, 1000).pin_memory()
        pinned[0].copy_(on_device, non_blocking=True)
        on_device.copy_(pinned[1], non_blocking=True)
        pinned[1].sum(), on_device.sum()  # both read
        if waits:
            torch.accelerator.current_stream().synchronize()
        pinned[0].sum(), pinned[1].add_(1)


def unit_of_linears(s: Setting, count: int) -> None:
    """`count` linears, each too large to be packed with the others, are one unit, in every mode."""
    names = [f"1.{i}" for i in range(count)]
    for mode in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        torch.default_generator.manual_seed(7)
        linears = nn.Sequential(*(nn.Linear(192, 192, bias=False) for _ in range(count)))
        model = nn.Sequential(nn.Embedding(VOCABULARY, 192), linears, nn.Linear(192, VOCABULARY, bias=False))
        plan = dataclasses.replace(plan_of(s, model, mode), units=(("0",), tuple(names), ("2",)))
        train(s, osdp.fully_shard(model.to(s.device), plan))


PLANTED = {
    "without_a_wait": without_a_wait,
    "host_does_not_wait": host_does_not_wait,
    "unit_of_one": lambda s: unit_of_linears(s, 1),
    "unit_of_three": lambda s: unit_of_linears(s, 3),
}
