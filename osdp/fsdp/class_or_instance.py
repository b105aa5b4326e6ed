"""Methods that scripts call on the class, FSDP.summon_full_params(model) as in FSDP1, or on an instance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from torch import nn

P = ParamSpec("P")
R = TypeVar("R")


class class_or_instance(Generic[P, R]):
    """Descriptor for functions whose first argument is a module: when accessed on an instance, that argument
    is the instance."""

    def __init__(self, function: Callable[Concatenate[nn.Module, P], R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[nn.Module, P], R]: ...

    @overload
    def __get__(self, instance: nn.Module, owner: type) -> Callable[P, R]: ...

    def __get__(self, instance: nn.Module | None, owner: type) -> Callable[..., R]:
        if instance is None:
            return self.function

        @functools.wraps(self.function)
        def called(*args: Any, **kwargs: Any) -> R:
            passed = (args and isinstance(args[0], nn.Module)) or {"module", "model"} & kwargs.keys()
            return self.function(*args, **kwargs) if passed else self.function(instance, *args, **kwargs)

        return called
