"""The exception of a backward is told when the models are put back: see Note [A backward that ends elsewhere] in
csrc/runtime/step/autograd_hooks.hpp.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from osdp import _C


@functools.cache
def install_backward_errors() -> None:
    """Once per process. Every backward and autograd.grad that Python asks for goes through this function of torch's."""
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
