"""Watcher: records by module which parameters a forward reads, what it saves and how much it computes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from osdp import _C
from osdp.base.module_proxy import ModuleProxy
from osdp.base.names import is_in, modules_around
from osdp.base.storage_numbers import StorageNumbers
from osdp.base.tensor_parallel import local_part, storage_id, wraps_local
from osdp.base.tensor_trees import map_tensors, tensors_held, tensors_in, written_to
from osdp.description.equal_blocks import EqualBlocks
from osdp.description.kernel_memory import KernelMemory
from osdp.description.kernels import Call, flops_of
from osdp.description.live_log import Moment
from osdp.description.output_uses import made_by, use_of
from osdp.description.passages import Passages
from osdp.description.recompute_blocks import recomputable_blocks

_DEVICE = torch.ops.prim.device.default


class Trace:
    """The record of one forward. Module names are those of `named_modules()`, parameter names those of
    `named_parameters()`.
    """

    def __init__(self) -> None:
        # Parameters by first read, modules by their first saved tensor or computation.
        self.order: dict[str, None] = {}
        # Parameter -> distinct stacks of running modules at its reads.
        self.stacks: dict[str, dict[tuple[str, ...], None]] = {}
        # Parameter -> its distinct reads: the innermost running module (of one that is reached by several names the one
        # that calls it), and that whose call ended last before.
        self.reads: dict[str, dict[tuple[str, str], None]] = {}
        self.calls: dict[str, int] = {}
        self.saved_bytes: dict[str, int] = {}
        self.flops: dict[str, int] = {}
        self.input_bytes: dict[str, int] = {}  # block -> bytes of the tensors it was called with
        self.changed_inputs: set[str] = set()  # blocks whose inputs are written to, by themselves or later
        self.output_cut: set[str] = set()  # linears whose outputs forward cuts in parts
        self.output_groups: dict[str, int] = {}  # or views in groups
        # Of modules outside of blocks, for pipelines: where a stage may begin, or why not, and those that compute from the
        # model's inputs alone.
        self.begins: list[tuple[str, str]] = []
        self.of_inputs: set[str] = set()
        self.output_bytes = 0  # of the model's outputs that are not saved anyway
        # Of forward and backward, if recorded.
        self.moments: tuple[list[Moment], list[Moment]] = ([], [])
        self.summed: set[str] = set()  # matrices whose gradients autograd sums, as far as it is recorded
        self.kernel_calls: tuple[dict[str, list[Call]], dict[str, list[Call]]] | None = None  # likewise

    def readers(self, parameters: Sequence[str]) -> tuple[str, ...]:
        """The innermost modules that read any of `parameters`, in order of first read.

        A module that reads only inside the call of another reader is omitted: the parameters are gathered
        there already.
        """
        stacks = list(dict.fromkeys(stack for name in parameters for stack in self.stacks.get(name, ())))
        innermost = list(dict.fromkeys(stack[-1] for stack in stacks))
        return tuple(
            module
            for module in innermost
            if any(
                stack[-1] == module and not any(outer in innermost and outer != module for outer in stack)
                for stack in stacks
            )
        )


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, records the forward of `model` in `trace`. Enter inside of other dispatch modes.

    `original` is the model that `model` is a copy of: remaining references to its parameters (such as in a
    closure) count as the copy's. `call(func, args, kwargs, tensors)` executes ATen calls. Everything is
    attributed to the innermost running module. Parameters, buffers and the model's inputs are not counted as
    saved, since they exist anyway.
    """

    # Note [Reading is dispatching]
    # A parameter is read when an operation gets a tensor with its storage: the parameter itself or a view of
    # it, such as weight.t(). Creating a view counts as a read, since its sizes come from the full parameter,
    # so a module that passes a view to another one is a reader too. Reading only `weight.shape` or `.device`
    # is not seen.

    # Note [What blocks share]
    # An attention mask, rotary tables or an encoder's output are inputs of every block, and should not be
    # attributed to the first block that saves them: if that block is recomputed, the others still hold them.
    # So a saved tensor that is the input of several block calls counts for the caller of the first of those
    # blocks, where recomputation frees nothing, and not for any block's inputs. A tensor that is never saved
    # exists only as long as some recomputed block holds it: each such block counts its share.

    def __init__(
        self,
        model: nn.Module,
        original: nn.Module | None = None,
        call: Callable[..., Any] | None = None,
        memory: KernelMemory | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.model = model
        self._memory = memory or KernelMemory(accelerator=False)
        self._call = call or (lambda func, args, kwargs, tensors: func(*args, **kwargs))
        self._stack: list[str] = []
        # The module whose call ended last, of those with parameters. A tied one has none of its own.
        self._ended = ""
        self._parameter_of: dict[int, str] = {}
        self._uncounted: set[int] = set()  # storages that exist anyway
        # They are kept, also where forward gives a parameter another one (`p.data = ...`): what comes to their address
        # would be taken for the parameter.
        self._kept: list[Any] = []
        # Storages, by number. They are not kept alive, since that would show in LiveBytes.
        self._numbers = StorageNumbers()
        self._saved: dict[int, tuple[str, int]] = {}  # the module that saved it first, and its bytes
        self._given: dict[int, _Given] = {}
        self._returned: dict[int, int] = {}  # bytes; held by the model's caller
        self.blocks = recomputable_blocks(model)
        # Block -> versions of its inputs, for calls in progress.
        self._inputs: dict[str, list[bytes]] = {}
        self._failures: list[tuple[BaseException, str]] = []
        self._copy_of: dict[int, torch.Tensor] = {}  # storage of a tensor of `original` -> the copy's tensor
        self._exit: ExitStack | None = None
        self.pack = self._save
        self._boxes: list[list[torch.Tensor]] = []
        self.equal: EqualBlocks | None = None  # Note [Equal blocks]
        self.passages = Passages(model, self.blocks, self._numbers)
        for name, parameter in model.named_parameters():
            self._parameter_of.setdefault(storage_id(parameter), name)
        owners = {name.rpartition(".")[0] for name in self._parameter_of.values()}
        self._with_parameters = {module for owner in owners for module in modules_around(owner)}
        self._exist_anyway([*model.parameters(), *model.buffers()])
        if original is not None:
            copies = dict(model.named_parameters())
            for name, parameter in original.named_parameters():
                self._copy_of[storage_id(parameter)] = copies[name]

    def _exist_anyway(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in map(local_part, tensors):
            if tensor.layout is torch.strided:
                self._kept.append(tensor.untyped_storage())
            self._uncounted.add(storage_id(tensor))

    @property
    def running(self) -> str:
        """The innermost module that runs; "" is the root."""
        return self._stack[-1] if self._stack else ""

    def doubt(self) -> None:
        """The backward may run code of the model's."""
        if self.equal is not None:
            self.equal.doubt()

    def failed_in(self, error: BaseException) -> str:
        """The innermost module whose forward raised `error`."""
        return next((name for raised, name in self._failures if raised is error), "")

    def __enter__(self) -> Watcher:
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if isinstance(module, ModuleProxy):
                    continue
                stack.callback(
                    module.register_forward_pre_hook(self._begin(name), prepend=True, with_kwargs=True).remove
                )
                if name in self.blocks:  # after hooks that replace its arguments
                    stack.callback(
                        module.register_forward_pre_hook(self._enter_block(name), with_kwargs=True).remove
                    )
                stack.callback(
                    module.register_forward_hook(self._end(name), always_call=True, with_kwargs=True).remove
                )
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.pack, _unboxed))
            super().__enter__()  # type: ignore[no-untyped-call]
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        assert self._exit is not None
        self._exit.close()
        self._attribute()

    def _begin(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not name and not self._stack:
                self._exist_anyway(tensors_in((args, kwargs)))
            self._stack.append(name)
            self.trace.calls[name] = self.trace.calls.get(name, 0) + 1
            with torch._C.DisableTorchFunction():
                self.passages.enter(name, module, args, kwargs)
            if self.equal is not None and name in self.blocks:
                with torch._C.DisableTorchFunction():
                    self.equal.enter(name, (args, kwargs))

        return hook

    def _enter_block(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            with torch._C.DisableTorchFunction():
                self._give(name, (args, kwargs))
            self._inputs.setdefault(name, []).append(_C.versions_in((args, kwargs)))

        return hook

    def _end(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            calls = self._inputs.get(name)
            changed = calls is not None and bool(calls) and calls.pop() != _C.versions_in((args, kwargs))
            if changed:
                self.trace.changed_inputs.add(name)
            error = sys.exc_info()[1]  # also runs when the forward raised, innermost module first
            if error is not None and not any(raised is error for raised, _ in self._failures):
                self._failures.append((error, name))
            while self._stack and self._stack.pop() != name:
                pass
            if error is not None:
                return output
            if name in self._with_parameters:
                self._ended = name
            made_by(module, name, output)
            with torch._C.DisableTorchFunction():
                if self.equal is not None and name in self.blocks:
                    output = self._left_block(self.equal, output, changed)
                self.passages.leave(name, module, output)
            if not name and not self._stack:
                self._returned = {
                    self._numbers.of(t): t.untyped_storage().nbytes()
                    for t in map(local_part, tensors_held(output))
                    if t.layout is torch.strided and storage_id(t) not in self._uncounted
                }
                if self.equal is not None:
                    self.equal.returns(output)
            return output

        return hook

    def _left_block(self, equal: EqualBlocks, output: Any, changed: bool) -> Any:
        followed = equal.following
        output = equal.leave(output, changed)
        self._empty_boxes()
        for event in equal.copied() if followed else ():
            self._apply(event)
        return output

    # Note [Events]
    # What an ATen call or a saved tensor adds to the trace is an event, so that it can be repeated for a block that is
    # followed: Note [Equal blocks].

    def _happens(self, *event: Any) -> None:
        if self.equal is not None:
            self.equal.happened(event)
        self._apply(event)

    def _apply(self, event: tuple[Any, ...]) -> None:
        match event:
            case ("order", str(name)):
                self.trace.order.setdefault(name)
            case ("read", str(name), stack):
                self.trace.order.setdefault(name)
                self.trace.stacks.setdefault(name, {}).setdefault(stack)
                # A module that several share has one name, and is called in others, which it is not in by name.
                reader = next((m for m in reversed(stack) if not is_in(stack[-1], m)), stack[-1])
                self.trace.reads.setdefault(name, {}).setdefault((reader, self._ended))
            case ("flops", str(module), int(amount)):
                self._add(self.trace.flops, module, amount)
            case ("saved", str(module), int(amount)):
                self._add(self.trace.saved_bytes, module, amount)

    def _give(self, block: str, inputs: Any) -> None:
        if self.equal is not None and self.equal.following:
            for own in self.equal.given_too(inputs):
                if isinstance(own, int):
                    self.trace.input_bytes[block] = self.trace.input_bytes.get(block, 0) + own
                else:
                    self._given[self._numbers.of(own)].blocks.append(block)
            return
        given_tensors = map(local_part, tensors_in(inputs))
        distinct = {storage_id(t): t for t in given_tensors if t.layout is torch.strided}
        for identity, tensor in distinct.items():
            if identity not in self._uncounted:
                caller = self._stack[-2] if len(self._stack) > 1 else ""
                bytes_ = tensor.untyped_storage().nbytes()
                given = self._given.setdefault(self._numbers.of(tensor), _Given(bytes_, caller, []))
                given.blocks.append(block)
                if self.equal is not None:
                    self.equal.given(tensor, bytes_)

    def _save(self, saved: torch.Tensor) -> Any:
        tensor = local_part(saved)
        if tensor is not saved:
            self._save(tensor)
            return saved
        if tensor.layout is not torch.strided:
            return tensor
        if self.equal is not None:
            with torch._C.DisableTorchFunction():
                self.equal.saves(tensor)
            if self.equal.following:
                return self._boxed(tensor)
        if storage_id(tensor) in self._uncounted:
            return tensor
        number = self._numbers.of(tensor)
        if number not in self._saved:
            bytes_ = tensor.untyped_storage().nbytes()
            self._saved[number] = (self.running, bytes_)
            if bytes_:
                if number in self._given:  # it may later be attributed to the caller
                    self._happens("order", self._given[number].caller)
                self._happens("order", self.running)
                if self.equal is not None:
                    self.equal.happened(("saved", self.running, bytes_))
        return tensor

    # A node that saves its own result refers to itself, and would never be freed unless a backward comes by.
    def _boxed(self, tensor: torch.Tensor) -> Any:
        self._boxes.append([tensor])
        return self._boxes[-1]

    def _empty_boxes(self) -> None:
        for box in self._boxes:
            box.clear()
        self._boxes.clear()

    def _attribute(self) -> None:
        """Compute the trace's bytes after the whole forward. See Note [What blocks share]."""
        shared = {number: given for number, given in self._given.items() if len(given.blocks) > 1}
        for number, (place, bytes_) in self._saved.items():
            self._add(self.trace.saved_bytes, shared[number].caller if number in shared else place, bytes_)
        for number, given in self._given.items():
            if number not in shared or number not in self._saved:
                share = -(-given.bytes // len(given.blocks))
                for block in given.blocks:
                    self.trace.input_bytes[block] = self.trace.input_bytes.get(block, 0) + share
        self.trace.begins = [*self.passages.begins()]
        self.trace.of_inputs = self.passages.of_inputs()
        self.trace.output_bytes = sum(b for number, b in self._returned.items() if number not in self._saved)

    def _add(self, amounts: dict[str, int], module: str, amount: int) -> None:
        if amount:
            self.trace.order.setdefault(module)
            amounts[module] = amounts.get(module, 0) + amount

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if wraps_local(types):
            return NotImplemented  # they call on what they wrap, which is recorded
        if func is _DEVICE:  # of a fake tensor: called more often than all others together
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        with torch._C.DisableTorchFunction():
            if (use := use_of(func, args)) is not None:
                name, groups = use
                if groups:
                    self.trace.output_groups.setdefault(name, groups)
                else:
                    self.trace.output_cut.add(name)
            return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = _tensors_given(args, kwargs)
        if self.equal is not None and self.equal.following and all(type(t) is FakeTensor for t in tensors):
            return self._followed(self.equal, func, args, kwargs, tensors)
        given = [storage_id(t) for t in tensors]
        if any(i in self._copy_of for i in given):
            args, kwargs = map_tensors(lambda t: self._copy_of.get(storage_id(t), t), (args, kwargs))
            tensors = _tensors_given(args, kwargs)
            given = [storage_id(t) for t in tensors]
        if self.equal is not None and self.equal.following:
            return self._followed(self.equal, func, args, kwargs, tensors)
        for identity in given:
            if name := self._parameter_of.get(identity):
                self._happens("read", name, tuple(self._stack) or ("",))
        if self._given and isinstance(func, OpOverload) and func._schema.is_mutable:
            self._writes(written_to(func, args, kwargs))
        out = self._call(func, args, kwargs, tensors)
        self.passages.called(func, args, kwargs, tensors, out)
        self._happens("flops", self.running, flops_of(func, args, kwargs, out))
        if torch.is_grad_enabled():
            self._happens("saved", self.running, self._memory.hidden_bytes(func, args, out))
        if self.equal is not None:
            self.equal.called(func, args, kwargs, tensors, out, self.running)
        return out

    def _writes(self, tensors: list[torch.Tensor]) -> None:
        """A block whose input is written to after its call would be recomputed from something else."""
        for tensor in map(local_part, tensors):
            if tensor.layout is torch.strided and (given := self._given.get(self._numbers.of(tensor))):
                self.trace.changed_inputs.update(given.blocks)

    def _followed(
        self, equal: EqualBlocks, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]
    ) -> Any:
        return equal.call(lambda: self._call(func, args, kwargs, tensors), func, args, kwargs, self.running)


def _unboxed(packed: Any) -> torch.Tensor:
    tensor: torch.Tensor = packed[0] if type(packed) is list else packed
    return tensor


class _Given(NamedTuple):
    """A tensor that is an input of blocks."""

    bytes: int
    caller: str  # the module that ran when the first of them was called
    blocks: list[str]  # one entry per call


def _tensors_given(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors among the arguments of an ATen call, which are flat except for lists."""
    found: list[torch.Tensor] = []
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found.extend(tensors_in(argument))
    return found
