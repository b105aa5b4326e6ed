"""Drift: change of the machine's speed since it was profiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from osdp.hardware.hardware import Collective, Hardware
from osdp.hardware.this_machine import measure_probe
from osdp.plan.plan import Plan


@dataclass(frozen=True)
class Span:
    """Seconds that the same work took when the machine was profiled, and takes now."""

    then_s: float
    now_s: float

    @property
    def ratio(self) -> float:
        return self.now_s / self.then_s


@dataclass(frozen=True)
class Drift:
    """A fixed matrix product, a fixed copy in memory (`this_machine`) and, where it was measured, a step of the bare
    model: forward and backward without communication or optimizer.
    """

    product: Span
    copy: Span
    bare_step: Span | None = None


def drift_of(plan: Plan, device: torch.device, bare_step_s: float | None) -> Drift | None:
    """The change of speed since the profile of `plan`; None if there is no profile, or it is for a different
    device."""
    hardware = plan.hardware
    if hardware is None or hardware.measured is None or hardware.device != device.type:
        return None
    product_s, copy_s = measure_probe(device)
    bare_then_s = hardware.bare_step_s(plan.batch_size)
    return Drift(
        product=Span(hardware.measured.product_s, product_s),
        copy=Span(hardware.measured.copy_s, copy_s),
        bare_step=None if bare_step_s is None or not bare_then_s else Span(bare_then_s, bare_step_s),
    )


def step_now_s(plan: Plan, drift: Drift) -> float | None:
    """The predicted step time at the machine's present speed, from simulations with the profile and with the
    profile scaled by the drift."""
    if plan.predicted is None or plan.hardware is None:
        return None
    then_s = plan.simulate().step_time_s
    now_s = plan.simulate(as_it_is(plan, plan.hardware, drift)).step_time_s
    return plan.predicted.step_time_s * now_s / then_s if then_s else None


def as_it_is(plan: Plan, hardware: Hardware, drift: Drift) -> Hardware:
    """`hardware` with its times scaled by the drift.

    Computation is scaled by the bare step if it was measured; else, for each operator, the time of its flops
    at the machine's rate is scaled by the product, and the rest by the copy. The optimizer is scaled by the
    copy, and so is communication through the memory of one host. Links between hosts and those of
    accelerators are not scaled.
    """
    product_s = {o.name: o.flops_per_sample / hardware.flops_per_s for o in plan.description.operators}

    def slower(name: str, seconds: float, passes: int) -> float:
        if drift.bare_step is not None:
            return seconds * drift.bare_step.ratio
        products = min(seconds, passes * product_s.get(name, 0.0))
        return products * drift.product.ratio + (seconds - products) * drift.copy.ratio

    def table(times: Mapping[str, float], passes: int) -> dict[str, float]:
        return {name: slower(name, seconds, passes) for name, seconds in times.items()}

    def link(cost: Collective) -> Collective:
        return Collective(cost.alpha_s * drift.copy.ratio, cost.beta_s_per_byte * drift.copy.ratio)

    rate = (drift.bare_step or drift.product).ratio
    rates = hardware.kernel_rates
    changed = replace(
        hardware,
        flops_per_s=hardware.flops_per_s / rate,
        flops_per_s_by_dtype={dtype: flops / rate for dtype, flops in hardware.flops_per_s_by_dtype.items()},
        optimizer_s_per_byte=hardware.optimizer_s_per_byte * drift.copy.ratio,
        kernel_rates=rates
        and replace(
            rates,
            memory_bytes_per_s=rates.memory_bytes_per_s / drift.copy.ratio,
            launch_s=rates.launch_s * rate,
        ),
        gamma_s=table(hardware.gamma_s, passes=3),
        gamma_fixed_s=table(hardware.gamma_fixed_s, passes=0),
        recompute_s=table(hardware.recompute_s, passes=1),
    )
    hosts = plan.searched.hosts if plan.searched is not None else 1
    if hardware.device != "cpu" or hosts > 1:
        return changed
    return replace(
        changed,
        all_gather=link(hardware.all_gather),
        reduce_scatter=link(hardware.reduce_scatter),
        all_reduce=link(hardware.all_reduce),
        communication_delay=link(hardware.communication_delay),
    )
