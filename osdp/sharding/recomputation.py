"""Recomputed blocks: their activations are recomputed in backward, without repeating side effects.

What autograd saves in them, and gets from the second forward, is C++ (Note [Saved by a second forward] in
csrc/runtime/step/recomputed_call.hpp). torch.utils.checkpoint with use_reentrant=False follows the same rules, but in
Python for each saved tensor, which on a GPU takes longer than computing a block; it still recomputes blocks that are
compiled or traced, and those of a script that turns its early stop off (set_checkpoint_early_stop).

Note [What a forward changes]
Recomputed activations must equal the first ones: the second forward has to start from the same state as the
first one, and its side effects must be discarded. Autocast and torch.device contexts are entered again
(forward_settings.py). Random number generators are restored; blocks between which nothing was drawn share one state:
on the CPU each takes 5 KB until the backward.
Buffers are restored here: the second forward of a batch norm would update its running statistics again, and
that of a spectral norm would start from a different vector. So buffers that a block changes are copied at the
first forward; the second one works on those copies, and then the present ones are put back. The changed
buffers are found by comparing all of them around the block's first forward, in training and in evaluation,
and afterwards by their version counters; the kernels of batch norms do not increment these, so their buffers
always count as changed in training.

A block's arguments cannot be copied: they may be large, and belong to the caller. A block that writes into
them (a cache of keys and values, an addition in place) is refused at its first forward, before there is a
gradient; `osdp.describe` does not list it as recomputable.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import checkpoint as torchs_checkpoint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import DefaultDeviceType, checkpoint

from osdp import _C
from osdp.base.tensor_trees import version_of
from osdp.errors import ShardingError
from osdp.sharding.forward_settings import ForwardSettings

Place = tuple[nn.Module, str]  # a module and the name of a buffer of its own


class RecomputedBlock:
    """Replaces the block's forward.

    Raises ShardingError if the block modifies its arguments, or changes a buffer only after its first
    forward.
    """

    def __init__(self, name: str, block: nn.Module) -> None:
        self.name = name
        self.block = block
        self.forward: Callable[..., Any] = block.forward
        self.changing: dict[bool, list[Place]] = {}  # by training mode, once it is known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)
        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        given = _C.versions_in((args, kwargs))
        places = _C.buffers_in(self.block)
        found = {p: _buffer(p) for p in places}
        with _unseen_by_modes():
            kept = {p: found[p].clone() for p in self._changed_by_forward(places)}
            recomputing = _AsBefore(kept, (args, kwargs))
        before = {p: version_of(t) for p, t in found.items()}
        out = self._forward(recomputing, args, kwargs)
        if _C.versions_in((args, kwargs)) != given:
            raise ShardingError(
                f"{self.name!r} changes its inputs (a KV cache? an operation in place?), so it cannot "
                "be recomputed: they would be changed twice. Call the model without that "
                "(transformers: use_cache=False), or use a plan that does not recompute it "
                "(osdp.search makes one if the model is described the way it is called now)"
            )
        with _unseen_by_modes():
            self._learn(kept, found, before)
        return out

    def _forward(self, recomputing: _AsBefore, args: Any, kwargs: Any) -> Any:
        if torchs_checkpoint._enable_checkpoint_early_stop is False:
            return checkpoint(
                self.forward,
                *args,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: (nullcontext(), recomputing),
                **kwargs,
            )
        settings = ForwardSettings(recomputing.device_type)

        def again(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with settings.restored(), recomputing:
                self.forward(*args, **kwargs)

        return _C.call_recomputed(self.name, self.forward, again, args, kwargs)

    def _changed_by_forward(self, places: list[Place]) -> list[Place]:
        known = self.changing.get(self.block.training)
        if known is None:
            return places
        norms = [p for p in places if isinstance(p[0], _NormBase) and p[0].training]
        return norms + [p for p in known if p not in norms]

    def _learn(self, kept: dict[Place, Tensor], found: dict[Place, Tensor], before: dict[Place, int]) -> None:
        if self.block.training not in self.changing:
            same = {p for p, was in kept.items() if _buffer(p) is found[p] and _equal(was, found[p])}
            self.changing[self.block.training] = [p for p in kept if p not in same]
            for place in same:
                del kept[place]
            return
        for place, tensor in found.items():
            now = _buffer(place)
            if place not in kept and (now is not tensor or version_of(now) != before[place]):
                raise ShardingError(
                    f"{self.name!r} changes its buffer {place[1]!r} now, but did not in its first "
                    "forward, so it cannot be recomputed: use a plan that does not recompute it"
                )


def _unseen_by_modes() -> AbstractContextManager[None]:
    """Context in which dispatch modes do not see what is kept: a selective checkpoint of the script's around the block
    expects its second forward to call what the first one did."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def _is_traced() -> bool:
    """Whether the call becomes part of a graph, in which version counters and buffers are not visible."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    )


def _buffer(place: Place) -> Tensor:
    module, name = place
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether the values are equal; NaN equals NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


class _AsBefore:
    """Context in which the block's buffers are copies of the saved ones, and random number generators are as they are when
    this is made; it is entered again if backward runs again on a graph.

    Buffers are exchanged instead of overwritten, so that those autograd has saved remain valid.
    """

    def __init__(self, kept: dict[Place, Tensor], given: Any) -> None:
        self.kept = kept
        self.generators = _generator_state()
        accelerators = _C.accelerators_in(given)
        self.device_type = accelerators[0][0] if accelerators else DefaultDeviceType.get_device_type()
        self.devices: list[int] = []
        if accelerators and getattr(torch.get_device_module(self.device_type), "_initialized", False):
            self.devices = [index for kind, index in accelerators if kind == self.device_type]
        self.of_devices = self._of_devices()
        self.outside: list[tuple[dict[Place, Tensor], Tensor, list[Tensor]]] = []

    def __enter__(self) -> None:
        with _unseen_by_modes():
            buffers = {place: was.clone() for place, was in self.kept.items()}
        present = {place: _buffer(place) for place in self.kept}
        self.outside.append((present, torch.default_generator.get_state(), self._of_devices()))
        self._set(buffers, self.generators, self.of_devices)

    def __exit__(self, *_: object) -> None:
        self._set(*self.outside.pop())

    def _of_devices(self) -> list[Tensor]:
        return [torch.get_device_module(self.device_type).get_rng_state(device) for device in self.devices]

    def _set(self, buffers: dict[Place, Tensor], generators: Tensor, of_devices: list[Tensor]) -> None:
        torch.default_generator.set_state(generators)
        for device, state in zip(self.devices, of_devices, strict=True):
            torch.get_device_module(self.device_type).set_rng_state(state, device)
        for (module, name), buffer in buffers.items():
            module._buffers[name] = buffer


_last_state: Callable[[], Tensor | None] = lambda: None  # noqa: E731


def _generator_state() -> Tensor:
    """The state of the CPU's generator; the last one that is still in use, if it is the same."""
    global _last_state
    state, last = torch.default_generator.get_state(), _last_state()
    if last is not None and torch.equal(state, last):
        return last
    _last_state = weakref.ref(state)
    return state
