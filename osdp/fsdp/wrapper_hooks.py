"""State dicts of a wrapper: hooks that are registered on it, and loading as into the unwrapped model.

A wrapper's state dict is its module's, under the module's names, wherever the wrapper stands. So the hooks are the module's,
which see full values in torch's order (Note [A module's own state-dict code]); they are called with the wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch import nn

from osdp.base.modules import unwrapped


def _with_wrapper(wrapper: nn.Module, hook: Callable[..., Any], module: nn.Module, *args: Any) -> Any:
    return hook(wrapper, *args)


class WrapperHooks(nn.Module):
    """Base class of wrappers of a `module`."""

    module: nn.Module

    def _own(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_with_wrapper, self, hook)

    def _inner(self) -> Any:
        return unwrapped(self.module)

    def register_state_dict_pre_hook(self, hook: Any) -> Any:
        """As of the module: `hook(wrapper, prefix, keep_vars)` is called before its state dict is made."""
        return self._inner().register_state_dict_pre_hook(self._own(hook))

    def register_state_dict_post_hook(self, hook: Any) -> Any:
        """As of the module: `hook(wrapper, state_dict, prefix, local_metadata)` is called with its state dict."""
        return self._inner().register_state_dict_post_hook(self._own(hook))

    def _register_state_dict_hook(self, hook: Any) -> Any:
        return self._inner()._register_state_dict_hook(self._own(hook))

    def register_load_state_dict_pre_hook(self, hook: Any) -> Any:
        """As of the module: `hook(wrapper, state_dict, prefix, ...)` is called before it loads."""
        return self._inner().register_load_state_dict_pre_hook(self._own(hook))

    def _register_load_state_dict_pre_hook(self, hook: Any, with_module: bool = False) -> Any:
        register = self._inner()._register_load_state_dict_pre_hook
        return register(self._own(hook), True) if with_module else register(hook)

    def register_load_state_dict_post_hook(self, hook: Any) -> Any:
        """As of the module: `hook(wrapper, incompatible_keys)` is called after it has loaded."""
        return self._inner().register_load_state_dict_post_hook(self._own(hook))


def load_unwrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`module.load_state_dict(...)`, with each wrapper inside of it replaced by its module meanwhile. torch follows modules
    by name, and would name a wrapped part "part.module" in missing and unexpected keys, in errors, and where it looks up
    the version of what was saved."""
    places = [
        (parent, key, child)
        for parent in module.modules()
        for key, child in parent._modules.items()
        if child is not None and hasattr(type(child), "_osdp_wrapped")
    ]
    for parent, key, wrapper in places:
        parent._modules[key] = cast(nn.Module, wrapper.module)
    try:
        return module.load_state_dict(*args, **kwargs)
    finally:
        for parent, key, wrapper in places:
            parent._modules[key] = wrapper
