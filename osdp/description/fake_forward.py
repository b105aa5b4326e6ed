"""Traces one forward of a model, on tensors without data or, if it depends on values, on real ones."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from osdp.base.kept_state import generators_kept, untouched
from osdp.base.module_proxy import ModuleProxy
from osdp.base.tensor_parallel import layout_of, local_part
from osdp.base.tensor_trees import map_tensors, tensors_in
from osdp.description.block_calls import NotAlikeError
from osdp.description.concrete_tensors import KnownValues, ValuesLostError
from osdp.description.equal_blocks import EqualBlocks
from osdp.description.forward_tracer import Trace, Watcher
from osdp.description.kernel_memory import KernelMemory
from osdp.description.live_bytes import LiveBytes
from osdp.description.originals import CopiesRead, layouts_unseen
from osdp.description.user_caches import caches_restored
from osdp.errors import DescribeError

_log = logging.getLogger(__name__)

# Note [Describing on fake tensors]
# Fake CPU tensors, not meta ones: the meta device uses different kernels than CPU and CUDA, which save
# different tensors for backward. The copy is a deepcopy whose memo maps each tensor to its fake one, so every
# reference to a parameter (an LSTM's weight list, tied weights, a tensor in a plain attribute) becomes the
# same fake tensor.


class FakeParameters:
    """Fake parameters of `model` and their mode, for all of its traces: apart from the forward, creating them
    takes most of the time."""

    def __init__(self, model: nn.Module, *, accelerator: bool = False) -> None:
        self.memory = KernelMemory(accelerator=accelerator)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.accepted = False  # a forward ran on fakes
        self.refused = False  # a forward that failed on fakes ran for real
        # Equal blocks: what a DTensor's calls do depends on its layout too, which is not compared.
        self.follows = all(layout_of(p) is None for p in model.parameters())
        # Undoes what the forward has changed outside of the model.
        self.begin: Callable[[], None] = lambda: None
        with self.mode:
            self.of = {
                id(p): _fake_like(p, KnownValues(integers=False), self.mode) for p in model.parameters()
            }


def trace(model: nn.Module, fakes: FakeParameters, args: Any, kwargs: Any) -> Trace:
    """Trace a forward of `model` on a sample; model, sample and random generators do not change.

    Raises DescribeError that names the module whose forward failed.
    """
    with caches_restored() as places:
        fakes.begin = places.rewind
        return _trace(model, fakes, args, kwargs)


def _trace(model: nn.Module, fakes: FakeParameters, args: Any, kwargs: Any) -> Trace:
    refused = fakes.refused
    if not refused:
        try:
            result = _trace_known(model, fakes, args, kwargs)
            fakes.accepted = True
            return result
        except _AsksForValuesError:
            pass
        except DescribeError:
            # Some operators fail on fake tensors but not on real ones. If no forward has run on fakes so far,
            # that may be the reason; the sample, or this batch size, may also be wrong for the model.
            if fakes.accepted or _lacks_values(model, args, kwargs):
                raise
            refused = True
    # Not while an exception is handled: the Watcher would take it for one of the forward.
    result = _trace_for_real(model, fakes.memory, args, kwargs)
    fakes.refused = refused
    return result


def _trace_known(model: nn.Module, fakes: FakeParameters, args: Any, kwargs: Any) -> Trace:
    """Trace on fakes, with as many known values as possible."""
    for known in (KnownValues(fractions=True), KnownValues()):
        try:
            return _trace_fakes(model, fakes, args, kwargs, known)
        except ValuesLostError:
            continue
    return _trace_fakes(model, fakes, args, kwargs, KnownValues(integers=False))


class _AsksForValuesError(Exception):
    """The forward depends on values that fake tensors do not have, but real ones would."""


def _trace_fakes(
    model: nn.Module, fakes: FakeParameters, args: Any, kwargs: Any, known: KnownValues
) -> Trace:
    if fakes.follows:
        try:
            return _trace_once(model, fakes, args, kwargs, known)
        except NotAlikeError as error:
            _log.debug("blocks of %s are not followed: %s", type(model).__name__, error, exc_info=True)
            fakes.follows = False
            fakes.begin()
    return _trace_once(model, fakes, args, kwargs, known)


def _trace_once(model: nn.Module, fakes: FakeParameters, args: Any, kwargs: Any, known: KnownValues) -> Trace:
    with generators_kept():
        with fakes.mode:
            others = (t for t in _all_tensors(model) if id(t) not in fakes.of)
            replaced = fakes.of | {id(t): _fake_like(t, known, fakes.mode) for t in others}
            sample_args, sample_kwargs = map_tensors(lambda t: _fake(t, known, fakes.mode), (args, kwargs))
        copied = _copy(model, replaced)
        watcher = Watcher(copied, original=model, call=known.call, memory=fakes.memory)
        live = LiveBytes(copied, lambda: watcher.running, fakes.memory)
        equal = EqualBlocks(copied, watcher.blocks, fakes.mode, live, watcher.pack) if fakes.follows else None
        if equal is not None and equal.runs:
            watcher.equal = live.equal = equal
        try:
            with _without_log(), layouts_unseen(), fakes.mode, CopiesRead(model, copied, watcher.doubt):
                return _follow(watcher, live, fakes.memory, sample_args, sample_kwargs)
        except (ValuesLostError, NotAlikeError):
            raise
        except Exception as error:
            if equal is not None and equal.trusted:
                raise NotAlikeError(str(error)) from error  # perhaps because of that
            if not _needs_values(error):
                raise _forward_failed(watcher, error) from error
            if _lacks_values(model, args, kwargs):
                raise _values_needed(watcher, error) from error
            raise _AsksForValuesError from error


def _trace_for_real(model: nn.Module, memory: KernelMemory, args: Any, kwargs: Any) -> Trace:
    """For a forward that depends on values of tensors: run it on real tensors, and undo its side effects."""
    with generators_kept(next(model.parameters()).device), untouched(model):
        watcher = Watcher(model, memory=memory)
        try:
            _watch(watcher, memory, args, kwargs)
        except Exception as error:
            raise _forward_failed(watcher, error) from error
        return watcher.trace


def _watch(watcher: Watcher, memory: KernelMemory, args: Any, kwargs: Any) -> Any:
    """Run the forward and return its result."""
    with torch.enable_grad(), _batch_norms_alone(), memory, watcher:
        return watcher.model(*args, **kwargs)


def _follow(watcher: Watcher, live: LiveBytes, memory: KernelMemory, args: Any, kwargs: Any) -> Trace:
    """Trace on fakes, including memory during forward and backward."""
    with live, _uncollected():
        output = _watch(watcher, memory, args, kwargs)
        try:
            live.run_backward(output)
        except NotAlikeError:
            raise
        except Exception:  # an operator whose backward has no fake kernel: its working memory remains unknown
            return watcher.trace
    watcher.trace.moments = (live.forward, live.backward)
    watcher.trace.summed = live.summed
    watcher.trace.kernel_calls = live.calls
    return watcher.trace


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's garbage collector, which frees tensors in cycles at times that depend on the rest of
    the process, so that descriptions are deterministic. It would also take a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Disable torch's log of operators that fail on fake tensors; DescribeError reports the failure."""
    log = logging.getLogger(fake_tensor.__name__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def _batch_norms_alone() -> Iterator[None]:
    """Run SyncBatchNorm as BatchNorm: with a process group it accepts only tensors on a GPU, not fake ones,
    and waits for other ranks, which may not be describing."""
    synchronised = nn.SyncBatchNorm.forward
    nn.SyncBatchNorm.forward = nn.modules.batchnorm._BatchNorm.forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.SyncBatchNorm.forward = synchronised  # type: ignore[method-assign]


def _needs_values(error: Exception) -> bool:
    kinds = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedOperatorException,  # an operator of the user's that has no meta kernel
    )
    return isinstance(error, kinds) or "FakeTensor" in str(error)


def _without_values(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no values: it is on the meta device, or has a full shape without memory (parts
    that are sharded already)."""
    tensor = local_part(tensor)
    return tensor.is_meta or (tensor.numel() > 1 and not any(tensor.stride()))


def _lacks_values(model: nn.Module, args: Any, kwargs: Any) -> bool:
    return any(map(_without_values, model.parameters())) or any(t.is_meta for t in tensors_in((args, kwargs)))


def _values_needed(watcher: Watcher, error: Exception) -> DescribeError:
    return DescribeError(
        f"the forward of {_failing(watcher, error)} depends on the values of tensors "
        f"({_first_line(error)}), which have none here (meta device, or parameters that are already "
        "sharded). Describe the model with weights and a sample on a real device, remove the "
        "dependence from that module's forward (.item(), an if on a tensor, nonzero()), or call "
        "osdp.describe(model) without a sample"
    )


def _forward_failed(watcher: Watcher, error: Exception) -> DescribeError:
    return DescribeError(
        f"the forward of {_failing(watcher, error)} failed while the model was described: "
        f"{type(error).__name__}: {error}. Check that the sample fits the model's forward, or call "
        "osdp.describe(model) without a sample"
    )


def _failing(watcher: Watcher, error: Exception) -> str:
    name = watcher.failed_in(error)
    kind = type(dict(watcher.model.named_modules()).get(name)).__name__
    return f"{kind} {name!r}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _all_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """All parameters, buffers, and tensors in plain attributes of modules."""
    for module in model.modules():
        yield from (t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)
        yield from tensors_in([v for v in vars(module).values() if not isinstance(v, nn.Module)])
        if isinstance(module, ModuleProxy):
            yield from _all_tensors(module.stands_for)


def _fake_like(tensor: torch.Tensor, known: KnownValues, mode: FakeTensorMode) -> torch.Tensor:
    """A fake parameter with the attributes that models set on parameters, such as `no_decay`."""
    layout = layout_of(tensor)
    fake = _fake(local_part(tensor), known, mode)
    if layout is not None:
        fake = layout.wrap(fake)
    if isinstance(tensor, nn.Parameter):
        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
    for attribute, value in vars(tensor).items():
        if not isinstance(value, torch.Tensor):
            setattr(fake, attribute, value)
    return fake


def _copy(model: nn.Module, replaced: dict[int, torch.Tensor]) -> nn.Module:
    """A deep copy of `model` in which tensors are `replaced`, by id, wherever they are referred to."""
    try:
        return copy.deepcopy(model, dict(replaced))
    except Exception as error:
        raise DescribeError(
            f"{type(model).__name__} cannot be copied, but describing it with a sample needs a copy: "
            f"{type(error).__name__}: {error}. Call osdp.describe(model) without a sample"
        ) from error


def _fake(tensor: torch.Tensor, known: KnownValues, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor like `tensor`, or a real copy of one that keeps its values."""
    if tensor.layout is not torch.strided:
        raise DescribeError(
            f"a tensor of layout {tensor.layout} and shape {tuple(tensor.shape)} cannot be described"
        )
    if known.keeps_given(tensor):
        return known.copy(tensor)
    device = "cpu" if tensor.is_meta else tensor.device
    whole = isinstance(tensor, nn.Parameter) and _without_values(tensor)
    with in_kernel_invocation_manager(mode):  # what the mode does for torch.empty, in a fifth of the time
        empty = torch.empty(tensor.shape if whole else 0, dtype=tensor.dtype, device="meta")
        inner = empty if whole else empty.new_empty_strided(tensor.shape, tensor.stride())
    fake = FakeTensor(mode, inner, torch.device(device))
    return fake if isinstance(tensor, nn.Parameter) else fake.requires_grad_(tensor.requires_grad)
