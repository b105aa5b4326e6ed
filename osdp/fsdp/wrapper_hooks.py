"""State-dict hooks that are registered on a wrapper.

A wrapper's state dict is its module's, under the module's names, wherever the wrapper stands. So the hooks are the module's,
which see full values in torch's order (Note [A module's own state-dict code]); they are called with the wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from osdp.base.compiled_modules import unwrapped


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
