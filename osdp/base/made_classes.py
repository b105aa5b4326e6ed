"""Classes that are made for one object, and found under no name: copying and pickling go by the class they were made of."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


def reduced(value: Any, protocol: Any, kind: Any, make: Callable[..., Any] = _new) -> Any:
    """What `value.__reduce_ex__(protocol)` is to return, where type(value) was made of `kind`: the copy is what `make(kind)`
    returns, a function of a module; by default a `kind`."""
    function, arguments, *rest = kind.__reduce_ex__(value, protocol)
    if function is copyreg.__newobj__ and arguments == (type(value),):  # type: ignore[attr-defined]
        return make, (kind,), *rest
    return function, arguments, *rest
