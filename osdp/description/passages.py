"""Passages: at which modules a stage of a pipeline may begin, found while a forward is traced.

Note [Where a stage may begin]
A stage that begins at a module gets that module's first tensor from the stage before, and computes the rest from the
model's inputs (Note [A model cut to one stage] in osdp/parallel/stage_module.py). So what modules before it compute may
reach what is behind only through this one tensor: no other argument of the module, not the model's output by another way,
and no buffer of a module around both. The trace follows that outside of blocks, in which no stage begins.
  Each tensor has a set: the modules at which a stage that begins would not have the tensor, since something in it was
computed before, and did not come through their first tensor. Modules have bits in the order of their first calls, and sets
are integers: what a parameter makes is missing in all stages that begin later, so all further bits are set (-1 << n).
A module with parameters passes on what any of its inputs lacks, as in the first step (osdp/parallel/elsewhere.py).
  Modules without parameters that compute from the model's inputs alone (a rotary table, a mask) are no stage's: each stage
calls them itself, also to write to their buffers. A module of several blocks that writes to its buffers (a batch norm
without parameters) is missing in the stages that begin behind its first call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from osdp.base.names import is_in, modules_around
from osdp.base.storage_numbers import StorageNumbers
from osdp.base.tensor_parallel import local_part
from osdp.base.tensor_trees import tensors_held, tensors_in, version_of, written_to

# Of transformers' models: each layer writes keys and values of its own into it, which no other one reads.
CACHES = "transformers.cache_utils"
PLAIN = (bool, int, float, str, torch.dtype, torch.Size, type(None))


@dataclass
class _Call:
    name: str
    bit: int = 0  # of the module, in its first call outside of blocks
    lacks: int = 0  # of what it is called with, but for what passes
    passes: int = -1  # the storage of its first tensor
    simple: bool = True  # whether it is called with tensors and plain values alone
    buffers: list[tuple[int, int]] = field(default_factory=list)


class Passages:
    """Of the forward of `model`. `blocks`: in which nothing is followed. `numbers`: of storages."""

    def __init__(self, model: nn.Module, blocks: Iterable[str], numbers: StorageNumbers) -> None:
        self._blocks, self._numbers = frozenset(blocks), numbers
        held = {name for name, _ in model.named_parameters()}
        self._with_parameters = {m for name in held for m in modules_around(name.rpartition(".")[0])}
        self._parameters = {numbers.of(local_part(p)) for p in model.parameters() if _is_dense(p)}
        self._buffers: dict[int, str] = {}  # storage -> the module that has it
        self._with_buffers: set[str] = set()
        for name, buffer in model.named_buffers():
            owner = name.rpartition(".")[0]
            self._with_buffers.update(modules_around(owner))
            if _is_dense(buffer):
                self._buffers[numbers.of(local_part(buffer))] = owner
        self._homes: dict[nn.Module, list[str]] = {}  # by module in blocks, these
        for block in self._blocks:
            for module in [*model.get_submodule(block).modules()][1:]:
                self._homes.setdefault(module, []).append(block)
        self._bits: dict[str, int] = {}  # by module that was called, the position of its bit
        self._inside: dict[str, int] = {}  # by module, the bits of those in it
        self._lacking: dict[int, int] = {}  # by storage
        self._passing: dict[int, int] = {}  # by storage, the bits of running modules whose first tensor it is
        self._calls: list[_Call] = []
        self._block = ""  # that runs
        self._began: dict[str, int] = {}  # by module with buffers in blocks, how many had been called before
        self._writing: set[str] = set()  # modules that write to their buffers
        self._apart = 0  # what the running block lacks of modules of other blocks
        self._of_inputs: dict[str, bool] = {}
        self._why: dict[str, str] = {}
        self._unlike: dict[str, str] = {}  # modules of which nobody else can tell what they return
        self._held_apart: set[str] = set()  # modules to whose buffers a part of the model is written
        self._output: int | None = None
        self._with_gradients = False

    def begins(self) -> Iterator[tuple[str, str]]:
        """Modules that forward called outside of others' blocks, in order, with why no stage can begin there, or ""."""
        for name, at in self._bits.items():
            if not name:
                continue
            why = self._why.get(name, "")
            around = next((m for m in modules_around(name) if m != name and m in self._held_apart), None)
            if self._output is None:
                why = why or "the model's output has no floating-point tensor"
            elif self._output >> at & 1:
                why = (
                    why or "forward uses what was computed before it in another way than as its first tensor"
                )
            elif around is not None:
                why = why or f"a buffer of {around or 'the model'!r} has what is computed on both sides of it"
            elif (other := next((m for m in self._unlike if not is_in(name, m)), None)) is not None:
                why = why or f"{other!r} returns {self._unlike[other]} that other stages cannot make"
            yield name, why

    def of_inputs(self) -> set[str]:
        """Modules without parameters that compute from the model's inputs alone."""
        return {name for name, alone in self._of_inputs.items() if alone}

    def enter(self, name: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        call = _Call(name, simple=_is_simple(args) and _is_simple(kwargs))
        self._calls.append(call)
        if name in self._with_buffers:
            call.buffers = _versions(module)
        if self._block:
            if name in self._with_buffers:
                self._began.setdefault(name, len(self._bits))
            return
        for block in self._homes.get(module, ()):
            self._why[block] = f"forward calls {name!r}, a part of it, outside of it"
        if not name:
            self._with_gradients = torch.is_grad_enabled()
        named = [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]
        first = next(((key, a) for key, a in named if isinstance(a, Tensor)), None)
        others = {key: self._lacks(a) for key, a in named if first is None or key != first[0]}
        for lacks in others.values():
            call.lacks |= lacks
        passing = 0 if first is None else self._lacks(first[1])
        if name not in self._bits:
            at = self._bits[name] = len(self._bits)
            call.bit = 1 << at
            for around in modules_around(name):
                if around != name:
                    self._inside[around] = self._inside.get(around, 0) | call.bit
            self._look_at_arguments(name, first, others, at)
            if first is not None and _is_dense(first[1]):
                call.passes = self._numbers.of(local_part(first[1]))
                self._passing[call.passes] = self._passing.get(call.passes, 0) | call.bit
        call.lacks |= passing & ~call.bit
        if name in self._blocks:
            self._block, self._apart = name, 0

    def _look_at_arguments(
        self, name: str, first: tuple[str, Any] | None, others: Mapping[str, int], at: int
    ) -> None:
        if name in self._why:
            return
        if self._with_gradients and not torch.is_grad_enabled():
            self._why[name] = (
                "it is called without gradients (no_grad, or a checkpoint with use_reentrant=True)"
            )
        elif first is None:
            self._why[name] = "it is called without a tensor"
        elif not first[1].is_floating_point():
            self._why[name] = f"its first tensor has the dtype {first[1].dtype}, which has no gradient"
        elif (key := next((k for k, lacks in others.items() if lacks >> at & 1), None)) is not None:
            self._why[name] = f"its argument {key} is computed before it, too, and one tensor passes"

    def called(self, func: Any, args: Any, kwargs: Any, tensors: Iterable[Tensor], out: Any) -> None:
        """An ATen call."""
        if self._block or not isinstance(func, OpOverload):
            return
        name = func._schema.name
        if name.endswith("_like") or "::new_" in name:
            return
        lacks = 0
        for tensor in tensors:
            lacks |= self._lack(tensor)
        if not lacks:
            return
        for tensor in tensors_in(out):
            self._add(tensor, lacks)
        for tensor in written_to(func, args, kwargs) if func._schema.is_mutable else ():
            self._add(tensor, lacks)
            if (
                _is_dense(tensor)
                and (owner := self._buffers.get(self._numbers.of(local_part(tensor)))) is not None
            ):
                self._held_apart.add(owner)

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        while self._calls and self._calls[-1].name != name:  # one that raised
            self._passed(self._calls.pop())
        call = self._calls.pop()
        if call.buffers and (call.buffers != _versions(module) or _is_batch_norm(module)):
            self._writing.add(name)
        if self._block and name != self._block:
            if name in self._writing and not is_in(name, self._block):
                self._apart |= -1 << self._began.get(name, 0)
            return
        if name in self._with_parameters and not (
            isinstance(output, Tensor) or self._others_can(call, output)
        ):
            self._unlike[name] = f"a {type(output).__name__}"
        made = [t for t in _held(output) if _is_dense(t)]
        found = [self._lack(t) for t in made]
        self._passed(call)
        inside = self._inside.get(name, 0)
        if name in self._with_parameters or (name in self._with_buffers and any(found)):
            more = (call.lacks | -1 << self._bits[name] + 1) & ~inside
            found = [lacks | more | self._apart for lacks in found]
        if name not in self._with_parameters:
            alone = bool(made) and not any(found) and name not in self._held_apart
            self._of_inputs[name] = alone and self._of_inputs.get(name, True)
        self._block, self._apart = "", 0
        for tensor, lacks in zip(made, found, strict=True):
            self._lacking[self._numbers.of(local_part(tensor))] = lacks
        if not name:
            values = output.values() if isinstance(output, Mapping) else (output,)
            floats = [t for t in tensors_in(list(values)) if t.is_floating_point()]
            self._output = self._lack(floats[0]) if floats else None

    def _others_can(self, call: _Call, output: Any) -> bool:
        """Whether other stages know the structure of what a module returns. They run those that hold several blocks."""
        several = sum(b != call.name and is_in(b, call.name) for b in self._blocks) > 1 or not call.name
        return several or (call.simple and _is_simple(output))

    def _passed(self, call: _Call) -> None:
        if call.passes >= 0:
            self._passing[call.passes] &= ~call.bit

    def _lacks(self, tree: Any) -> int:
        lacks = 0
        for tensor in _held(tree):
            lacks |= self._lack(tensor)
        return lacks

    def _lack(self, tensor: Tensor) -> int:
        if not _is_dense(tensor):
            return 0
        number = self._numbers.of(local_part(tensor))
        if number in self._parameters:  # belongs to the stage in which it is read first
            return self._lacking.setdefault(number, -1 << len(self._bits))
        lacks = self._lacking.get(number, 0)
        return lacks & ~self._passing.get(number, 0) if lacks else 0

    def _add(self, tensor: Tensor, lacks: int) -> None:
        if _is_dense(tensor):
            number = self._numbers.of(local_part(tensor))
            if number not in self._parameters:
                self._lacking[number] = self._lacking.get(number, 0) | lacks


def _is_dense(tensor: Tensor) -> bool:
    return local_part(tensor).layout is torch.strided


def _held(tree: Any) -> Iterator[Tensor]:
    """The tensors in arguments or an output, without those in caches."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _held(item)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _held(item)
    elif type(tree).__module__ != CACHES:
        yield from tensors_held(tree)


def _is_simple(tree: Any) -> bool:
    """Whether other stages can compute with it on the meta device (osdp/parallel/output_shapes.py)."""
    if type(tree) in (tuple, list):
        return all(map(_is_simple, tree))
    if type(tree) is dict:
        return all(map(_is_simple, tree.values()))
    return isinstance(tree, (Tensor, *PLAIN))


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    return [(id(b), version_of(b)) for b in module._buffers.values() if b is not None]


def _is_batch_norm(module: nn.Module) -> bool:
    """Whether it writes to its statistics, which does not show in versions."""
    norm = isinstance(module, nn.modules.batchnorm._NormBase)
    return norm and module.training and bool(module.track_running_stats)
