"""ModuleMethod: a method in a module's __dict__, which is found instead of its class's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from osdp.errors import ShardingError
from osdp.sharding.own_values import own_sharded
from osdp.sharding.sharded_model import Sharded


class ModuleMethod:
    """A copy of the module, which is not sharded, has its class's method; a module with sharded parameters is not copied:
    its copy would have this rank's rows."""

    def __init__(self, module: nn.Module, sharded: Sharded, name: str, function: Callable[..., Any]) -> None:
        self._module, self._sharded, self._name, self._function = module, sharded, name, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._refuse_rows()
        return getattr(type(self._module), self._name).__get__(memo[id(self._module)])

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_rows()
        return getattr, (self._module, self._name)

    def _refuse_rows(self) -> None:
        if any(True for _ in own_sharded(self._module, self._sharded)):
            raise ShardingError(
                f"a {type(self._module).__name__} of a sharded model cannot be copied or pickled by itself: its parameters "
                "are this rank's rows. Copy the model, or save the module's state_dict()"
            )
