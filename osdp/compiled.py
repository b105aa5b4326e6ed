"""torch.compile and units: hooks that gather and release must run outside of what is compiled.

Note [Compiled modules]
Dynamo looks through a module's call into the modules inside, and their hooks. It cannot compile ours, so it breaks the
graph at each; and it does not notice a hook that was not there when it compiled (it guards on no hooks at all), so that
a graph of a model without units would be run on one that has them.
  Compiled before fully_shard (block.compile(), torch.compile(block)): everything inside is gathered at the compiled
module's call, around the graph, which stays whole. That is more memory than the plan counts on, unless the block is
one unit anyway.
  Compiled afterwards: graphs are broken at the hooks, and memory is as planned. Each module with hooks has a `forward`
of its own in its __dict__ (osdp/calls.py), which is what Dynamo does guard on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from osdp.errors import ShardingError

if TYPE_CHECKING:
    from osdp import _C


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's call is compiled: by module.compile(), or as what torch.compile(module) returned."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def compiled_modules(model: nn.Module) -> list[str]:
    """Names of the outermost compiled modules. Raises ShardingError where that is the model itself."""
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if inside or not is_compiled(module):
            continue
        if name == "":
            raise ShardingError(
                f"{type(model).__name__} is compiled as a whole, and would be gathered as a whole: compile its blocks "
                "before fully_shard (block.compile()), or the model after it"
            )
        found.append(name)
    return found


@contextlib.contextmanager
def not_compiled(model: nn.Module) -> Iterator[None]:
    """Within, what is compiled of `model` runs as if it were not."""
    if not any(is_compiled(module) for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def outside(place: str, compiled: list[str]) -> str:
    """Where to gather what `place` reads: at the compiled module that it is in, if there is one."""
    return next((outer for outer in compiled if f"{place}.".startswith(f"{outer}.")), place)


def install_call(module: nn.Module, hook: _C.CallHook) -> None:
    """Have `hook` called before and after each call of `module`, outside of what is compiled of it."""
    if module._compiled_call_impl is not None:
        module._compiled_call_impl = _Around(module, hook)
        return
    module.register_forward_pre_hook(hook.before, prepend=True, with_kwargs=True)
    module.register_forward_hook(hook.after, with_kwargs=True, always_call=True)


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
