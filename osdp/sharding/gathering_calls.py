"""Functions that gather the parameters they read, like module calls: registered methods, and `forward` called
directly.

Note [Forward called by itself]
`model.forward(x)`, or `self.block.forward(x)` in a parent, bypasses torch's hooks, including ours: parameters
would be this rank's rows, which is silently wrong where they broadcast. So each module that gathers has a
`forward` of its own in its __dict__. When called by the module's __call__ it calls the original directly;
otherwise it gathers before and releases after. The user's hooks are bypassed as usual. `super().forward(x)`
calls the class's function within a call. A bound method taken before fully_shard (`f = model.forward`) calls
it from outside, which cannot be detected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from osdp import _C
from osdp.base.cast_floats import cast_floats, to_device
from osdp.base.modules import not_a_frame
from osdp.plan.mixed_precision import MixedPrecision
from osdp.sharding.compile_hooks import Cover

Function = Callable[..., Any]


def gathering(
    module: nn.Module,
    function: Function,
    hook: _C.CallHook,
    policy: MixedPrecision | None,
    device: torch.device | None = None,
) -> Function:
    """`function` with the call's hooks around it. For a whole model: `policy`, the mixed precision of arguments and
    results, and `device`, an accelerator that arguments are moved to."""
    inputs = policy.param_dtype if policy is not None and policy.cast_forward_inputs else None
    outputs = policy.output_dtype if policy is not None else None

    @functools.wraps(function)
    def gathering(*args: Any, **kwargs: Any) -> Any:
        if device is not None:
            args, kwargs = to_device(args, device), to_device(kwargs, device)
        if inputs is not None:
            args, kwargs = cast_floats(args, inputs), cast_floats(kwargs, inputs)
        hook.before(module, args, kwargs)
        try:
            output = function(*args, **kwargs)
        except BaseException:
            hook.after(module, args, kwargs, None)
            raise
        hook.after(module, args, kwargs, output)
        return output if outputs is None else cast_floats(output, outputs)

    return gathering


def route_forward(
    module: nn.Module,
    hook: _C.CallHook,
    policy: MixedPrecision | None,
    device: torch.device | None,
    cover: Cover | None,
) -> None:
    """Make `module.forward(...)` gather like `module(...)`."""
    forward: Function = module.forward
    alone = gathering(module, forward, hook, policy, device)

    @functools.wraps(forward)
    def routed(*args: Any, **kwargs: Any) -> Any:
        covered = cover is not None and cover.gathered and torch.compiler.is_compiling()
        if not (covered or hook.begins_forward()):
            return alone(*args, **kwargs)
        try:
            return forward(*args, **kwargs)
        except Exception:
            raise  # torch's call of the module runs our hook
        except BaseException:  # Ctrl-C: it does not, and the model would be in its forward for ever
            if not covered:
                hook.after(module, args, kwargs, None)
            raise

    module.forward = not_a_frame(routed)


def cover_forward(module: nn.Module, hook: _C.CallHook | None, cover: Cover) -> None:
    """Make `module.forward(...)` gather for the modules that it covers; without a hook its call has gathered."""
    forward: Function = module.forward
    gathers = forward if hook is None else not_a_frame(gathering(module, forward, hook, None))
    module.forward = cover.around(forward, gathers)
