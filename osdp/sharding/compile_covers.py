"""Covers: modules that gather a unit for all compiled code inside of them.

Note [Covers]
A unit is gathered at each module that reads it, and each of these would break the graph. If a module contains
all of them and nothing of another unit, such as a transformer block that is one unit, it covers them: while
frames are being compiled its forward gathers the unit, around the graph, and the hooks inside do nothing when
Dynamo traces them. These hooks check `Cover.gathered`, which the modules' forwards read too, so that Dynamo
guards on it: a graph without hooks only runs within the cover. A cover is never inside a graph, since Dynamo
is disabled for its forward.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from osdp.base.compiled_modules import is_compiled, not_a_frame
from osdp.description.recompute_blocks import is_callable


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
