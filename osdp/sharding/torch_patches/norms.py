"""torch.nn.utils.clip_grad_norm_ and related functions, with the same results for sharded models as in one
process.

Note [Functions of torch that are given parts]
torch.nn.utils.get_total_norm receives gradients of which each rank holds a part. If one of them belongs to a
sharded model, the norm is computed over all ranks (csrc/runtime/step/norm.hpp); otherwise torch's own
function runs. Scripts import these functions by name, perhaps before osdp, so a replacement in torch's module
would not reach them: the function objects stay, and the functions that they call are replaced. torch wraps
them in `no_grad`; the wrapper's closure holds the function itself. clip_grad_norm_ calls get_total_norm, and
scaling is element-wise, so both are then correct.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad, convert_parameters

from osdp import _C
from osdp.base.tensor_parallel import is_dtensor
from osdp.base.warned import warn
from osdp.errors import ShardingError
from osdp.sharding.dtensor_parameters import as_rows, finds_rows, shows_dtensors
from osdp.sharding.dtensors import within
from osdp.sharding.nested_models import parts_of_wholes
from osdp.sharding.norm_over_meshes import any_divided, norm_over_meshes
from osdp.sharding.norm_over_stages import clip_over_stages
from osdp.sharding.sharded_model import sharded_models
from osdp.sharding.torch_patches.replaced import replace


def install_norms() -> None:
    _install("_get_total_norm", _total_norm)
    _install("_clip_grads_with_norm_", _of_rows)
    _install("clip_grad_norm_", _over_stages)
    if hasattr(
        convert_parameters, "_check_param_device"
    ):  # of each parameter that is made a vector, or of one
        replace(convert_parameters, "_check_param_device", _refusing)


def _install(name: str, around: Callable[..., Any]) -> None:
    wrapper = getattr(clip_grad, name, None)
    names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
    if wrapper is None or names != ("func",):
        warn(
            "OSDP does not recognise this torch's torch.nn.utils.clip_grad_norm_, which would take "
            "this rank's part of the gradients for all of them. Use osdp.clip_grad_norm_(model, ...).",
        )
        return
    replace(wrapper.__closure__[0], "cell_contents", around)


def _total_norm(whole: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(whole)
    def total_norm(
        tensors: Tensor | Iterable[Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if _taken_out(tensors):
            return whole(tensors, norm_type, error_if_nonfinite, foreach)
        over = norm_over_meshes if any_divided() else _C.norm_over_ranks
        # Gradients of parameters that are DTensors wrap those that OSDP knows.
        held = [within(t) for t in tensors]
        norm = over(held, float(norm_type), error_if_nonfinite, parts_of_wholes(held))
        if norm is None:
            return whole(tensors, norm_type, error_if_nonfinite, foreach)
        meshes = {t.device_mesh if is_dtensor(t) else None for t in tensors}  # type: ignore[attr-defined]
        return norm if None in meshes or len(meshes) > 1 else _alike(norm, meshes.pop())

    return total_norm


def _taken_out(tensors: list[Tensor]) -> bool:
    """Whether a script has taken them out of DTensors (`p.grad.to_local()`): then it adds norms over ranks itself."""
    dtensors = {sharded.runtime: sharded for _, sharded in sharded_models() if sharded.dtensors}
    if not dtensors or finds_rows() or any(map(is_dtensor, tensors)):
        return False
    owners = [owner for owner in _C.owners_of(tensors) if owner is not None]
    return bool(owners) and all(
        runtime in dtensors and shows_dtensors([dtensors[runtime].tree.known[index]])
        for runtime, index in owners
    )


def _over_stages(whole: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Note [Norms of stages] in osdp/sharding/norm_over_stages.py."""

    @functools.wraps(whole)
    def clip_grad_norm_(
        parameters: Tensor | Iterable[Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        norm = clip_over_stages(listed, max_norm, float(norm_type), error_if_nonfinite, foreach)
        if norm is not None:
            return norm
        # torch warns of an empty generator.
        return whole(listed or parameters, max_norm, norm_type, error_if_nonfinite, foreach)

    return clip_grad_norm_


def _of_rows(whole: Callable[..., None]) -> Callable[..., None]:
    """Scales this rank's rows of parameters that are DTensors: no operation of DTensor takes those of several meshes (of
    parameters that tensor parallelism divides, and of others)."""

    @functools.wraps(whole)
    def clip(
        parameters: Tensor | Iterable[Tensor],
        max_norm: float,
        total_norm: Any,
        foreach: bool | None = None,
    ) -> None:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if not shows_dtensors(parameters):
            return whole(parameters, max_norm, total_norm, foreach)
        if is_dtensor(total_norm):
            total_norm = total_norm.full_tensor()
        with as_rows():
            return whole(parameters, max_norm, total_norm, foreach)

    return clip


def _alike(norm: Tensor, mesh: Any) -> Tensor:
    """As FSDP2's users find it: a DTensor (`full_tensor()`)."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(norm, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _refusing(check: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(check)
    def refusing(param: Tensor, *args: Any) -> Any:
        for found in _C.owners_of([param]):
            if found is not None and not _C.Runtime.is_whole(*found):
                runtime, index = found
                raise ShardingError(
                    f"{runtime.rank_name}: parameters_to_vector and vector_to_parameters see only "
                    f"this rank's part of parameter '{runtime.name(index)}', {tuple(param.shape)} of "
                    f"{tuple(runtime.full_shape(index))}, so each rank would get a different vector. "
                    "Call them inside osdp.summon_full_params(model)."
                )
        return check(param, *args)

    return refusing
