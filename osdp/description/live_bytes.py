"""LiveBytes: memory over the course of a forward and its backward, besides parameters and their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from osdp.base.tensor_parallel import storage_id, wraps_local
from osdp.base.tensor_trees import tensors_held, tensors_in
from osdp.description.equal_blocks import EqualBlocks
from osdp.description.fake_calls import call_fake
from osdp.description.gradient_sums import held_by_engine, is_sum, sums_in_place
from osdp.description.kernel_memory import KernelMemory
from osdp.description.kernels import Call, call_of
from osdp.description.live_log import CALL, COMPLETED, TEMPORARY, Entry, Event, Moment, calls_of, moments_of

_DEVICE = torch.ops.prim.device.default

# Note [Live bytes]
# Every storage that an ATen call creates is recorded when it is allocated and, by a weak reference, when it
# is freed. On fake tensors that costs nothing, and storages are freed at the same points as in a real step,
# since autograd's graph holds the same tensors. Gradients of parameters are excluded afterwards: their size
# on a rank depends on the plan, and the search counts them.
# A moment of backward is attributed to the operator whose gradients are the next to be complete, from the end
# of the model; or, if an operator without parameters that comes after it is running, to that one. Module
# names alone would mislead: a module that runs functions at its beginning and at its end (a model that adds
# positions, and later computes the loss) is one operator at one position.


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, records the memory of `model`. `running()` returns the name of the module whose forward
    runs. Enter outside of the Watcher.

    `forward` and `backward` are the moments of each, in order; `summed` the parameters whose gradients autograd sums.
    """

    def __init__(self, model: nn.Module, running: Callable[[], str], memory: KernelMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forward: list[Moment] = []
        self.backward: list[Moment] = []
        self._model = model
        self._running = running
        self._memory = memory
        self._module_of: dict[int, str] = {}  # autograd node's sequence number -> module
        self._log: list[Entry] = []
        self._known: dict[int, int] = {}  # live storages -> their number in the log
        self._count = 0
        self._live_before = 0  # bytes when the log begins
        self._left_out: set[int] = set()  # numbers
        self._gradient_of: dict[int, str] = {}  # of those that became gradients -> the parameter
        self._freed_early: set[int] = set()  # numbers of tensors whose memory is another's by now
        self.summed: set[str] = set()
        # In backward, of a sum of two: numbers of its result -> of both.
        self._terms: dict[int, list[int]] = {}
        self._waiting: set[int] = set()  # numbers of terms of a parameter's gradient
        self._anyway = {storage_id(t) for t in (*model.parameters(), *model.buffers())}
        self._in_backward = False
        self.equal: EqualBlocks | None = None
        # Forward, backward; by module.
        self.calls: tuple[dict[str, list[Call]], dict[str, list[Call]]] = ({}, {})
        self._last = ""
        held_by_engine()  # counted in a backward of its own, not within this one

    def run_backward(self, output: Any) -> None:
        """Run backward of the loss in `output`, or of all its tensors if there is no loss."""
        returned = [t for t in tensors_held(output) if t.requires_grad and t.is_floating_point()]
        losses = [t for t in returned if t.dim() == 0][:1] or returned
        self.forward = self._finished()
        if not losses:
            return
        self._in_backward = True
        with ExitStack() as stack:
            for name, parameter in self._model.named_parameters():
                if parameter.requires_grad:
                    tensor: Any = parameter
                    stack.callback(tensor.register_hook(self._incoming(name, parameter)).remove)
                    hook = tensor.register_post_accumulate_grad_hook(self._completed(name))
                    stack.callback(hook.remove)
            try:
                ones = tuple(torch.ones_like(t) for t in losses)
                # Not torch.autograd.backward, within which modes on torch functions (CopiesRead) are off.
                engine = torch.autograd.Variable._execution_engine
                engine.run_backward(
                    tuple(losses), ones, False, False, (), allow_unreachable=True, accumulate_grad=True
                )
            finally:
                for parameter in self._model.parameters():
                    parameter.grad = None
        self.backward = self._finished()

    def _incoming(self, name: str, parameter: nn.Parameter) -> Any:
        def hook(gradient: torch.Tensor) -> None:
            # Only matrices are computed in slices.
            terms = list(self._terms.get(self.number_of(gradient) or 0, ())) if parameter.dim() == 2 else []
            if terms:
                self.summed.add(name)
            for term in terms:  # which may be sums
                self._waiting.add(term)
                terms += self._terms.get(term, ())
            # Without this hook it would become the parameter's gradient without a copy.
            if gradient.layout is torch.strided and gradient.stride() == parameter.stride():
                self._leave_out(gradient)

        return hook

    def _completed(self, name: str) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self._leave_out(parameter.grad)
                if (number := self._known.get(storage_id(parameter.grad))) is not None:
                    self._gradient_of[number] = name
            self._log.append(Entry(COMPLETED, 0, self._now(), name))

        return hook

    def _leave_out(self, gradient: torch.Tensor) -> None:
        number = self._known.get(storage_id(gradient))
        if number is not None:
            self._left_out.add(number)

    def _finished(self) -> list[Moment]:
        """The moments since the last call; live storages are carried over."""
        events = [self._event(entry) for entry in self._log]
        if self.equal is not None:
            events = self.equal.spliced(events, self._in_backward, set(self._known.values()))
        self._log.clear()
        self.calls[self._in_backward].update(calls_of(events))
        moments, self._live_before = moments_of(events, self._live_before)
        return moments

    def _event(self, entry: Entry) -> Event:
        number, size, running, what = entry
        if number == COMPLETED:
            return Event("completed", 0, running, what)
        if number == CALL:
            return Event("call", 0, running, what)
        if number == TEMPORARY:
            return Event("temporary", size, running)
        if number in self._gradient_of and size > 0:
            return Event("made", size, running, self._gradient_of[number])
        if number in self._left_out:
            return Event("nothing", size, running)
        return Event("waiting" if number in self._waiting else "live", size, running)

    @property
    def log(self) -> Sequence[Entry]:
        """What happened since the last moments were made."""
        return self._log

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the tensor's storage, if it is live and was allocated in this trace."""
        return self._known.get(storage_id(tensor))

    def _now(self) -> str:
        if not self._in_backward:
            return self._running()
        node = torch._C._current_autograd_node()
        if node is not None:
            sequence = node._sequence_nr()
            self._last = self._module_of.get(sequence, self._last)
            if self.equal is not None:
                self.equal.goes_back_to(sequence, len(self._log))
        return self._last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if wraps_local(types):
            return NotImplemented
        if func is _DEVICE:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        if self.equal is not None and self.equal.following:
            return call_fake(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        running = self._now()
        if not self._in_backward and torch.is_grad_enabled():
            self._module_of[torch._C._autograd._get_sequence_nr() - 1] = running
        terms = self._terms_of(func, args)
        if self._in_backward and sums_in_place(func, args, kwargs):
            self._free_early(args[0])
        out = call_fake(func, args, kwargs)
        if (call := call_of(func, args, kwargs, out)) is not None:
            self._log.append(Entry(CALL, 0, running, call))
        if hidden := self._memory.hidden_bytes(func, args, out):
            self._note((out[3],), running, hidden)
        self._note(tensors_in(out if isinstance(out, (tuple, list)) else (out,)), running)
        if terms and (number := self.number_of(out)) is not None:
            self._terms[number] = terms
        if scratch := self._memory.scratch_bytes(func, args, out):
            self._log.append(Entry(TEMPORARY, scratch, running))
        return out

    def _terms_of(self, func: Any, args: Any) -> list[int]:
        if not self._in_backward or not is_sum(func, args):
            return []
        return [number for number in map(self.number_of, args) if number is not None]

    def _note(self, tensors: Iterable[torch.Tensor], running: str, bytes_of_each: int | None = None) -> None:
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            identity = int(storage._cdata)
            if identity in self._known or identity in self._anyway:
                continue
            size = storage.nbytes() if bytes_of_each is None else bytes_of_each
            self._count += 1
            number = self._known[identity] = self._count
            self._log.append(Entry(number, size, running))
            weakref.finalize(storage, self._gone, identity, number, size).atexit = False

    def _gone(self, identity: int, number: int, size: int) -> None:
        self._known.pop(identity, None)
        if number in self._freed_early:
            self._freed_early.remove(number)
        else:
            self._log.append(Entry(number, -size, self._now()))

    def _free_early(self, tensor: torch.Tensor) -> None:
        """The tensor's memory becomes that of the next result."""
        number = self._known.get(storage_id(tensor))
        if number is not None:
            self._freed_early.add(number)
            self._log.append(Entry(number, -tensor.untyped_storage().nbytes(), self._now()))


def work_of(
    forward: Sequence[Moment],
    backward: Sequence[Moment],
    saved: Sequence[int],
    modules: Mapping[str, int],
    parameters: Mapping[str, int],
    held: int,
    together: Collection[int] = (),
) -> list[tuple[int, int, int, int]]:
    """By operator, the maximum memory in its moments minus the bytes saved by operators up to it: Note [Live
    bytes]; the same of its own forward alone, without what runs between it and the next one, and of backward alone; and
    the part of the first that is gradients which wait for a sum.

    `saved`: bytes by operator, in order. `modules` and `parameters`: name -> its operator. `held`: bytes that count
    elsewhere. `together`: operators whose gradients a plan counts from the begin of their backward, all at once; those
    that are not made yet leave room for work.
    """
    until = [held + sum_ for sum_ in accumulate(saved)]
    work, forward_work, backward_work, in_slices = ([0] * len(saved) for _ in range(4))
    unmade = dict.fromkeys(together, 0)  # bytes of gradients that the rest of backward makes
    for moment in backward:
        if moment.made is not None and parameters[moment.made[0]] in unmade:
            unmade[parameters[moment.made[0]]] += moment.made[1]

    at = 0
    for moment in forward:
        own = modules.get(moment.running)
        if own is not None:
            forward_work[own] = max(forward_work[own], moment.bytes - until[own])
            at = max(at, own)
        work[at] = max(work[at], moment.bytes - until[at] - unmade.get(at, 0))
    # Operators with parameters, by the moment of their last gradient.
    last: dict[int, int] = {}
    for n, moment in enumerate(backward):
        if moment.completed is not None:
            last[parameters[moment.completed]] = n
    pending = sorted(last)
    ends = len(saved)  # operators from here on are complete
    for n, moment in enumerate(backward):
        while pending and last[pending[-1]] < n:
            ends = min(ends, pending.pop())
        at = pending[-1] if pending else 0
        running = modules.get(moment.running, 0)
        at = running if at < running < ends else at
        without = until[at] + unmade.get(at, 0)
        backward_work[at] = max(backward_work[at], moment.bytes - without)
        bytes_in_slices = moment.bytes if moment.in_slices < 0 else moment.in_slices
        in_slices[at] = max(in_slices[at], bytes_in_slices - without)
        if moment.made is not None and parameters[moment.made[0]] in unmade:
            unmade[parameters[moment.made[0]]] -= moment.made[1]
    waiting = [max(f, b) - max(f, s) for f, b, s in zip(work, backward_work, in_slices, strict=True)]
    return list(zip(map(max, work, backward_work), forward_work, backward_work, waiting, strict=True))
