"""torch.compile and units: hooks that gather and release must run outside of compiled graphs.

Note [Compiled modules]
Dynamo traces through a module's call into the modules inside and their hooks. It cannot compile our hooks, so
it breaks the graph at each one. And since it does not guard on hooks, it does not notice those added after
compilation, so a graph compiled before sharding would run on the sharded model.
  Compiled before fully_shard (block.compile(), torch.compile(block)): everything inside is gathered at the compiled
module's call, around the graph, which stays whole. That takes more memory than the plan predicts, unless the
block is one unit anyway.
  Compiled afterwards: graphs are broken where units are gathered, and memory is as planned. Each module with hooks has a
`forward` of its own in its __dict__ (gathering_calls.py), which is what Dynamo does guard on. That function
itself is not compiled; the module's own forward inside of it is, as in FSDP2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from osdp.base.compiled_modules import is_compiled, not_a_frame

if TYPE_CHECKING:
    from osdp import _C
    from osdp.sharding.compile_covers import Cover

_WHY = (
    "OSDP gathers parameters here, which needs a graph break. With fullgraph=True, compile single "
    "units of the plan, often blocks (block.compile(fullgraph=True)), instead of the model."
)


def compiled_modules(model: nn.Module) -> list[str]:
    """Names of the outermost compiled modules; "" of a model that is compiled itself."""
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(not outer or name.startswith(f"{outer}.") for outer in found)
        if inside or not is_compiled(module):
            continue
        found.append(name)
    return found


def outside(place: str, compiled: list[str]) -> str:
    """The module at which to gather the parameters that `place` reads: the compiled module that contains it,
    if any."""
    return next((o for o in compiled if not o or f"{place}.".startswith(f"{o}.")), place)


def install_call(module: nn.Module, hook: _C.CallHook, cover: Cover | None = None) -> None:
    """Call `hook` before and after each call of `module`, outside of its compiled code, or in its cover."""
    if module._compiled_call_impl is not None:
        module._compiled_call_impl = _Around(module, hook)
        return
    hooks = _Hooks(hook, cover)
    if cover is not None:
        hooks.install_under_one_key(module)
        return
    module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True)
    module.register_forward_hook(hooks.after, with_kwargs=True, always_call=True)


class _Hooks:
    """The hooks around one module's call. An object that holds the hook, so that copying the module reaches
    it: the hook refuses to be copied."""

    def __init__(self, hook: _C.CallHook, cover: Cover | None) -> None:
        self.hook, self.cover = hook, cover
        for function in (_Hooks.before, _Hooks.after):
            not_a_frame(function)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            if self.cover is not None and self.cover.gathered:
                return
            torch._dynamo.graph_break(msg=_WHY)
        self.hook.before(module, args, kwargs)

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            if self.cover is not None and self.cover.gathered:
                return
            torch._dynamo.graph_break(msg=_WHY)
        self.hook.after(module, args, kwargs, output)

    def install_under_one_key(self, module: nn.Module) -> None:
        """Like register_forward_pre_hook and register_forward_hook, but with the same key in every module:
        Dynamo guards on keys, and would otherwise recompile for each block."""
        key: Any = "osdp"
        module._forward_pre_hooks[key] = self.before
        pre_hooks: Any = module._forward_pre_hooks  # an OrderedDict
        pre_hooks.move_to_end(key, last=False)
        module._forward_hooks[key] = self.after
        module._forward_pre_hooks_with_kwargs[key] = module._forward_hooks_with_kwargs[key] = True
        module._forward_hooks_always_called[key] = True


class _Around:
    """The compiled call of one module, between its hooks."""

    def __init__(self, module: nn.Module, hook: _C.CallHook) -> None:
        self.module = module
        self.hook = hook
        self.compiled: Any = module._compiled_call_impl

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.hook.before(self.module, args, kwargs)
        try:
            output = self.compiled(*args, **kwargs)
        except BaseException:
            self.hook.after(self.module, args, kwargs, None)
            raise
        self.hook.after(self.module, args, kwargs, output)
        return output
