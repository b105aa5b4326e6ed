"""Clipping where the model is written with tensor parallelism by hand (as Megatron's layers are).

Note [Norm under tensor parallelism]
A rank's model then has plain parameters that are its slice of a layer, beside others that every rank of the
tensor-parallel group has alike. OSDP shards either over its own ranks and cannot tell one from the other. A norm over
these ranks alone is one of a slice: it differs between the ranks of the tensor-parallel group, each would scale by
another number, and what they hold alike would drift apart. So the squares of slices are summed over that group, and
those of replicas, which may differ in the last bit, are taken from its first rank, so that every rank scales by the
same number.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from fnmatch import translate

import torch
from torch import Tensor, nn
from torch import distributed as dist

from osdp.base.modules import unwrapped
from osdp.base.names import modules_around
from osdp.errors import DisagreementError, InvalidProblemError, ShardingError
from osdp.sharding.dtensor_parameters import as_rows
from osdp.sharding.nested_models import with_parts
from osdp.sharding.norm_over_meshes import norm_of_norms, of_every_rank
from osdp.sharding.sharded_model import runtime_of

_ATTRIBUTE = "tensor_model_parallel"  # Megatron's, of parameters


def clip_over_tensor_parallel(
    model: nn.Module,
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    group: dist.ProcessGroup,
    patterns: str | Sequence[str] | None,
) -> Tensor:
    """See `osdp.clip_grad_norm_`."""
    slices, replicas = _parameters(model, patterns)
    _refuse_own_ranks(model, group)
    _refuse_type(norm_type)
    norms = [_over_own_ranks(parameters, norm_type) for parameters in (slices.values(), replicas.values())]
    device = runtime_of(model).device
    of_slices, of_replicas = _over_group(group, norms, repr((max_norm, norm_type, sorted(slices))), device)
    norm = norm_of_norms(torch.cat([of_slices, of_replicas[:1]]), norm_type, error_if_nonfinite)
    return _scaled([*slices.values(), *replicas.values()], max_norm, norm)


def clip_over_meshes(model: nn.Module, max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
    """See `osdp.clip_grad_norm_`, where torch's tensor parallelism has divided parameters."""
    _refuse_type(norm_type)
    parameters = list(_known(model).values())
    gradients = [p.grad for p in parameters if p.grad is not None]
    with as_rows():
        norm = torch.nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite)
    return _scaled(parameters, max_norm, norm)


def _refuse_type(norm_type: float) -> None:
    if not norm_type > 0:
        raise ShardingError(f"the norm of sharded gradients needs a positive norm type, got {norm_type}")


def _scaled(parameters: list[nn.Parameter], max_norm: float, norm: Tensor) -> Tensor:
    """Scales their gradients; returns `norm`, as wide as they are."""
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.to(parameters[0].dtype) if parameters else norm.float()


Named = dict[str, nn.Parameter]


def _parameters(model: nn.Module, patterns: str | Sequence[str] | None) -> tuple[Named, Named]:
    """The sharded model's parameters that are slices over the tensor-parallel group, and the others."""
    known = _known(model)
    if patterns is None:
        chosen = {name for name, p in known.items() if getattr(p, _ATTRIBUTE, False)}
        if not any(hasattr(p, _ATTRIBUTE) for p in known.values()):
            raise InvalidProblemError(
                "tp_group was given, but nothing says which parameters are slices over it: pass their names or modules' "
                f"names as tp_parameters=['*.up.weight', ...] ([]: none), or set parameter.{_ATTRIBUTE}, as Megatron does"
            )
    else:
        chosen = set()
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            matches = re.compile(translate(pattern)).match
            found = {name for name in known if any(map(matches, filter(None, modules_around(name))))}
            if not found:
                raise InvalidProblemError(
                    f"tp_parameters: {pattern!r} matches no parameter and no module that has any"
                )
            chosen |= found
    slices = {name: known.pop(name) for name in [*known] if name in chosen}
    return slices, known


def _known(model: nn.Module) -> Named:
    """The parameters of the sharded model and of its parts."""
    indices = [sharded.tree.index for _, sharded in with_parts(model)]
    named = unwrapped(model).named_parameters()
    return {name: p for name, p in named if any(id(p) in index for index in indices)}


def _refuse_own_ranks(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Raises InvalidProblemError for a group in which rows of one parameter would be counted as slices of another."""
    ranks = set(dist.get_process_group_ranks(group))
    for _, sharded in with_parts(model):
        if both := sorted(
            ranks.intersection(dist.get_process_group_ranks(sharded.group)) - {dist.get_rank()}
        ):
            raise InvalidProblemError(
                f"tp_group has ranks {sorted(ranks)}, and the model is sharded over rank {both[0]} too: pass the group "
                "whose ranks hold the other slices of this rank's layers"
            )


def _over_own_ranks(parameters: Iterable[nn.Parameter], norm_type: float) -> Tensor:
    """The norm over the ranks that the model is sharded over (osdp/sharding/torch_patches/norms.py)."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    wide = torch.zeros((), dtype=torch.float64, device=gradients[0].device)  # so that the result is as wide
    with as_rows():
        return torch.nn.utils.get_total_norm([*gradients, wide], norm_type)


def _over_group(
    group: dist.ProcessGroup, norms: list[Tensor], asked: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The two norms of each rank of the group. Raises DisagreementError on all of them where they were asked for different
    things; on a CPU, since an accelerator's host would have to wait."""
    said = torch.tensor(float(zlib.crc32(asked.encode())), dtype=torch.float64, device=device)
    mine = torch.stack([*(n.to(device=device, dtype=torch.float64) for n in norms), said])
    table = of_every_rank(mine, group)
    if device.type == "cpu" and bool((table[:, 2] != said).any()):
        raise DisagreementError(
            f"clip_grad_norm_ was called differently on ranks {dist.get_process_group_ranks(group)} of tp_group: give all "
            "of them the same max_norm, norm_type and tp_parameters"
        )
    return table[:, 0], table[:, 1]
