"""Classes that are created for one object and cannot be imported by name: copying and pickling use the class
they were derived from."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


def reduced(value: Any, protocol: Any, kind: Any, make: Callable[..., Any] = _new) -> Any:
    """The result for `value.__reduce_ex__(protocol)`, where type(value) was derived from `kind`: the copy is
    created by `make(kind)`, a module-level function; by default it is a `kind`."""
    function, arguments, *rest = kind.__reduce_ex__(value, protocol)
    if function is copyreg.__newobj__ and arguments == (type(value),):  # type: ignore[attr-defined]
        return make, (kind,), *rest
    return function, arguments, *rest
