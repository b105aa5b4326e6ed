"""What a script sets for single modules with FSDP2's methods, as settings of their parameters.

They are an attribute of the parameter, so that a model that is sharded anew (at its first forward, or with a model around
it) and a copy keep them. The runtime has what a step reads: `apply_settings`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import distributed as dist
from torch import nn

from osdp.base.tensor_parallel import layout_of, set_layout
from osdp.errors import InvalidProblemError
from osdp.sharding.sharded_model import Sharded, sharded_models

_SETTINGS = "_osdp_settings"

DIVIDE_FACTOR = "divide factor"  # gradients are the ranks' sum divided by it, instead of the mean
# The others are named as the methods of the runtime that take them.
SYNC = "set_sync_of"  # False: backward keeps this rank's own gradient, as in no_sync
STAYS_AFTER_FORWARD = "set_stays_after_forward"  # Note [Units that stay gathered]
STAYS_IF_KEPT = "set_stays_if_kept"  # after forward, if its mode keeps it, until STAYS_AFTER_FORWARD is set
STAYS_AFTER_BACKWARD = "set_stays_after_backward"
GATHERS_IN_BACKWARD = "set_gathers_in_backward"


def change_setting(parameters: Iterable[nn.Parameter], setting: str, value: Any) -> None:
    parameters = list(parameters)
    for parameter in parameters:
        vars(parameter).setdefault(_SETTINGS, {})[setting] = value
    for sharded, indices in places_of(parameters):
        _tell(sharded, indices, setting, value)


def set_divide_factor(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Each rank's gradients of these parameters are summed and divided by `factor` from now on."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise InvalidProblemError(f"a gradient divide factor must be a positive number, got {factor!r}")
    change_setting(parameters, DIVIDE_FACTOR, float(factor))


def places_of(parameters: Sequence[nn.Parameter]) -> list[tuple[Sharded, list[int]]]:
    """The parameters' indices in each sharded model that has any of them."""
    found = []
    for _, sharded in sharded_models():
        index = sharded.tree.index
        if indices := [i for p in parameters if (i := index.get(id(p))) is not None]:
            found.append((sharded, indices))
    return found


def apply_settings(sharded: Sharded) -> None:
    """Tell the runtime the settings of its parameters."""
    grouped: dict[tuple[str, Any], list[int]] = {}
    for index, parameter in enumerate(sharded.tree.known):
        for setting, value in getattr(parameter, _SETTINGS, {}).items():
            grouped.setdefault((setting, value), []).append(index)
    for (setting, value), indices in grouped.items():
        _tell(sharded, indices, setting, value)


def copy_settings(source: nn.Parameter, made: nn.Parameter) -> None:
    """`made` is a copy of `source`: torch copies no attributes of parameters."""
    if settings := getattr(source, _SETTINGS, None):
        setattr(made, _SETTINGS, dict(settings))
    if (layout := layout_of(source)) is not None:
        set_layout(made, layout)


def _tell(sharded: Sharded, indices: list[int], setting: str, value: Any) -> None:
    if setting != DIVIDE_FACTOR:
        getattr(sharded.runtime, setting)(indices, value)
        return
    scale = dist.get_world_size(sharded.group) / value
    for index in indices:
        sharded.runtime.set_gradient_scale(index, scale)
