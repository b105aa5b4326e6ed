"""describe: the operators of a model, from a forward on tensors without data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from osdp.base.kept_state import outside_inference_mode
from osdp.base.later_methods import function_of
from osdp.base.modules import is_conv1d, is_convolution, is_sharded, not_compiled
from osdp.base.names import is_in, joined, modules_around
from osdp.base.tensor_parallel import layout_of, local_part
from osdp.base.tensor_trees import batch_of, dtype_name, tensors_in, with_batch
from osdp.base.warned import warn
from osdp.description.fake_forward import FakeParameters, trace
from osdp.description.forward_tracer import Trace
from osdp.description.frozen_copies import frozen_copies
from osdp.description.kernels import Call, kernels_of, parts
from osdp.description.live_bytes import work_of
from osdp.description.model_description import (
    SAVED_BYTES,
    WORK_BYTES,
    Begin,
    Block,
    Buffers,
    Kernel,
    ModelDescription,
    Operator,
    Parameter,
    Read,
)
from osdp.description.recompute_blocks import block_containing, is_callable, recomputable_blocks
from osdp.description.tensor_subclasses import refuse_tensor_subclasses
from osdp.errors import DescribeError, ShardingError


@outside_inference_mode
def describe(
    model: nn.Module, *args: Any, precision: str = "fp32", device: str | None = None, **kwargs: Any
) -> ModelDescription:
    """The operators of `model` in execution order, with their bytes and work.

    `args` and `kwargs` are one sample for the model's forward: real or meta tensors; dimension 0 of the first
    one is the batch, as is dimension 0 of every other tensor of that length. The forward runs on a copy with
    fake tensors: no weight is read, copied or written, nothing large is allocated, and the model (which may
    be on the meta device), its buffers, its mode and the random number generators do not change. It runs in
    the model's mode, so call `model.train()` first to describe training. Only if the forward depends on
    values of tensors, which fake ones do not have, it runs on the real tensors, and its side effects are
    undone.

    Saved bytes are those of storages that autograd's saved-tensor hooks see, each counted once, for the
    operator that saved it first; parameters, buffers and the sample do not count. Tensors that a custom
    autograd function stores on its `ctx` without `save_for_backward` are not seen.

    `precision`: a name of `osdp.search`'s. With "bf16" or "fp16", and either's "-reduce-fp32", activations are those
    of a forward in that dtype, on a copy of the model; parameters keep their own dtypes. The description can only be
    searched in this precision.

    `device`: what will train, "cpu" or an accelerator ("cuda"); by default where the model is, and for the meta device a
    CPU. A few kernels hold other memory there (attention with dropout, LSTMs, convolutions: Note [Kernels of another
    device] in kernel_memory.py). `osdp.search(model, sample, hardware=...)` takes its machine's.

    Without a sample the forward does not run: operators are in `named_modules()` order, untraced, with zero
    activations.

    Raises DescribeError, with the module whose forward failed, and for a sample without a tensor of at least one
    dimension; ShardingError where the model is sharded already, has modules of torch.jit, or parameters that are not plain
    tensors. Of parameters that torch's parallelize_module has divided, what this rank holds is described, with the work
    that its products are.

    >>> osdp.describe(model, torch.zeros(4, 128, dtype=torch.long)).parameter_bytes
    """
    if precision not in MODELS_OWN:
        low: ModelDescription = function_of("describe")(model, args, kwargs, precision, device)
        return low
    _refuse_sharded(model)
    _refuse_uninitialised(model)
    _refuse_scripted(model)
    refuse_tensor_subclasses(model)
    ownership = Ownership(model)
    if not ownership.parameters:
        raise DescribeError(f"{type(model).__name__} has no parameters: there is nothing to shard")
    if not args and not kwargs:
        return _assemble(model, ownership, None, 0, 0)
    if not any(t.dim() > 0 for t in tensors_in((args, kwargs))):
        raise DescribeError(
            "the sample has no tensor whose dimension 0 could be the batch, so OSDP cannot tell what "
            "grows with the batch: pass tensors, or tuples, lists, dicts or dataclasses of them"
        )
    batch = batch_of((args, kwargs))
    if batch < 1:
        raise DescribeError("the sample is empty: its tensors have a batch (dimension 0) of size 0")
    with not_compiled(model):
        fakes = FakeParameters(model, accelerator=_on_accelerator(model, device))
        first, second, traced = _two_traces(model, fakes, (args, kwargs), batch)
    total = sum(t.nbytes for t in {id(t): t for t in tensors_in((args, kwargs))}.values())
    described = _assemble(model, ownership, Watched(first, second, traced), batch, total // batch)
    return dataclasses.replace(described, device=fakes.memory.device if fakes.memory.differs else "")


def _on_accelerator(model: nn.Module, device: str | None) -> bool:
    if device is None:
        return next(model.parameters()).device.type not in ("cpu", "meta")
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise DescribeError(
            f"device must be a name of torch's, as 'cpu' or 'cuda', got {device!r}: {error}"
        ) from None
    if kind == "meta":
        raise DescribeError("device is what will train the model, 'cpu' or 'cuda', not 'meta'")
    return kind != "cpu"


def watched_once(model: nn.Module, args: Any, kwargs: Any) -> ModelDescription:
    """Like `describe`, from a single forward: finds out where parameters are read, and the activations at
    this batch size only.

    Raises DescribeError, also if the forward depends on values that are not available.
    """
    _refuse_sharded(model)
    _refuse_uninitialised(model)
    _refuse_scripted(model)
    refuse_tensor_subclasses(model)
    batch = max(batch_of((args, kwargs)), 1)
    with not_compiled(model):
        watched = Watched(trace(model, FakeParameters(model), args, kwargs), None, batch)
    return _assemble(model, Ownership(model), watched, batch, 0)


# Precisions in which everything has the model's dtypes; that of products does not change activations.
MODELS_OWN = ("fp32", "tf32")


@dataclass(frozen=True)
class Watched:
    """The traces of two forwards: with `batch` samples, and with twice as many (None: the model fails on
    those)."""

    first: Trace
    second: Trace | None
    batch: int

    def parts(self, amount: Callable[[Trace], int]) -> tuple[int, int]:
        """The part of `amount` that grows with the batch, per sample, and the fixed part."""
        return parts(amount(self.first), None if self.second is None else amount(self.second), self.batch)

    def per_sample(self, amount: Callable[[Trace], int]) -> int:
        return -(-amount(self.first) // self.batch)


def _two_traces(
    model: nn.Module, fakes: FakeParameters, sample: tuple[Any, Any], batch: int
) -> tuple[Trace, Trace | None, int]:
    # Note [Two batch sizes]
    # Saved bytes are fixed + batch x per sample, so two forwards determine both parts. Neither of them has a
    # single sample: with a dimension of 1 more tensors are contiguous and expanded ones need no copy, so
    # larger batches may save one more tensor.
    base = max(batch, 2)
    try:
        first = trace(model, fakes, *(sample if base == batch else with_batch(sample, base)))
    except DescribeError:
        if base == batch:
            raise
        return trace(model, fakes, *sample), None, batch
    try:
        return first, trace(model, fakes, *with_batch(sample, 2 * base)), base
    except DescribeError:
        return first, None, base  # the model requires its batch size: count all as growing with the batch


class Ownership:
    """Which module owns which parameter. Tied parameters belong to the first owner in `named_parameters()`
    order.
    """

    def __init__(self, model: nn.Module) -> None:
        # Of a DTensor what this rank holds.
        self.parameters: dict[str, torch.Tensor] = {n: local_part(p) for n, p in model.named_parameters()}
        self.trained = {n for n, p in model.named_parameters() if p.requires_grad}
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        self.aliases: dict[str, tuple[str, ...]] = {
            name: tuple(other for other in names[id(p)] if other != name)
            for name, p in model.named_parameters()
        }
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.owned: dict[str, list[str]] = {}  # module name -> its parameters, in named_parameters() order
        for name in self.parameters:
            self.owned.setdefault(name.rpartition(".")[0], []).append(name)

    def home(self, parameter: str) -> nn.Module:
        """The module in which a parameter is registered under this name."""
        return self.modules[""].get_submodule(parameter.rpartition(".")[0])

    def fallback(self, owner: str) -> str:
        """Where to gather parameters whose reader is unknown: the nearest callable module around their owner.

        If they are tied or their module has several names: around all owners.
        """
        names = [name for p in self.owned[owner] for name in (p, *self.aliases[p])]
        around = [name.split(".")[:-2] for name in names]  # the paths of the owners' parents
        depth = 0
        while all(len(path) > depth and path[depth] == around[0][depth] for path in around):
            depth += 1
        for length in range(depth, 0, -1):
            place = ".".join(around[0][:length])
            if place in self.modules and is_callable(self.modules[place]):
                return place
        return ""


def _unchanging(blocks: list[str], watched: Watched | None) -> tuple[list[str], list[str]]:
    """`blocks` without those that modify their inputs, since a second forward would do so again, and these."""
    changed = watched.first.changed_inputs if watched is not None else set()
    left = [b for b in blocks if b in changed]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        warn(
            f"{left[0]!r}{more} changed its inputs (a KV cache? an operation in place?), so no plan "
            "will recompute it in backward to save memory. Models of transformers can be trained with "
            "use_cache=False, and described so with osdp.integrations.transformers.describe",
        )
    return [b for b in blocks if b not in changed], left


def _assemble(
    model: nn.Module,
    owners: Ownership,
    watched: Watched | None,
    batch: int,
    input_bytes: int,
) -> ModelDescription:
    blocks, changing = _unchanging(recomputable_blocks(model), watched)
    order: dict[str, None] = {}
    places: dict[str, tuple[str, ...]] = {}  # operator -> gather_at, for those that were read
    first = watched.first if watched else None
    if first is not None:
        place_of = {name: owner for owner, names in owners.owned.items() for name in names}
        for event in first.order:  # a parameter's name where it was read, else a module's
            order.setdefault(place_of.get(event, event))
        for owner, names in owners.owned.items():
            places[owner] = first.readers(names)
    for owner in owners.modules:
        if owner in owners.owned:
            order.setdefault(owner)
    operators: list[Operator] = []
    buffers = _buffer_bytes(owners)
    works = _works(watched, owners, list(order)) if watched is not None else {}
    shapes = {n: p.shape for n, p in owners.parameters.items()}
    copied = {n.rpartition(".")[0] for n in frozen_copies(shapes, owners.trained)}
    sums_in_slices = first is not None and all(
        owner not in copied and _split_shape(owners, owner, first) is not None
        for owner in {p.rpartition(".")[0] for p in first.summed}
    )
    for name in order:
        parameters = owners.owned.get(name, [])
        traced = bool(places.get(name)) if parameters else True
        gather_at = (places.get(name) or (owners.fallback(name),)) if parameters else ()
        saved, flops, work = (0, 0), 0, [0] * len(WORK_BYTES)
        if watched is not None:
            saved = watched.parts(lambda t, name=name: t.saved_bytes.get(name, 0))  # type: ignore[misc]
            flops = watched.per_sample(lambda t, name=name: t.flops.get(name, 0))  # type: ignore[misc]
            own = {t: of_trace.get(name, (0, 0, 0, 0)) for t, of_trace in works.items()}
            work = []  # of both, of forward, of backward
            for which in range(3):
                work += watched.parts(lambda t, own=own, which=which: own[t][which])  # type: ignore[misc]
        waiting = min((w.get(name, (0, 0, 0, 0))[3] for w in works.values()), default=0)
        if not parameters and not (any(saved) or flops):
            continue
        calls = sum(first.calls.get(m, 0) for m in gather_at or (name,)) if first else 1
        homes = {block_containing(blocks, m) for m in gather_at or (name,)}
        operators.append(
            Operator(
                name=name,
                kind=_kind(owners.modules[name]),
                parameters=tuple(_parameter(owners, p) for p in parameters),
                gather_at=gather_at,
                traced=traced,
                calls=calls,
                block=homes.pop() if len(homes) == 1 else None,
                split_shape=(shape := None if name in copied else _split_shape(owners, name, first)),
                look_ups=_look_ups(owners, gather_at) if shape is not None else (),
                transposed=shape is not None and is_conv1d(owners.modules[name]),
                kernel_places=0 if shape is None else _kernel_places(owners.modules[name]),
                parameter_bytes=sum(owners.parameters[p].nbytes for p in parameters),
                buffer_bytes=buffers.pop((name,), 0),
                flops_per_sample=flops,
                **dict(zip((*SAVED_BYTES, *WORK_BYTES), (*saved, *work), strict=True)),
                output_cut=first is not None and name in first.output_cut,
                output_groups=first.output_groups.get(name, 0) if first else 0,
                waiting_gradient_bytes=waiting if sums_in_slices else 0,
                reads=_reads(owners, name, first, blocks, gather_at),
                of_inputs=first is not None and name in first.of_inputs,
            )
        )
    kernels: tuple[tuple[Kernel, ...], ...] = ()
    if watched is not None and operators:
        operators, kernels = _with_kernels(operators, watched)
    return ModelDescription(
        name=type(model).__name__,
        operators=tuple(operators),
        blocks=tuple(
            Block(b, watched.per_sample(lambda t, b=b: t.input_bytes.get(b, 0)) if watched else 0)  # type: ignore[misc]
            for b in blocks
        ),
        sample_batch=batch,
        input_bytes_per_sample=input_bytes,
        output_bytes_per_sample=_output_bytes(watched) if watched else 0,
        blocks_changing_inputs=tuple(changing),
        precision="fp32",
        kernels=kernels,
        buffers=tuple(Buffers(modules, n) for modules, n in buffers.items()),
        begins=tuple(Begin(*begin) for begin in first.begins) if first is not None else (),
    )


def _with_kernels(
    operators: list[Operator], watched: Watched
) -> tuple[list[Operator], tuple[tuple[Kernel, ...], ...]]:
    """The operators with their kernels; the same where they were not recorded. A module that is no operator adds its
    kernels to those of the module around it."""
    if watched.first.kernel_calls is None:
        return operators, ()
    names = [o.name for o in operators]
    lists: dict[tuple[Kernel, ...], int] = {}
    positions: dict[str, list[int]] = {name: [] for name in names}
    for way in (0, 1):
        found = [
            None
            if t is None or t.kernel_calls is None
            else _by_operator(t.kernel_calls[way], set(names), operators[0].name)
            for t in (watched.first, watched.second)
        ]
        for name in names:
            one, two = (None if calls is None else calls.get(name, []) for calls in found)
            assert one is not None
            positions[name].append(lists.setdefault(kernels_of(one, two, watched.batch), len(lists)))
    return [
        dataclasses.replace(o, forward_kernels=positions[o.name][0], backward_kernels=positions[o.name][1])
        for o in operators
    ], tuple(lists)


def _by_operator(calls: dict[str, list[Call]], names: Container[str], first: str) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for module, own in calls.items():
        place = next((name for name in modules_around(module) if name in names), first)
        found.setdefault(place, []).extend(own)
    return found


def _works(
    watched: Watched, owners: Ownership, order: list[str]
) -> dict[Trace, dict[str, tuple[int, int, int, int]]]:
    """Working memory in each trace of those in `order` that will be operators, as `work_of` returns it."""
    traces = [t for t in (watched.first, watched.second) if t is not None]
    amounts = [t.saved_bytes for t in traces] + [t.flops for t in traces]
    names = [name for name in order if name in owners.owned or any(a.get(name) for a in amounts)]
    modules = {name: i for i, name in enumerate(names)}
    parameters = {p: modules[owner] for owner, owned in owners.owned.items() for p in owned}
    # A Linear may be computed in slices, each with a gradient of its own; others' are made as one backward goes on.
    together = [modules[name] for name in modules if _has_several_gradients(owners, name)]
    found = {}
    for t in traces:
        saved = [t.saved_bytes.get(name, 0) for name in names]
        found[t] = dict(
            zip(names, work_of(*t.moments, saved, modules, parameters, t.output_bytes, together), strict=True)
        )
    return found


def _has_several_gradients(owners: Ownership, name: str) -> bool:
    trained = [p for p in owners.owned.get(name, ()) if p in owners.trained]
    module = owners.modules[name]
    return len(trained) > 1 and not (isinstance(module, nn.Linear) or is_conv1d(module))


def _buffer_bytes(owners: Ownership) -> dict[tuple[str, ...], int]:
    """Bytes of buffers by the modules that have them."""
    sizes: dict[int, int] = {}
    holders: dict[int, dict[str, None]] = {}
    for name, module in owners.modules.items():
        for buffer in module._buffers.values():
            if buffer is not None and buffer.nbytes:
                sizes[id(buffer)] = buffer.nbytes
                holders.setdefault(id(buffer), {})[name] = None
    found: dict[tuple[str, ...], int] = {}
    for key, names in holders.items():
        found[tuple(names)] = found.get(tuple(names), 0) + sizes[key]
    return found


def _output_bytes(watched: Watched) -> int:
    per_sample, fixed = watched.parts(lambda t: t.output_bytes)
    return per_sample + fixed // watched.batch


def _split_shape(owners: Ownership, name: str, trace: Trace | None) -> tuple[int, int] | None:
    """The outputs and inputs of the module's weight if it can be sliced; else None.

    It can if all that read it are plain nn.Linear and nn.Embedding modules whose weight it is, which all read it: so a
    table that is tied to a head has one set of slices. Or if all are transformers' Conv1D, or convolutions.
    """
    module = owners.modules[name]
    if trace is None or not _can_be_sliced(module):
        return None
    weight = joined(name, "weight")
    owned = owners.owned.get(name, [])
    if not owned or len(owned) != sum(p is not None for p in module._parameters.values()):
        return None  # the bias or the weight belongs to an earlier operator, or to none
    if any(owners.home(alias) is not module for p in owned if p != weight for alias in owners.aliases[p]):
        return None
    own: Any = module.weight
    if not own.is_floating_point() or own._backward_hooks:
        return None  # of complex numbers; `register_hook`, which is called with the full gradient
    readers = {owners.modules[r] for r in trace.readers([weight])}
    homes = {owners.home(n) for n in (weight, *owners.aliases[weight])}
    if readers != homes or not all(_can_be_sliced(r) and r.weight is own for r in readers):
        return None
    if any(is_conv1d(r) != is_conv1d(module) or is_convolution(r) != is_convolution(module) for r in readers):
        return None
    layout = layout_of(own)
    if layout is not None and not (layout.divided and type(module) is nn.Linear and len(readers) == 1):
        return None
    shape = local_part(own).shape
    out_features, in_features = shape[0], math.prod(shape[1:])
    if is_conv1d(module):
        out_features, in_features = in_features, out_features
    return (out_features, in_features) if min(out_features, in_features) >= 2 else None


def _can_be_sliced(module: nn.Module) -> bool:
    """Whether this module computes as `osdp.sharding.split_linear`, `split_embedding` or `_C.SplitConvolution` does."""
    if "forward" in vars(module) or _has_hooks(module):
        return False
    if type(module) is nn.Embedding:
        # max_norm writes to the table, the others make gradients that slices do not.
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    if is_convolution(module):
        # Of those with groups only whole groups could be a slice; their weights are small by as many times.
        return module.groups == 1
    return type(module) is nn.Linear or is_conv1d(module)


def _reads(
    owners: Ownership, name: str, trace: Trace | None, blocks: list[str], gather_at: tuple[str, ...]
) -> tuple[Read, ...]:
    """Where the parameters of `name` are read, if a module outside of blocks does that around others with parameters, or if
    a module is called at several places."""
    found = [
        Read(p, *read)
        for p in owners.owned.get(name, ())
        for read in (trace.reads.get(p, ()) if trace is not None else ())
    ]
    around = (
        block_containing(blocks, module) is None
        and any(m != module and is_in(m, module) for m in owners.owned)
        for module in dict.fromkeys(read.module for read in found)
    )
    return tuple(found) if any(around) or _at_several_places(found, blocks, gather_at) else ()


def _at_several_places(reads: list[Read], blocks: list[str], gather_at: tuple[str, ...]) -> bool:
    """Whether a module that reads is called again behind others (one norm behind each block), or by what shares it."""
    for module in dict.fromkeys(read.module for read in reads):
        home = block_containing(blocks, module) or module
        before = {r.after for r in reads if r.module == module and not (r.after and is_in(r.after, home))}
        if len(before) > 1 or not any(is_in(module, place) for place in gather_at):
            return True
    return False


def _kind(module: nn.Module) -> str:
    """Torch's tensor parallelism divides a subclass of nn.Embedding as one."""
    return "Embedding" if isinstance(module, nn.Embedding) else type(module).__name__


def _look_ups(owners: Ownership, gather_at: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(place for place in gather_at if type(owners.modules[place]) is nn.Embedding)


def _kernel_places(module: nn.Module) -> int:
    return math.prod(module.kernel_size) if is_convolution(module) else 0


def _has_hooks(module: nn.Module) -> bool:
    """Besides those of parallelize_module, which convert the module's input and result."""
    found = (
        *module._forward_hooks.values(),
        *module._forward_pre_hooks.values(),
        *module._backward_hooks.values(),
        *module._backward_pre_hooks.values(),
    )
    divided = any(layout_of(p) is not None for p in module.parameters())  # what is ignored is not there
    converting = "torch.distributed.tensor." if divided else None
    return any(not converting or not (h.__module__ or "").startswith(converting) for h in found)


def _parameter(owners: Ownership, name: str) -> Parameter:
    p = owners.parameters[name]
    return Parameter(name, owners.aliases[name], tuple(p.shape), dtype_name(p), name in owners.trained)


def _refuse_sharded(model: nn.Module) -> None:
    if not is_sharded(model):
        return
    raise DescribeError(
        f"this {type(model).__name__} is sharded already, and its parameters are this rank's parts: "
        "describe and profile the model before osdp.fully_shard"
    )


def _refuse_scripted(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ShardingError(
                f"{repr(name) if name else 'the model'} was compiled by torch.jit (script, trace or load): its call takes "
                "neither hooks nor other parameters. Put the module that it was made from there, and compile that with "
                "torch.compile, before or after fully_shard"
            )


def _refuse_uninitialised(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise DescribeError(
                f"{name!r} has no shape yet (a lazy module): run the model once before describing it"
            )
