"""torch.nn.utils.clip_grad_norm_ and related functions, with the same results for sharded models as in one
process.

Note [Functions of torch that are given parts]
torch.nn.utils.get_total_norm receives gradients of which each rank holds a part. If one of them belongs to a
sharded model, the norm is computed over all ranks (csrc/runtime/step/norm.hpp); otherwise torch's own
function runs. Scripts import these functions by name, perhaps before osdp, so a replacement in torch's module
would not reach them: the functions stay, and one that they call by its name in their module is replaced. get_total_norm
groups its tensors by device and dtype, and takes the norm of the groups' norms: it gets one group with one number, the norm
over all ranks, whose norm it is. clip_grad_norm_ calls get_total_norm, and scaling is element-wise, so both are then
correct. The other callers of the function, which scale gradients, are told apart by their code.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad, convert_parameters

from osdp import _C
from osdp.base.warned import warn
from osdp.errors import ShardingError
from osdp.sharding.nested_models import parts_of_wholes
from osdp.sharding.norm_over_meshes import any_divided, norm_over_meshes
from osdp.sharding.torch_patches.replaced import replace

_GROUPS = "_group_tensors_by_device_and_dtype"


def install_norms() -> None:
    _install_total_norm()
    _install_vectors()


def _install_total_norm() -> None:
    total_norm = getattr(getattr(clip_grad, "_get_total_norm", None), "__wrapped__", None)  # in no_grad
    code = getattr(total_norm, "__code__", None)
    used = (
        (_GROUPS in code.co_names) and {"norm_type", "error_if_nonfinite"} <= set(code.co_varnames)
        if code
        else False
    )
    if code is None or not used or not hasattr(clip_grad, _GROUPS):
        warn(
            "OSDP does not recognise this torch's torch.nn.utils.clip_grad_norm_, which would take "
            "this rank's part of the gradients for all of them. Use osdp.clip_grad_norm_(model, ...).",
        )
        return
    replace(clip_grad, _GROUPS, functools.partial(_grouping, code))


def _grouping(total_norm: CodeType, group: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(group)
    def grouped(tensorlistlist: list[list[Tensor]], *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code is total_norm:
            given = caller.f_locals
            over = norm_over_meshes if any_divided() else _C.norm_over_ranks
            norm = over(tensorlistlist[0], given["norm_type"], given["error_if_nonfinite"], parts_of_wholes())
            if norm is not None:
                return {(norm.device, norm.dtype): ([[norm]], [0])}
        return group(tensorlistlist, *args, **kwargs)

    return grouped


def _install_vectors() -> None:
    """parameters_to_vector and vector_to_parameters call this for each parameter."""
    if hasattr(convert_parameters, "_check_param_device"):
        replace(convert_parameters, "_check_param_device", _refusing)


def _refusing(check: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(check)
    def refusing(param: Tensor, *args: Any) -> Any:
        for found in _C.owners_of([param]):
            if found is not None and not _C.Runtime.is_whole(*found):
                runtime, index = found
                raise ShardingError(
                    f"rank {runtime.rank}: parameters_to_vector and vector_to_parameters see only "
                    f"this rank's part of parameter '{runtime.name(index)}', {tuple(param.shape)} of "
                    f"{tuple(runtime.full_shape(index))}, so each rank would get a different vector. "
                    "Call them inside osdp.summon_full_params(model)."
                )
        return check(param, *args)

    return refusing
