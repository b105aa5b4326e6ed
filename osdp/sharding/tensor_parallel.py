"""Parameters that torch's parallelize_module has made DTensors: OSDP shards the part that this rank holds.

Note [Tensor parallelism]
A model is first divided over a mesh of tensor parallelism, then sharded over one of data parallelism. The part of a
parameter that this rank holds over the first is what is sharded over the second: fully_shard puts a plain parameter with
that part in the DTensor's place, which remembers its layout. In a step modules find a DTensor again (csrc/runtime/step/
wrapped_parameters.hpp), in state dicts it is one over both meshes, as FSDP2's are (osdp/sharding/dtensors.py). Between
steps it is this rank's rows of this rank's part. Everything that OSDP exchanges is between ranks that hold the same part;
norms are summed over both meshes (osdp/sharding/norm_over_meshes.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from osdp import _C
from osdp.base.names import joined
from osdp.base.tensor_parallel import Layout, layout_of, set_layout, under_fsdp2
from osdp.base.warned import warn
from osdp.description.tensor_subclasses import why_unsupported
from osdp.errors import ShardingError
from osdp.sharding.replaced_parameters import note_replaced
from osdp.sharding.torch_patches.compiled_inputs import install_inputs_in_flight


@contextmanager
def local_parts(model: nn.Module) -> Iterator[None]:
    """Context in which the model's DTensor parameters are plain parameters with this rank's part; an error puts the
    DTensors back. Those that are not supported stay, and are refused when the model is described. Hooks on tensors are
    not carried over, so a parameter that has some is refused.

    So are DTensor buffers that no state dict holds (rotations that operators combine with divided activations), which are
    DTensors again afterwards: ranks that hold the same part take the first one's values, and that is all."""
    if under_fsdp2(model) is not None:
        yield  # refused later, by name
        return
    homes: list[tuple[nn.Module, str, nn.Parameter]] = []
    former: dict[str, nn.Parameter] = {}
    made: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is None or not isinstance(parameter.data, DTensor):
                continue
            layout = layout_of(parameter.data)
            if layout is not None and why_unsupported(layout):
                continue
            if id(parameter) not in made:
                _refuse_hooks(joined(prefix, key), parameter)
                made[id(parameter)] = _local(parameter)
            homes.append((module, key, parameter))
            former[joined(prefix, key)] = parameter
    _tell_of_lost_tie(model)
    for module, key, parameter in homes:
        module._parameters[key] = made[id(parameter)]
    buffers: list[tuple[nn.Module, str, DTensor, Tensor]] = []  # the DTensor, and its part
    parts: dict[int, Tensor] = {}
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if not isinstance(buffer, DTensor) or key not in module._non_persistent_buffers_set:
                continue  # DTensors among them are refused, too
            layout = layout_of(buffer)
            if layout is not None and not why_unsupported(layout):
                part = parts.setdefault(id(buffer), buffer._local_tensor.detach())
                buffers.append((module, key, buffer, part))
    for module, key, _, part in buffers:
        module._buffers[key] = part
    done = False
    try:
        yield
        done = True
    finally:
        for module, key, parameter in homes if not done else ():
            module._parameters[key] = parameter
        if done and former:
            note_replaced(former, model, "osdp.fully_shard")
        wrapped: dict[int, Tensor] = {}
        for module, key, buffer, part in buffers:
            now = module._buffers.get(key)
            if not done or now is part:
                module._buffers[key] = buffer
            elif now is not None and (layout := layout_of(buffer)) is not None:
                # It was elsewhere, or on the meta device.
                module._buffers[key] = wrapped.setdefault(id(now), layout.wrap(now))


def _tell_of_lost_tie(model: nn.Module) -> None:
    """torch's parallelize_module makes two parameters of one that an embedding and a head share, and they train apart."""
    weights: dict[type[nn.Module], list[tuple[str, Any]]] = {nn.Embedding: [], nn.Linear: []}
    for name, module in model.named_modules():
        for kind, found in weights.items():
            if isinstance(module, kind) and isinstance(weight := module._parameters.get("weight"), DTensor):
                found.append((joined(name, "weight"), weight))
    for name, table in weights[nn.Embedding]:
        for other, head in weights[nn.Linear]:
            if (
                head is table
                or (head.shape, head.placements) != (table.shape, table.placements)
                or head.is_meta
            ):
                continue
            if torch.equal(head._local_tensor, table._local_tensor) and bool(head._local_tensor.any()):
                warn(
                    f"{name!r} and {other!r} have equal values, and are two parameters, which will be trained apart: "
                    "parallelize_module makes two of one that is tied. Tie them again after it, before fully_shard"
                )


def _local(parameter: nn.Parameter) -> nn.Parameter:
    layout = layout_of(parameter.data)
    assert layout is not None
    held: Any = parameter.data
    made = nn.Parameter(held._local_tensor.detach(), requires_grad=parameter.requires_grad)
    vars(made).update(vars(parameter))
    if parameter.grad is not None:
        made.grad = parameter.grad._local_tensor if isinstance(parameter.grad, DTensor) else parameter.grad
    set_layout(made, layout)
    return made


def _refuse_hooks(name: str, parameter: nn.Parameter) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise ShardingError(
            f"parameter '{name}' is a DTensor with hooks on its gradient, which fully_shard replaces by a plain "
            "parameter: register them after fully_shard"
        )


def check_layouts(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Raises ShardingError for parameters that are divided over a mesh with a rank that they would be sharded over, or over
    several."""
    ours = set(dist.get_process_group_ranks(group)) - {dist.get_rank()}
    first: tuple[str, list[int]] | None = None
    for name, parameter in model.named_parameters():
        if isinstance(parameter.data, DTensor) or (layout := layout_of(parameter)) is None:
            continue  # a DTensor here is refused for another reason, when the model is described
        ranks = sorted(layout.mesh.mesh.flatten().tolist())
        if both := ours.intersection(ranks):
            raise ShardingError(
                f"parameter '{name}' is a DTensor over ranks {ranks}, and the model would be sharded over rank {min(both)} "
                "too: pass the mesh's other dimension (fully_shard(..., device_mesh=mesh['dp']) after "
                "parallelize_module(model, mesh['tp'], plan))"
            )
        if first is not None and first[1] != ranks:
            raise ShardingError(
                f"parameter '{name}' is a DTensor over ranks {ranks}, and '{first[0]}' over {first[1]}: parameters of one "
                "model are divided over one mesh. Shard the part that is divided over another by itself, before the model"
            )
        first = first or (name, ranks)


def wrap_parameters(
    model: nn.Module,
    runtime: _C.Runtime,
    index: Mapping[str, int],
    dtypes: Mapping[str, tuple[torch.dtype | None, torch.dtype | None]],
    device: torch.device,
    split: Collection[str],
) -> None:
    """Let modules find DTensors in passes, in the place of parameters that are parts of one. A `split` weight, by name, has
    no full value in a pass: only its product reads it."""
    homes: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and layout_of(parameter) is not None:
                homes.setdefault(id(parameter), []).append((module._parameters, key))
    given = []
    for name, parameter in model.named_parameters() if homes else ():
        if id(parameter) in homes and name not in split:
            layout = layout_of(parameter)
            assert layout is not None
            inner = parameter.detach()  # shares the version counter
            inner.data = torch.empty(0, dtype=dtypes.get(name, (None,))[0] or parameter.dtype, device=device)
            wrapper: Any = layout.wrap(inner)
            wrapper._is_param = True  # isinstance(module.weight, nn.Parameter)
            gradient = _LocalGradient(layout)
            given.append((index[name], inner, wrapper, layout.placements, gradient, homes[id(parameter)]))
    if homes:
        install_inputs_in_flight()
    if given:
        runtime.wrap_parameters(given)


class _LocalGradient:
    """The local part of a gradient that is not in the parameter's placements: that of a norm whose input is divided
    along the sequence is a sum over the mesh that has not been made yet."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, gradient: Any) -> Tensor:
        if isinstance(gradient, DTensor):
            if tuple(gradient.placements) != self.layout.placements:
                gradient = gradient.redistribute(placements=self.layout.placements)
            gradient = gradient._local_tensor
        wait = getattr(gradient, "wait", None)  # a collective that is still in flight
        result: Tensor = wait() if wait is not None else gradient
        return result
