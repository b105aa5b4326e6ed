"""Refuses parameters and buffers that are not plain dense tensors, by name, before their memory is
accessed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _python_dispatch

from osdp.base.tensor_parallel import Layout, is_dtensor, layout_of, local_part, under_fsdp2
from osdp.errors import ShardingError


def refuse_tensor_subclasses(model: nn.Module) -> None:
    """Raises ShardingError for the first tensor of `model` whose memory in this process is not its values: a
    DTensor (of tensor parallelism, or sharded by FSDP2), a quantised or otherwise wrapped tensor, a sparse or
    nested one.

    Their shape is not that of the stored data, so bytes would be counted, sent and sharded incorrectly. Parameters and
    buffers of tensor parallelism are the exception: of these, what this rank holds is described, and sharded.
    """
    if any(is_dtensor(p.data) for p in model.parameters()) and (inside := under_fsdp2(model)) is not None:
        raise ShardingError(
            f"{f'module {inside!r}' if inside else 'the model'} is sharded by torch's fully_shard, so its parameters are "
            "DTensors of rows: pass the model as it was before"
        )
    kind = [("parameter", model.named_parameters()), ("buffer", model.named_buffers(remove_duplicate=False))]
    for what, tensors in kind:
        for name, tensor in tensors:
            data = tensor.data if isinstance(tensor, nn.Parameter) else tensor
            if any(hasattr(each, "fsdp_pre_all_gather") for each in (tensor, data)):
                raise ShardingError(
                    f"{what} '{name}' ({type(data).__name__}) has an fsdp_pre_all_gather, a function of Python that torch's "
                    "fully_shard asks what to gather in its place, which OSDP does not support: it gathers rows of plain "
                    "tensors in C++, many parameters in one message, and Python runs for none of them. Switch it off "
                    "(torchao: enable_fsdp_float8_all_gather=False) and gather in fewer bits by mp_policy= or precision="
                )
            if is_dtensor(data):
                layout = layout_of(data)
                if layout is not None and (why := why_unsupported(layout)):
                    raise ShardingError(f"{what} '{name}' is a DTensor {why}")
                if what == "buffer" and _is_saved(model, name):
                    raise ShardingError(
                        f"buffer '{name}' is a DTensor that state dicts hold, which OSDP does not support: register it with "
                        "persistent=False, or as a plain tensor"
                    )
                data = local_part(data)
            if found := _unusual(data):
                raise ShardingError(
                    f"{what} '{name}' is {found}, which OSDP does not support; it shards only plain "
                    "tensors, and parameters that parallelize_module has divided. Build the model without FSDP2 "
                    "(fully_shard), or dequantise or densify the tensor first"
                )


def why_unsupported(layout: Layout) -> str:
    """What OSDP does not support of the layout of a parameter, in words; "": nothing."""
    if partial := [p for p in layout.placements if p.is_partial()]:
        return (
            f"with the placement {partial[0]!r}, a sum over the mesh that has not been made: no rank holds its value. "
            "Register it as Shard(dim) or Replicate()"
        )
    if layout.mesh.ndim > 1:
        return (
            f"over {layout.mesh.ndim} dimensions of a mesh: OSDP shards parameters that are divided over one, that of "
            "tensor parallelism. Leave the dimension of data parallelism to fully_shard(..., device_mesh=mesh['dp'])"
        )
    if type(layout.placements[0]).__name__ not in ("Shard", "Replicate"):
        return f"with the placement {layout.placements[0]!r}; OSDP supports Shard(dim) and Replicate()"
    return ""


def _is_saved(model: nn.Module, buffer: str) -> bool:
    owner, _, key = buffer.rpartition(".")
    return key not in model.get_submodule(owner)._non_persistent_buffers_set


def _unusual(tensor: Tensor) -> str:
    wrapped = getattr(_python_dispatch, "is_traceable_wrapper_subclass", None)  # private to torch
    if isinstance(tensor, FakeTensor) or (wrapped is not None and wrapped(tensor)):
        return f"a {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    return ""
