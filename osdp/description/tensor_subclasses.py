"""Refuses parameters and buffers that are not plain dense tensors, by name, before their memory is
accessed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _python_dispatch

from osdp.errors import ShardingError


def refuse_tensor_subclasses(model: nn.Module) -> None:
    """Raises ShardingError for the first tensor of `model` whose memory in this process is not its values: a
    DTensor (of tensor parallelism, or sharded by FSDP2), a quantised or otherwise wrapped tensor, a sparse or
    nested one.

    Their shape is not that of the stored data, so bytes would be counted, sent and sharded incorrectly.
    """
    kind = [("parameter", model.named_parameters()), ("buffer", model.named_buffers())]
    for what, tensors in kind:
        for name, tensor in tensors:
            if found := _unusual(tensor.data if isinstance(tensor, nn.Parameter) else tensor):
                raise ShardingError(
                    f"{what} '{name}' is {found}, which OSDP does not support; it shards only plain "
                    "tensors. Build the model without tensor parallelism or FSDP2 (fully_shard, "
                    "distribute_tensor, parallelize_module), or dequantise or densify the tensor "
                    "first"
                )


def _unusual(tensor: Tensor) -> str:
    wrapped = getattr(_python_dispatch, "is_traceable_wrapper_subclass", None)  # private to torch
    if isinstance(tensor, FakeTensor) or (wrapped is not None and wrapped(tensor)):
        return f"a {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    return ""
