"""Norms of gradients where torch's tensor parallelism divides parameters.

The parts of one parameter are on the ranks of its mesh, and OSDP has divided each part again: the norm is taken over the
ranks of the model first, then over the mesh. What all ranks of a mesh have alike counts once, from the mesh's first
rank: results may differ in the last bit, and each rank must scale by the same number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from osdp import _C
from osdp.base.tensor_parallel import layout_of
from osdp.errors import GradientError
from osdp.sharding.sharded_model import sharded_models


def any_divided() -> bool:
    """Whether a sharded model has parameters of tensor parallelism."""
    return any(sharded.tensor_parallel for _, sharded in sharded_models())


def norm_over_meshes(
    tensors: list[Tensor],
    norm_type: float,
    error_if_nonfinite: bool,
    parts: list[tuple[_C.Runtime, _C.Runtime]],
) -> Tensor | None:
    """The norm of `tensors` (gradients or parameters, or other tensors), the same on all ranks; None if none of them is a
    part by tensor parallelism or sharded. Collective. `parts`: models inside others (nested_models.parts_of_wholes)."""
    by_mesh, rest = _by_mesh(tensors)
    if not by_mesh:
        return _C.norm_over_ranks(tensors, norm_type, error_if_nonfinite, parts)
    device, dtype = tensors[0].device, _real(tensors[0])
    for tensor in tensors:
        dtype = torch.promote_types(dtype, _real(tensor))
    wide = torch.zeros((), dtype=torch.float64, device=device)  # so that results are as wide

    def own(of: list[Tensor]) -> Tensor:
        """Over the ranks that the models are sharded over."""
        if not of:
            return wide
        norm = _C.norm_over_ranks([*of, wide], norm_type, False, parts)
        if norm is None:
            norm = torch.stack([n.double() for n in torch._foreach_norm(of, norm_type)]).norm(norm_type)
        return norm.to(device)

    terms = []
    alike = own(rest)
    for mesh, divided in by_mesh.items():
        table = of_every_rank(torch.stack([own(divided), alike]), mesh.get_group(0))
        terms.append(table[:, 0])
        alike = table[0, 1]
    every = torch.cat([*terms, alike.view(1)])
    return norm_of_norms(every, norm_type, error_if_nonfinite).to(dtype)


def of_every_rank(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """`mine` of each rank of the group, one row each. Collective."""
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, mine, group=group)
    return torch.stack(everyones)


def norm_of_norms(norms: Tensor, norm_type: float, error_if_nonfinite: bool) -> Tensor:
    """Of what they are the norms of. Raises GradientError for an infinite one if asked; it is the same on all ranks."""
    norm = norms.amax() if norm_type == float("inf") else norms.pow(norm_type).sum().pow(1 / norm_type)
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise GradientError(
            f"the norm of order {norm_type} of all gradients is {float(norm)}, on every rank: no gradient was changed. Skip "
            "this step (every rank will)"
        )
    return norm


def _real(tensor: Tensor) -> torch.dtype:
    return tensor.real.dtype if tensor.is_complex() else tensor.dtype


def _by_mesh(tensors: list[Tensor]) -> tuple[dict[Any, list[Tensor]], list[Tensor]]:
    """Those that are parts of a parameter, by the mesh that has all parts, in the order of the models; and the others."""
    known = [(s.runtime, s.tree.known) for _, s in sharded_models() if s.tensor_parallel]
    found: dict[Any, list[Tensor]] = {}
    rest: list[Tensor] = []
    for tensor, owner in zip(tensors, _C.owners_of(tensors), strict=True):
        parameters = next((ps for runtime, ps in known if owner is not None and runtime is owner[0]), None)
        layout = None if owner is None or parameters is None else layout_of(parameters[owner[1]])
        if layout is not None and layout.divided:
            found.setdefault(layout.mesh, []).append(tensor)
        else:
            rest.append(tensor)
    return found, rest
