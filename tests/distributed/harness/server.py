"""Where ranks are forked from: a process that has torch imported and no threads. A rank then starts in a moment, and the
imports are paid once in a run of the tests."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerContext

# What takes long to import: for describe(), and for torch.compile, which imports it when a rank first compiles.
PRELOAD = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._subclasses.fake_tensor",
    "torch.testing",
    "sympy",
    "torch.distributed._composable.replicate_with_fsdp",
    "torch.distributed.checkpoint",
    "pytest",
    "osdp.fsdp",
]


def server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    # Another extension is loaded by each rank, before osdp: harness/other_extension.py.
    osdp_too = "OSDP_TEST_EXTENSION" not in os.environ
    context.set_forkserver_preload([name for name in PRELOAD if osdp_too or not name.startswith("osdp")])
    return context
