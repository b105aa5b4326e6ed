"""Checks the arguments of search and solve, and resolves "auto"."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from osdp.base.later_methods import function_of
from osdp.base.numbers import divisors
from osdp.base.warned import warn
from osdp.description.model_description import ACCELERATOR, CPU, ModelDescription
from osdp.errors import InvalidProblemError, MachineMismatchWarning
from osdp.hardware.hardware import DeviceMemory, Hardware, check_hardware
from osdp.plan.precisions import PRECISIONS
from osdp.plan.validation import check_description

if TYPE_CHECKING:
    from torch import Tensor, nn

    # Example inputs of a model's forward: its only argument, a tuple of arguments, or a dict of keyword arguments.
    Sample: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any] | None

DEFAULT_HARDWARE = "a100-8"  # assumed by `search` if no hardware is given
THIS_MACHINE = "this"  # hardware=: profile this machine
_PROFILE_S = 5.0


def batches_of(batch_size: int | str, global_batch_size: int | None, ranks: int) -> list[tuple[int, int]]:
    """Pairs (batch size per rank, micro-batches per step) to try; empty: every size."""
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise InvalidProblemError(
                f"batch_size must be 'auto' or a number of samples per rank, got {batch_size!r}"
            )
        size = None
    else:
        size = integer(batch_size, "batch_size")
        if not 1 <= size <= 2**30:
            raise InvalidProblemError(f"batch_size is {size}; it must be between 1 and 2**30")
    if global_batch_size is None:
        return [] if size is None else [(size, 1)]
    whole = integer(global_batch_size, "global_batch_size")
    if not 1 <= whole <= 2**40 or whole % ranks:
        raise InvalidProblemError(
            f"global_batch_size is {whole}; it must be a multiple of the world size {ranks}"
        )
    share = whole // ranks
    if size is not None:
        if share % size:
            raise InvalidProblemError(
                f"batch_size {size} does not divide {share}, each rank's share of global_batch_size {whole}"
            )
        return [(size, share // size)]
    if share > 2**24:
        raise InvalidProblemError(
            f"global_batch_size is {whole}: {share} samples per rank are more than 2**24"
        )
    return [(d, share // d) for d in divisors(share)]


def default_batch(
    model: nn.Module | ModelDescription, description: ModelDescription, global_batch_size: int | None
) -> int | str:
    """The batch size per rank where none was given."""
    if isinstance(model, ModelDescription) or global_batch_size is not None or description.sample_batch < 1:
        return "auto"
    return description.sample_batch


def arguments_of(
    sample: Sample,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sample as arguments of the model's forward: by position, and by name. One value is one argument, None is none."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    if sample is None:
        return (), {}
    return sample if isinstance(sample, tuple) else (sample,), {}


def this_machine(model: nn.Module | ModelDescription, sample: Sample) -> Hardware:
    """This machine, measured by `osdp.profile` with the model. Collective where there is a process group."""
    args, kwargs = arguments_of(sample)
    measured: Hardware = function_of("Hardware.this")(model, *args, seconds=_PROFILE_S, **kwargs)
    return measured


def machine_of(hardware: Hardware | str | os.PathLike[str] | None) -> Hardware:
    if isinstance(hardware, Hardware):
        return check_hardware(hardware)
    if isinstance(hardware, (str, os.PathLike)):
        return Hardware.load(hardware)
    if hardware is not None:
        raise InvalidProblemError(
            f"hardware={hardware!r}: give the name of a shipped machine ('h100-8'), a file, or osdp.profile's result"
        )
    # The machine is unknown: any speeds will do, but the memory limit may be meant for tensors on a CPU.
    return dataclasses.replace(Hardware.load(DEFAULT_HARDWARE), device_memory=DeviceMemory())


def check_sample(model: nn.Module | ModelDescription, sample: Sample) -> None:
    """Raise InvalidProblemError for a sample that would change nothing."""
    if isinstance(model, ModelDescription) and sample is not None:
        raise InvalidProblemError(
            f"{model.name} is a description, whose activations are those of the sample that it was made with: sample= "
            "would change nothing. Pass the model and the sample, or osdp.describe(model, sample) alone"
        )


def description_of(
    model: nn.Module | ModelDescription, sample: Sample, device: str | None = None
) -> ModelDescription:
    """`device`: what will train."""
    if isinstance(model, ModelDescription):
        return check_sampled(model)
    if sample is None or (isinstance(sample, (tuple, Mapping)) and not sample):
        raise InvalidProblemError(
            "a model needs a sample, or its activations are unknown: osdp.search(model, (inputs,), "
            "...), or osdp.describe(model, inputs) first"
        )
    from osdp.description.describe import describe

    args, kwargs = arguments_of(sample)
    return describe(model, *args, device=device, **kwargs)


def check_precision(description: ModelDescription, precision: str) -> None:
    """Raise InvalidProblemError if the description counts the activations of another dtype; warn if its file does not
    say which."""
    wanted = PRECISIONS[precision][0]
    if not description.precision:
        if wanted is not None:
            warn(
                f"the description of {description.name} does not say in which precision it was made: "
                f"in {precision!r} its activations may be smaller. osdp.describe(model, sample, "
                f"precision={precision!r}) counts them"
            )
        return
    if PRECISIONS[description.precision][0] != wanted:
        raise InvalidProblemError(
            f"{description.name} was described in {description.precision!r}, so its activations are not those of "
            f"{precision!r}: describe it with osdp.describe(model, sample, precision={precision!r}), or pass the model "
            "and its sample to osdp.search"
        )


def check_device(description: ModelDescription, machine: Hardware) -> None:
    """Warn if the description counts what kernels of another kind of device hold."""
    trains = CPU if machine.device == "cpu" else ACCELERATOR
    if description.device and description.device != trains:
        warn(
            f"the description of {description.name} counts the memory and kernels of a {description.device}'s attention, "
            f"convolutions or LSTMs, which are others on {machine.name!r}: describe it with osdp.describe(model, sample, "
            f"device={machine.device!r}), or pass the model and its sample to osdp.search"
        )


def check_sampled(description: ModelDescription) -> ModelDescription:
    """Return `description`; raise InvalidProblemError if it was made without a sample."""
    if description.sample_batch < 1:
        raise InvalidProblemError(
            f"{description.name} was described without a sample, so its activations are unknown and "
            "every batch would seem to fit: use osdp.describe(model, inputs)"
        )
    return check_description(description)


def check_batch_matters(description: ModelDescription, batch_size: int | str) -> None:
    """Raise InvalidProblemError if the best batch size is requested, but larger batches take no more
    memory."""
    grows = (
        description.input_bytes_per_sample,
        description.output_bytes_per_sample,
        *(o.saved_bytes_per_sample for o in description.operators),
    )
    if isinstance(batch_size, str) and description.operators and not any(grows):
        raise InvalidProblemError(
            f"no memory of {description.name} grows with the batch, so no batch size is the best: its "
            "sample has no batch dimension, or its forward saves nothing for backward "
            "(torch.no_grad, frozen parameters); set batch_size="
        )


def ranks_of(world_size: int | None, hardware: Hardware) -> int:
    if world_size is not None:
        ranks = integer(world_size, "world_size")
        if not 1 <= ranks <= 2**24:
            raise InvalidProblemError(f"world_size must be between 1 and 2**24, got {ranks}")
        return ranks
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return hardware.world_size


def check_measured_ranks(hardware: Hardware, ranks: int) -> None:
    """Raise InvalidProblemError if collectives would cost nothing because the hardware was measured on one
    rank; warn if figures measured on fewer ranks are extrapolated.
    """
    if hardware.world_size >= ranks:
        return
    collectives = (hardware.all_gather, hardware.reduce_scatter, hardware.all_reduce)
    if hardware.world_size == 1 and all(c.alpha_s == c.beta_s_per_byte == 0 for c in collectives):
        raise InvalidProblemError(
            f"hardware {hardware.name!r} was measured on one rank, where collectives cost nothing, "
            f"but the search is for {ranks} ranks: profile with the ranks that will train (osdp "
            "profile under torchrun, or osdp.profile in the training script)"
        )
    if hardware.measured is not None:
        warn(
            f"hardware {hardware.name!r} was measured on {hardware.world_size} ranks, but the search "
            f"is for {ranks}: the cost of collectives is extrapolated along a ring, and links that "
            "were not measured are assumed equal to those that were",
            MachineMismatchWarning,
        )


def check_kernels(description: ModelDescription, machine: Hardware) -> None:
    """Warn where a machine prices kernels and the description has none."""
    flops = [o for o in description.operators if o.flops_per_sample]
    if machine.kernel_rates is not None and flops and all(o.forward_kernels < 0 for o in flops):
        warn(
            f"the description of {description.name} has flops but no kernels, so its times on {machine.name!r} are those "
            "of products alone: too fast. osdp.describe(model, sample) counts kernels"
        )


def one_of(what: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidProblemError(f"{what} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_time_limit(time_limit: float | None) -> None:
    if time_limit is not None and not 0 < time_limit < 1e9:
        raise InvalidProblemError(
            f"time_limit must be a positive number of seconds below 1e9, or None, got {time_limit!r}"
        )


def integer(value: object, what: str) -> int:
    """`value` as an int that fits 64 bits; floats, NaN and bools are refused, not rounded."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidProblemError(f"{what} must be an integer, got {value!r}") from None
    if not -(2**63) <= number < 2**63:
        raise InvalidProblemError(f"{what} is {number}, which overflows 64 bits")
    return number
