"""Trial steps: times steps of the model sharded in each mode, alternating with steps of the bare model.

Note [What trial steps are for]
By how much a second of communication lengthens a step depends on the kinds of work: on a CPU communication
and computation compete for cores and caches, and sums of separately measured figures are wrong by a third. So
the model itself is trained for some steps, entirely in one mode, and four figures of the profile are fitted
to these, all relative to the bare steps between them, since a machine's speed may change by half from one
minute to the next:
  the operators' times, scaled to the bare step, and their forwards to its forward;
  the optimizer's rate, on the tensors of this model;
  `stolen_computation`, such that simulated steps take as long as the measured ones. Separate fits to forward
  and backward agree within the machine's noise. Where links are slow a step takes as long as its
  communication, nearly whatever is stolen, and a step that was measured 2% longer would be explained by all
  of its computation. So on a CPU no more is stolen than the processor time that the sharded step takes
  beyond the bare one;
  `recompute_slowdown`, with every block recomputed. A forward takes longer the second time, because of
  the hooks on what it saves and because the backward has evicted activations from caches.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from osdp.base.kept_state import generators_kept, untouched
from osdp.base.tensor_trees import batch_of
from osdp.description.model_description import ModelDescription
from osdp.errors import OSDPError
from osdp.hardware.device_timer import synchronize
from osdp.hardware.hardware import Collective, Hardware
from osdp.plan.plan import Plan
from osdp.profiling.machine_speed import lane_collectives, meet
from osdp.profiling.operator_times import differentiable, run_step
from osdp.ranks.rank_group import Together

MODES = ("SHARD_GRAD_OP", "FULL_SHARD", "NO_SHARD")  # the last one needs the most memory
WARM_UPS = 2  # steps: afterwards the order of units is known, and the optimizer has its state
_ROUNDS = (3, 30)  # fewest, most
_MOST_STOLEN, _MOST_SLOWDOWN = 10.0, 4.0


@dataclass(frozen=True)
class Trial:
    """Medians over turns, means over ranks. A step is a forward and a backward."""

    plan: Plan
    bare_s: tuple[float, float]  # forward and backward of the bare model in between
    step: float  # of the bare model's step
    optimizer: float  # likewise
    processor: float  # likewise: its further processor time, and how long others wait for their cores


def take_trials(
    ranks: Together,
    model: nn.Module,
    args: Any,
    kwargs: Any,
    description: ModelDescription,
    hardware: Hardware,
    seconds: float,
) -> list[Trial]:
    """Takes about `seconds`, and no less than 5 steps in each mode. Collective.

    The model does not change: copies of it are sharded, one after the other. A mode is skipped if a copy
    would not fit besides the model, or cannot be made or sharded; the list may be empty.
    """
    device = next(model.parameters()).device
    batch_size = batch_of((args, kwargs))
    plans = [replace(Plan.uniform(description, mode), batch_size=batch_size) for mode in MODES]
    if description.blocks:
        plans.append(plans[0].replace({}, recompute={b.name: "hold" for b in description.blocks}))
    trials: list[Trial] = []
    for plan in plans:
        if not _fits(plan, description, hardware, ranks.world_size):
            continue
        sharded = _sharded_copy(ranks, model, plan)
        if sharded is not None:
            turns = _turns(ranks, model, sharded, args, kwargs, device, seconds / len(plans))
            trials.append(_judge(ranks, plan, turns))
        del sharded
        gc.collect()  # modules and their hooks form reference cycles
    return trials


def fitted(hardware: Hardware, trials: list[Trial], world_size: int) -> Hardware:
    """`hardware` fitted to the trials, of which there is at least one: see Note [What trial steps are
    for]."""
    batch_size = trials[0].plan.batch_size
    forward, backward = (statistics.median(t.bare_s[i] for t in trials) for i in (0, 1))
    alone = hardware.bare_step_s(batch_size)
    alone_forward = sum(hardware.recompute_s.values()) * batch_size
    scale = (forward + backward) / alone if alone > 0 else 1.0
    here = replace(
        hardware,
        gamma_s=_scaled(hardware.gamma_s, scale),
        gamma_fixed_s=_scaled(hardware.gamma_fixed_s, scale),
        recompute_s=_scaled(hardware.recompute_s, forward / alone_forward if alone_forward > 0 else 1.0),
    )
    if here.device == "cpu":  # on an accelerator it was measured with events
        here = replace(here, communication_delay=Collective(0.0, 0.0))
    played = sum(t.plan.simulate(here, world_size).optimizer_s for t in trials)
    took = sum(t.optimizer for t in trials) * (forward + backward)
    if played > 0:
        here = replace(here, optimizer_s_per_byte=here.optimizer_s_per_byte * took / played)

    def too_fast(machine: Hardware, these: list[Trial]) -> bool:  # none are not
        lines = [t.plan.simulate(machine, world_size) for t in these]
        played = sum(line.step_time_s - line.optimizer_s for line in lines)
        return played < sum(t.step for t in these) * (forward + backward)

    plain = [t for t in trials if not t.plan.recompute]
    most = _MOST_STOLEN
    sent = sum(t.plan.simulate(here, world_size).communication_s for t in plain)
    if here.device == "cpu" and sent > 0:
        most = min(most, sum(t.processor for t in plain) * (forward + backward) / sent)
    stolen = _largest(0.0, most, lambda x: too_fast(replace(here, stolen_computation=x), plain))
    here = replace(here, stolen_computation=stolen, exposed_communication=max(1.0, stolen))
    again = [t for t in trials if t.plan.recompute]
    slowdown = _largest(1.0, _MOST_SLOWDOWN, lambda x: too_fast(replace(here, recompute_slowdown=x), again))
    return replace(here, recompute_slowdown=slowdown)


def _largest(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Approximately the largest value for which `holds` is true, by bisection; `low` if it is true for
    none."""
    for _ in range(12 if holds(low) else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _fits(plan: Plan, description: ModelDescription, hardware: Hardware, world_size: int) -> bool:
    """Whether training with the plan fits besides the model and the gradients of its bare step."""
    needed = plan.simulate(hardware, world_size).peak_memory_bytes + 2 * description.parameter_bytes
    return hardware.memory_bytes is None or needed <= hardware.memory_bytes


def _sharded_copy(ranks: Together, model: nn.Module, plan: Plan) -> nn.Module | None:
    """A sharded copy of the model; None if some rank cannot create it."""
    from osdp.sharding.fully_shard import fully_shard

    copied: nn.Module | None = None
    try:
        copied = copy.deepcopy(model)
    except Exception:  # a module's own __deepcopy__ may raise anything
        copied = None
    if not all(ranks.all(copied is not None)):
        return None
    assert copied is not None
    sharded: nn.Module | None = None
    try:
        sharded = fully_shard(copied, plan, ranks.group)
    except OSDPError:  # training refuses the model too, and says why
        sharded = None
    return sharded if all(ranks.all(sharded is not None)) else None


@dataclass(frozen=True)
class Turn:
    bare_s: tuple[float, float]  # forward and backward
    step_s: float  # sharded
    optimizer_s: float
    bare_processor_s: float
    step_processor_s: float


def _turns(
    ranks: Together,
    model: nn.Module,
    sharded: nn.Module,
    args: Any,
    kwargs: Any,
    device: torch.device,
    seconds: float,
) -> list[Turn]:
    lane = lane_collectives(device, ranks.group)
    trainable = [p for p in sharded.parameters() if p.requires_grad]
    # The weights do not change, so that values remain in a normal range.
    optimizer = torch.optim.AdamW(trainable, lr=0.0, weight_decay=0.0, fused=True)

    def turn() -> Turn:
        meet(lane, device)
        processor = time.process_time()
        bare = run_step(model, args, kwargs, device)
        bare_processor = time.process_time() - processor
        meet(lane, device)
        begin, processor = time.perf_counter(), time.process_time()
        with torch.enable_grad():
            outputs = differentiable(sharded(*args, **kwargs))
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        synchronize(device)
        between, step_processor = time.perf_counter(), time.process_time() - processor
        optimizer.step()
        synchronize(device)
        end = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        return Turn(bare, between - begin, end - between, bare_processor, step_processor)

    with untouched(model), generators_kept(device):
        for _ in range(WARM_UPS):
            turn()
        begin = time.perf_counter()
        turns = [turn()]
        took = max(ranks.all(time.perf_counter() - begin))
        count = min(max(int(seconds / took) - WARM_UPS, _ROUNDS[0]), _ROUNDS[1])
        return turns + [turn() for _ in range(count - 1)]


def _judge(ranks: Together, plan: Plan, turns: list[Turn]) -> Trial:
    def median(figure: Callable[[Turn], float]) -> float:
        return statistics.median(map(figure, turns))

    def further_processor_s(turn: Turn) -> float:
        # A bare step that takes longer than its processor time shares its cores with other ranks' steps, which
        # take as much beside.
        waiting = max(1.0, sum(turn.bare_s) / max(1e-9, turn.bare_processor_s))
        return waiting * max(0.0, turn.step_processor_s - turn.bare_processor_s)

    mine = [
        median(lambda t: t.bare_s[0]),
        median(lambda t: t.bare_s[1]),
        median(lambda t: t.step_s / sum(t.bare_s)),
        median(lambda t: t.optimizer_s / sum(t.bare_s)),
        median(lambda t: further_processor_s(t) / sum(t.bare_s)),
    ]
    forward, backward, step, optimizer, processor = (
        statistics.mean(column) for column in zip(*ranks.all(mine), strict=True)
    )
    return Trial(plan, (forward, backward), step, optimizer, processor)


def _scaled(times: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: t * factor for name, t in times.items()}
