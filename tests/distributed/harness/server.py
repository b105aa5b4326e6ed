"""Where ranks are forked from: a process that has torch imported and no threads. A rank then starts in a moment, and the
imports are paid once in a run of the tests."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

# What takes long to import, describe() included.
PRELOAD = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch._subclasses.fake_tensor",
    "torch.testing",
    "sympy",
    "torch.distributed._composable.replicate_with_fsdp",
    "pytest",
    "osdp.fsdp",
]


def server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context
