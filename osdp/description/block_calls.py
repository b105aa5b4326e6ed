"""BlockCalls: the ATen calls of one block's forward, recorded, or followed along those of a block before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from osdp.base.names import is_in
from osdp.base.tensor_trees import tensors_in
from osdp.description.block_runs import metadata

# Arguments whose value tells all that a call depends on; with the type, since 1 and 1.0 are equal.
_PLAIN = {
    *(int, float, bool, str, complex, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
# A tensor's attribute: the block, call and position that made it, or a number of its own.
_MARK = "_osdp_made"
_numbers = itertools.count(1)


class NotAlikeError(Exception):
    """A block that was followed differs from those before it: the forward has to be traced as a whole."""


class _Made(NamedTuple):
    """A tensor that a call returned."""

    fake: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    keys: int


class Recorded(NamedTuple):
    """One ATen call, in terms that do not name its block."""

    func: Any
    arguments: Any
    running: str
    grad: bool
    returned: tuple[Any, ...]
    known: bool  # a tensor with known values among the arguments or results


class FakeResults:
    """Makes tensors without memory of their own: those of alike metadata share a storage."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._inner: dict[_Made, torch.Tensor | None] = {}

    def make(self, made: _Made) -> torch.Tensor | None:
        """A tensor like `made`; None if it can't be made so."""
        if made not in self._inner:
            self._inner[made] = self._first(made)
        inner = self._inner[made]
        return None if inner is None else FakeTensor(self._mode, inner, made.device)

    def _first(self, made: _Made) -> torch.Tensor | None:
        extent = made.offset + 1 + sum((n - 1) * s for n, s in zip(made.shape, made.stride, strict=True))
        with in_kernel_invocation_manager(self._mode):
            flat = torch.empty(max(extent, 0), dtype=made.dtype, device="meta")
            inner = flat.as_strided(made.shape, made.stride, made.offset)
        again = FakeTensor(self._mode, inner, made.device)
        return inner if torch._C._dispatch_keys(again).raw_repr() == made.keys else None


class BlockCalls:
    """One call of a block. `arguments`: what it is called with, in terms that blocks in a row share."""

    def __init__(
        self,
        name: str,
        own: Mapping[int, str],
        given: list[torch.Tensor],
        before: Callable[[torch.Tensor], Any],
    ) -> None:
        self.name = name
        self.token = next(_numbers)
        self.calls: list[Recorded] = []
        self.saved: list[Any] = []  # tensors that autograd saved
        self.events: list[tuple[Any, ...]] = []  # of the Watcher
        self.inputs: list[tuple[Any, int]] = []  # storages that it was called with
        self.returned: tuple[Any, ...] = ()
        self.graph: tuple[Any, ...] = ()
        self.comparable = True
        self.sequence = torch._C._autograd._get_sequence_nr()
        self.begin = self.end = 0  # in the log
        self._own = own
        self.given = {id(t): i for i, t in enumerate(given)}
        self.arguments = tuple((before(t), *metadata(t)) for t in given)
        self._at = 0

    def relative(self, name: str) -> str:
        """The name in the block; others as they are."""
        if is_in(name, self.name):
            return "\0" + name[len(self.name) :]
        return name

    def absolute(self, name: str) -> str:
        return self.name + name[1:] if name.startswith("\0") else name

    def where(self, tensor: torch.Tensor) -> Any:
        """What the tensor is to the block."""
        identity = id(tensor)
        if identity in self._own:
            return ("own", self._own[identity])
        if identity in self.given:
            return ("given", self.given[identity])
        mark = mark_of(tensor)
        return ("made", *mark[1:]) if mark[0] == self.token else mark

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, running: str) -> None:
        tensors = [*tensors_in((args, kwargs))]
        key = self._key(func, args, kwargs)
        returned, known = self._results(tensors, out, len(self.calls))
        known = known or any(type(t) is not FakeTensor or t.constant is not None for t in tensors)
        self.calls.append(
            Recorded(func, key, self.relative(running), torch.is_grad_enabled(), returned, known)
        )

    def follow(
        self,
        other: BlockCalls,
        results: FakeResults,
        call: Callable[[], Any],
        func: Any,
        args: Any,
        kwargs: Any,
        running: str,
    ) -> Any:
        """The result of the next call, if it is the one that `other` made at its place. Raises NotAlikeError."""
        at, self._at = self._at, self._at + 1
        if at >= len(other.calls):
            raise NotAlikeError(f"{self.name} makes more calls than {other.name}")
        recorded = other.calls[at]
        if (
            recorded.func is not func
            or recorded.grad != torch.is_grad_enabled()
            or recorded.running != self.relative(running)
            or recorded.arguments != self._key(func, args, kwargs)
        ):
            raise NotAlikeError(f"call {at} of {self.name}: {func} is not that of {other.name}")
        if not recorded.known and _functional(func):
            made = [results.make(m) for m in recorded.returned[1:]]
            if all(t is not None for t in made):
                for i, tensor in enumerate(made):
                    setattr(tensor, _MARK, (self.token, at, i))
                form = recorded.returned[0]
                return made[0] if form is None else form[0](None if i is None else made[i] for i in form[1:])
        out = call()
        returned, _ = self._results([*tensors_in((args, kwargs))], out, at)
        if returned != recorded.returned:
            raise NotAlikeError(
                f"call {at} of {self.name}: {func} returned something else than in {other.name}"
            )
        return out

    def followed_to_end(self, other: BlockCalls) -> bool:
        return (
            self._at == len(other.calls)
            and self.saved == other.saved
            and self.returned == other.returned
            and self.graph == other.graph
            and self.comparable
        )

    def alike(self, other: BlockCalls) -> bool:
        """Whether both calls, recorded, are the same but for names."""
        return (
            self.comparable
            and other.comparable
            and self.arguments == other.arguments
            and self.calls == other.calls
            and self.saved == other.saved
            and self.returned == other.returned
            and self.graph == other.graph
            and self.events == other.events
            and self.inputs == other.inputs
        )

    def save(self, tensor: torch.Tensor) -> None:
        """Autograd saves the tensor."""
        mark = getattr(tensor, _MARK, None)
        known = id(tensor) in self._own or id(tensor) in self.given or mark is not None
        self.saved.append(self.where(tensor) if known else ("other", tuple(tensor.shape), tensor.dtype))

    def finish(self, output: Any) -> None:
        """The block returned `output`."""
        tensors = [*tensors_in(output)]
        if any(t._is_view() and t._version for t in tensors):
            self.comparable = False  # asking for its node would make a new one
            return
        self.returned = tuple((self.where(t), t.requires_grad, t.is_leaf) for t in tensors)
        self.graph = self._graph(tensors)

    def _key(self, func: Any, args: Any, kwargs: Any) -> Any:
        return (*map(self._part, args), *((name, self._part(v)) for name, v in kwargs.items()))

    def _part(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.where(value)
        kind = type(value)
        if kind in _PLAIN:
            return (kind, value)
        if kind is list or kind is tuple:
            return (kind, *map(self._part, value))
        self.comparable = False
        return (kind, id(value))

    def _results(self, given: list[torch.Tensor], out: Any, at: int) -> tuple[tuple[Any, ...], bool]:
        """What the call returned, and whether any tensor of it has known values; marks the tensors."""
        before = {id(t) for t in given}
        found: list[Any] = [None]
        if type(out) in (tuple, list):
            places = itertools.count()
            found = [(type(out), *(next(places) if isinstance(t, torch.Tensor) else None for t in out))]
        known = False
        for i, tensor in enumerate(tensors_in(out if isinstance(out, (tuple, list)) else (out,))):
            fake = isinstance(tensor, FakeTensor)
            known |= not fake or tensor.constant is not None  # type: ignore[attr-defined]
            if id(tensor) in before:
                found.append(self.where(tensor))
                known = True
                continue
            setattr(tensor, _MARK, (self.token, at, i))
            if tensor.layout is not torch.strided:
                self.comparable = False
                continue
            keys = torch._C._dispatch_keys(tensor).raw_repr()
            device = tensor.fake_device if fake else tensor.device  # type: ignore[attr-defined]
            found.append(
                _Made(
                    fake,
                    tuple(tensor.shape),
                    tensor.stride(),
                    int(tensor.storage_offset()),
                    tensor.dtype,
                    device,
                    keys,
                )
            )
        if len(found) == 1:
            found.append(type(out))
            known = True
        return tuple(found), known

    def _graph(self, outputs: list[torch.Tensor]) -> tuple[Any, ...]:
        """Autograd's graph of the block: names of nodes and their edges, from the outputs on."""
        numbers: dict[Any, int] = {}
        found: list[Any] = []
        pending = [t.grad_fn for t in outputs]
        roots = [
            None if n is None else (n.name(), t.output_nr) for n, t in zip(pending, outputs, strict=True)
        ]
        while pending:
            node = pending.pop()
            if node is None or node in numbers:
                continue
            numbers[node] = len(numbers)
            if node.name().endswith("AccumulateGrad"):
                found.append((node.name(), self.where(getattr(node, "variable"))))  # noqa: B009
            elif node._sequence_nr() < self.sequence:
                found.append(("outside",))
            else:
                self.comparable &= not isinstance(node, torch.autograd.function.BackwardCFunction)
                pending += [n for n, _ in node.next_functions]
                found.append(node)
        return (
            *roots,
            *(
                f
                if isinstance(f, tuple)
                else (f.name(), *((None if n is None else numbers[n], nr) for n, nr in f.next_functions))
                for f in found
            ),
        )


def mark_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Who made the tensor; a number of its own if no block did."""
    mark = getattr(tensor, _MARK, None)
    if mark is None:
        mark = (None, next(_numbers))
        setattr(tensor, _MARK, mark)
    return mark


def maker_of(tensor: torch.Tensor) -> int | None:
    """The token of the block that made the tensor."""
    mark = getattr(tensor, _MARK, None)
    return None if mark is None else mark[0]


def _functional(func: Any) -> bool:
    return isinstance(func, OpOverload) and func.namespace == "aten" and not func._schema.is_mutable
