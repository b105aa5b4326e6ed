"""ATen calls on fake tensors: views in less time than the fake mode takes, and what its kernels refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

aten = torch.ops.aten

# The fake mode takes longer to look up the result of a view than to compute it.
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.t.default,
    aten.transpose.int,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.slice.Tensor,
    aten.detach.default,
}


def call_fake(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of `func(*args, **kwargs)` inside of a FakeTensorMode."""
    if func is aten._grouped_mm.default and args[0].dtype is not torch.bfloat16:
        return _grouped_product(func, args, kwargs)
    if func in VIEWS and isinstance(args[0], FakeTensor):
        return view(func, args, kwargs)
    return func(*args, **kwargs)


def _grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """As in bfloat16: the kernels of CPUs take other dtypes, the one of tensors without data does not."""
    low = [a.to(torch.bfloat16) if isinstance(a, FakeTensor) and a.is_floating_point() else a for a in args]
    return func(*low, **kwargs).to(args[0].dtype)


def view(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """The fake mode's result for one of VIEWS: the same call on the meta tensor inside the fake one."""
    fake = args[0]
    with in_kernel_invocation_manager(fake.fake_mode):
        inner = func(*args, **kwargs)
    return FakeTensor(fake.fake_mode, inner, fake.fake_device)
