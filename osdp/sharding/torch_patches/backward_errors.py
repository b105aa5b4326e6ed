"""Raises the exception of a backward only after the models have been reset: see Note [A backward that ends elsewhere]
in csrc/runtime/step/autograd_hooks.hpp.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from osdp import _C


@functools.cache
def install_backward_errors() -> None:
    """Once per process. Every backward and autograd.grad called from Python goes through this function of
    torch."""
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    @functools.wraps(run)
    def run_and_put_back(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except BaseException:
            _C.await_backwards()
            raise

    autograd._engine_run_backward = run_and_put_back
