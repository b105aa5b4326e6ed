"""profile: measures this machine for the search."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from osdp.base.kept_state import generators_kept, untouched
from osdp.base.progress import Progress
from osdp.description.describe import describe
from osdp.description.model_description import ModelDescription, Operator
from osdp.errors import OSDPError, ProfileError
from osdp.hardware.hardware import Collective, DeviceMemory, Hardware, HostMemory
from osdp.hardware.this_machine import measure_probe, measured_here, processor_of
from osdp.profiling.device_memory import MemoryProbe
from osdp.profiling.each_rank import each
from osdp.profiling.machine_speed import (
    collective_sizes,
    device_memory,
    lane_collectives,
    lane_of,
    measure_collectives,
    measure_host_memory,
    measure_inside_hosts,
    measure_optimizer,
    measure_rates,
)
from osdp.profiling.operator_times import Gamma, enqueue_step, measure_gamma
from osdp.profiling.overlap import Contention, measure_contention
from osdp.profiling.shared_cores import measure_fewer_ranks
from osdp.profiling.trial_steps import Trial, fitted, take_trials
from osdp.ranks.backends import backend_of
from osdp.ranks.hosts import host_of_each
from osdp.ranks.rank_group import Together, first_unlike

_SILENT_S = 1.0  # shorter profiles show no progress


def profile(
    model_or_desc: nn.Module | ModelDescription | None = None,
    *args: Any,
    group: dist.ProcessGroup | None = None,
    seconds: float = 10.0,
    **kwargs: Any,
) -> Hardware:
    """Measure this machine in about `seconds` seconds; collective: every rank of `group` calls it and gets
    the same result.

    With a real model and a sample (`args`, `kwargs`, as for `describe`) the operators' times (gamma) are
    measured, on all ranks at once; they add up to the whole forward and backward, without a loss that is
    computed outside the model; and sharded copies of the model are trained for some steps (trial_steps.py),
    which measures the cost of communication that runs concurrently with computation. With a description, a
    model on the meta device, or no model, there is no gamma: `search` uses the operators' flops and the rate
    of their dtype. Without a process group, or with one rank, collectives cost nothing. The model does not
    change; profile it before it is sharded.

    Raises ProfileError on every rank when something fails on any of them.

    >>> osdp.profile(model, tokens).all_reduce.beta_s_per_byte
    """
    ranks = Together(group, "osdp.profile")
    if ranks.rank < 0:
        raise ProfileError(
            "this process is not a rank of the group to profile: only its ranks may call profile"
        )
    with torch.no_grad(), Progress("osdp.profile") as progress:
        return _profile(ranks, model_or_desc, args, kwargs, seconds, progress)


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """For code that communicates, and so fails on every rank if it fails on one: OSDPErrors pass, others
    become ProfileErrors."""
    try:
        yield
    except OSDPError:
        raise
    except Exception as error:
        raise ProfileError(f"{what}: {type(error).__name__}: {error}") from error


def _profile(
    ranks: Together,
    subject: nn.Module | ModelDescription | None,
    args: Any,
    kwargs: Any,
    seconds: float,
    progress: Progress,
) -> Hardware:
    def begin(what: str) -> None:
        if seconds > _SILENT_S:
            progress.step(what)

    def prepare() -> tuple[torch.device, ModelDescription | None]:
        if not 0 < seconds < 1e6:
            raise ValueError(f"seconds must be a positive number, got {seconds!r}")
        if subject is None or isinstance(subject, ModelDescription):
            return _group_device(ranks), subject
        if not isinstance(subject, nn.Module):
            raise TypeError(f"expected a module or a ModelDescription, got {type(subject).__name__}")
        if not args and not kwargs:
            raise ValueError(
                "a model needs a sample to be measured: osdp.profile(model, inputs); osdp.profile() measures the machine"
            )
        return _model_device(subject, ranks), describe(subject, *args, **kwargs)

    device, description = each(ranks, "preparing to profile", prepare)
    real = isinstance(subject, nn.Module) and bool(args or kwargs) and not _on_meta(subject)
    kinds = ranks.all(
        json.dumps([str(device.type), real, [o.name for o in description.operators] if description else []])
    )
    if other := first_unlike(kinds):
        raise ProfileError(
            f"ranks 0 and {other} profile different things: their device, kind of model and operators "
            f"are {kinds[0][:200]} and {kinds[other][:200]}"
        )
    hosts = host_of_each(ranks)
    probe = MemoryProbe(device)
    begin("timing collectives")
    with failing_as("a collective failed during its measurement"):
        sizes = collective_sizes(device, ranks.group, ranks.world_size, seconds * 0.2)
        costs, inside = (Collective(0.0, 0.0),) * 3, None
        if ranks.world_size > 1:
            lane = lane_collectives(device, ranks.group)
            costs = measure_collectives(device, lane, ranks.world_size, seconds * 0.2, sizes)
            inside = measure_inside_hosts(device, ranks.group, hosts, seconds * 0.1, sizes)
            probe.communicated(lane_of(ranks.group, device))

    def measure_locally() -> dict[str, float]:
        product_s, copy_s = measure_probe(device)  # first, since the ranks have just synchronized
        with generators_kept(device), torch.enable_grad():
            rates = {name: 1 / rate for name, rate in measure_rates(device, seconds * 0.1).items()}
            optimizer_s = measure_optimizer(device, seconds * 0.1)
            host = measure_host_memory(device, seconds * 0.1)
        return {**rates, **host, "optimizer": optimizer_s, "product": product_s, "copy": copy_s}

    begin("timing matrix products and the optimizer")
    local = _mean(ranks, each(ranks, "timing matrix products and the optimizer", measure_locally))
    optimizer_s_per_byte = local.pop("optimizer")
    here = measured_here(device, local.pop("product"), local.pop("copy"))
    host_memory = None
    if "host optimizer" in local:
        copied = Collective(local.pop("host copy"), local.pop("host copied byte"))
        host_memory = HostMemory(copied, local.pop("host optimizer"))
    rates = {dtype: 1 / seconds_per_flop for dtype, seconds_per_flop in local.items()}
    gamma = Gamma({}, {}, {})
    if real:
        assert isinstance(subject, nn.Module) and description is not None
        kinds_of = {o.name: _likeness(o) for o in description.operators}
        begin("timing the model's operators")
        mine = each(
            ranks,
            "timing the model's operators",
            lambda: measure_gamma(subject, args, kwargs, kinds_of, device, seconds * 0.25),
        )
        gamma = Gamma(*(_mean(ranks, part) for part in asdict(mine).values()))
    step = _step_of(subject, args, kwargs, device) if real and isinstance(subject, nn.Module) else None
    on_host = max(hosts.count(h) for h in hosts)
    fewer = measure_fewer_ranks(ranks, hosts, device, seconds * 0.05, step)

    def contend() -> Contention:
        begin("timing collectives during computation")
        with failing_as("a collective failed while it was measured during computation"):
            return measure_contention(
                device, ranks.group, ranks.world_size, on_host, seconds * 0.25, step, sizes
            )

    contention = None if real and device.type == "cpu" and ranks.world_size > 1 else contend()
    made = 0 if ranks.world_size == 1 else 1 if _exchanges_on_host(ranks) else 2
    mine_memory = each(
        ranks, "reading how much memory the device holds besides tensors", lambda: probe.found(step, made)
    )
    memory = DeviceMemory(**_most(ranks, asdict(mine_memory)))
    backend = dist.get_backend(ranks.group) if ranks.world_size > 1 else "no collectives"
    measured = Hardware(
        name=f"{ranks.world_size} x {processor_of(device)}",
        source=f"measured by osdp.profile on {datetime.date.today()}: {ranks.world_size} ranks on "
        f"{len(set(hosts))} hosts, {backend}, torch {torch.__version__}",
        device=device.type,
        world_size=ranks.world_size,
        memory_bytes=device_memory(device, on_host),
        all_gather=costs[0],
        reduce_scatter=costs[1],
        all_reduce=costs[2],
        between_hosts=costs[2] if len(set(hosts)) > 1 else None,
        inside_hosts=inside,
        flops_per_s=rates.pop("float32"),
        flops_per_s_by_dtype=rates,
        optimizer_s_per_byte=optimizer_s_per_byte,
        gamma_s=gamma.per_sample_s,
        gamma_fixed_s=gamma.fixed_s,
        recompute_s=gamma.forward_s,
        device_memory=memory,
        host_memory=host_memory,
        fewer_ranks_speedup=fewer,
        measured=here,
    )
    trials: list[Trial] = []
    if real and ranks.world_size > 1:
        assert isinstance(subject, nn.Module) and description is not None
        measured = Hardware.loads(ranks.first(measured.dumps))
        begin("training sharded copies of the model")
        with failing_as(f"rank {ranks.rank}: a trial step of the sharded model failed"):
            trials = take_trials(ranks, subject, args, kwargs, description, measured, seconds * 0.35)
    if not trials and contention is None:
        contention = contend()
    if contention is not None:
        measured = replace(
            measured,
            exposed_communication=contention.exposed,
            communication_delay=contention.delay,
            stolen_computation=contention.stolen,
        )
    if trials:

        def fit() -> Hardware:  # rank 0's is used on all ranks
            return fitted(measured, trials, ranks.world_size) if ranks.rank == 0 else measured

        measured = each(ranks, "fitting trial steps", fit)
    return Hardware.loads(ranks.first(measured.dumps))  # rank 0's, exactly equal on all ranks


def _step_of(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> Callable[[], object]:
    def step() -> None:
        with untouched(model), generators_kept(device):
            enqueue_step(model, args, kwargs)

    return step


def _likeness(operator: Operator) -> tuple[object, ...]:
    """Equal for operators that do the same work."""
    shapes = tuple((p.shape, p.dtype, p.trainable) for p in operator.parameters)
    work = (operator.flops_per_sample, operator.saved_bytes_per_sample, operator.saved_bytes_fixed)
    return (operator.kind, shapes, operator.calls, *work)


def _mean(ranks: Together, mine: dict[str, float]) -> dict[str, float]:
    """The mean over ranks of every entry that all ranks have."""
    tables = ranks.all(mine)
    names = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: sum(table[name] for table in tables) / ranks.world_size for name in names}


def _most(ranks: Together, mine: dict[str, int]) -> dict[str, int]:
    """The maximum over ranks of every entry."""
    tables = ranks.all(mine)
    return {name: max(table[name] for table in tables) for name in mine}


def _exchanges_on_host(ranks: Together) -> bool:
    """Whether ranks can exchange objects without a communicator on the device."""
    return ranks.group is None or any(d.type == "cpu" for d in ranks.group._device_types)


def _on_meta(model: nn.Module) -> bool:
    return any(p.is_meta for p in model.parameters())


def _model_device(model: nn.Module, ranks: Together) -> torch.device:
    devices = {p.device for p in model.parameters()}
    if _on_meta(model):
        return _group_device(ranks)
    if len(devices) != 1:
        raise ValueError(f"the model's parameters are on {len(devices)} devices; move them to one")
    return devices.pop()


def _group_device(ranks: Together) -> torch.device:
    """The accelerator, if the group has a separate backend for it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or (
        ranks.world_size > 1 and backend_of(ranks.group, accelerator) in (None, "gloo")
    ):
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
