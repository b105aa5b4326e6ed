"""Clips gradients by the norm over all stages of a pipeline that `osdp.parallelize` made.

Note [Norms of stages]
A rank has the parameters of its stage alone, and `clip_grad_norm_` of these means the model's, as it did before the script
had a pipeline: by the norm of each stage alone, stages would be scaled apart. So it is taken over the ranks that have the
other stages of the same part. Which of a stage's parameters belong to some of another's, nothing says: it takes all, or
raises. `torch.nn.utils.get_total_norm` stays the stage's: scripts for torch's pipelines add over stages themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch import distributed as dist

from osdp.errors import ShardingError
from osdp.sharding.dtensor_parameters import as_rows
from osdp.sharding.norm_over_meshes import norm_of_norms, of_every_rank
from osdp.sharding.sharded_model import Sharded, sharded_models


def clip_over_stages(
    parameters: Sequence[Tensor],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    foreach: bool | None = None,
) -> Tensor | None:
    """The norm before scaling, on all ranks of the pipeline; None if `parameters` are not of a stage. Collective.

    Raises ShardingError if they are not all of the stage that have gradients."""
    model, sharded = _stage_of(parameters)
    if model is None or sharded is None or sharded.stages is None:
        return None
    given = {id(p) for p in parameters if p.grad is not None}
    apart = given.symmetric_difference(id(p) for p in model.parameters() if p.grad is not None)
    if apart:
        name = next((name for name, p in model.named_parameters() if id(p) in apart), "")
        which = f"some parameters of this stage of a pipeline, without {name!r}" if name else "others, too"
        raise ShardingError(
            f"{sharded.runtime.rank_name}: clip_grad_norm_ was given {which}, and which ones belong to them in other stages "
            "is not known: call pipeline.clip_grad_norm_(max_norm), which takes all of this model's"
        )
    grads = [p.grad for p in parameters if p.grad is not None]
    # torch's norm of none, of a frozen stage, is in float32 on the CPU.
    with as_rows():
        norm = nn.utils.get_total_norm(grads, norm_type) if grads else parameters[0].new_zeros(())
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    own = norm.detach().double().to(sharded.device).view(1)  # stages may be of several dtypes
    every = of_every_rank(own, sharded.stages).flatten()
    total = norm_of_norms(every, norm_type, error_if_nonfinite).to(norm.device, norm.dtype)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


def stages_of(parameters: Sequence[Tensor]) -> list[dist.ProcessGroup]:
    """The ranks that have the other stages, if `parameters` are of one."""
    _, sharded = _stage_of(parameters)
    return [] if sharded is None or sharded.stages is None else [sharded.stages]


def _stage_of(parameters: Sequence[Tensor]) -> tuple[nn.Module | None, Sharded | None]:
    for model, sharded in sharded_models():
        if sharded.stages is not None and any(id(p) in sharded.tree.index for p in parameters):
            return model, sharded
    return None, None
