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

Note [Covers]
A unit is gathered at each module that reads it, and each of these would break the graph. If a module contains
all of them and nothing of another unit, such as a transformer block that is one unit, it covers them: while
frames are being compiled its forward gathers the unit, around the graph, and the hooks inside do nothing when
Dynamo traces them. These hooks check `Cover.gathered`, which the modules' forwards read too, so that Dynamo
guards on it: a graph without hooks only runs within the cover. A cover is never inside a graph, since Dynamo
is disabled for its forward.
  A module whose own call gathers, as a block's does after fully_shard(block) without a plan, covers the layers inside of it,
which gather only where they are called by themselves: its call's hooks run outside of the graph of its forward, FSDP2's too.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from osdp.base.modules import is_compiled, not_a_frame
from osdp.base.names import is_in
from osdp.description.recompute_blocks import is_callable

if TYPE_CHECKING:
    from osdp import _C
    from osdp.sharding.model_call import ModelCall

_WHY = (
    "OSDP gathers parameters here, which needs a graph break. With fullgraph=True, compile single "
    "units of the plan, often blocks (block.compile(fullgraph=True)), instead of the model; what has several, "
    "before fully_shard."
)


def compiled_modules(model: nn.Module) -> list[str]:
    """Names of the outermost compiled modules; "" of a model that is compiled itself."""
    found: list[str] = []
    for name, module in model.named_modules():
        if is_compiled(module) and not any(is_in(name, outer) for outer in found):
            found.append(name)
    return found


def outside(place: str, compiled: list[str]) -> str:
    """The module at which to gather the parameters that `place` reads: the compiled module that contains it,
    if any."""
    return next((o for o in compiled if is_in(place, o)), place)


def install_call(
    module: nn.Module, hook: _C.CallHook, cover: Cover | None = None, call: ModelCall | None = None
) -> None:
    """Call `hook` before and after each call of `module`, outside of its compiled code, or in its cover. `call`: of the
    model itself."""
    if module._compiled_call_impl is not None:
        module._compiled_call_impl = _Around(module, hook)
        return
    hooks = _Hooks(hook, cover, call)
    if cover is not None:
        hooks.install_under_one_key(module)
        return
    module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True)
    module.register_forward_hook(hooks.after, with_kwargs=True, always_call=True)


class _Hooks:
    """The hooks around one module's call. An object that holds the hook, so that copying the module reaches
    it: the hook refuses to be copied."""

    def __init__(self, hook: _C.CallHook, cover: Cover | None, call: ModelCall | None) -> None:
        self.hook, self.cover, self.call = hook, cover, call
        for function in (_Hooks.before, _Hooks.after):
            not_a_frame(function)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            if self.cover is not None and self.cover.gathered:
                return
            torch._dynamo.graph_break(msg=_WHY)
        if self.call is not None:
            self.call.end_interrupted()
        self.hook.before(module, args, kwargs)
        if self.call is not None:
            self.call.begin(sys._getframe(1))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            if self.cover is not None and self.cover.gathered:
                return
            torch._dynamo.graph_break(msg=_WHY)
        if self.call is not None:
            self.call.end()
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


class Cover:
    """A module that gathers for the modules inside of it while they are compiled. See Note [Covers]."""

    def __init__(self) -> None:
        self.gathered = False

    def around(self, forward: Callable[..., Any], gathering: Callable[..., Any]) -> Callable[..., Any]:
        """`gathering` (`forward` with the call's hooks) while frames are being compiled; else `forward`."""

        @functools.wraps(forward)
        def covering(*args: Any, **kwargs: Any) -> Any:
            if get_eval_frame_callback() is None:
                return forward(*args, **kwargs)
            before, self.gathered = self.gathered, True
            try:
                return gathering(*args, **kwargs)
            finally:
                self.gathered = before

        covering._torchdynamo_disable = True  # type: ignore[attr-defined]
        return not_a_frame(covering)


def covers(model: nn.Module, units_at: Mapping[str, set[int]]) -> dict[str, list[str]]:
    """Modules that can be covers, and the modules that each covers. `units_at`: the units gathered at each
    module."""
    found: dict[str, list[str]] = {}
    for unit in sorted(set().union(*units_at.values())):
        places = [place for place, units in units_at.items() if unit in units]
        paths = zip(*(place.split(".") for place in places), strict=False)
        around = [part for part, *others in itertools.takewhile(lambda parts: len(set(parts)) == 1, paths)]
        while around and not is_callable(model.get_submodule(".".join(around))):
            around.pop()
        name = ".".join(around)
        inside = [place for place in units_at if place.startswith(f"{name}.")]
        alone = all(units_at[place] <= {unit} for place in inside)
        if (
            around
            and len(inside) > 1
            and alone
            and not any(is_compiled(model.get_submodule(p)) for p in inside)
        ):
            found[name] = inside
    return found
