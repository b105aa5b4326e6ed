"""FSDP2's set_gradient_divide_factor: gradients as sums over the ranks divided by a factor, instead of means."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import distributed as dist
from torch import nn

from osdp.errors import InvalidProblemError
from osdp.sharding.sharded_model import Sharded, sharded_models

# An attribute of the parameter, so that a model that is sharded anew (at its first forward, or with a model around it)
# keeps it.
_FACTOR = "_osdp_gradient_divide_factor"


def set_divide_factor(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Each rank's gradients of these parameters are summed and divided by `factor` from now on."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise InvalidProblemError(f"a gradient divide factor must be a positive number, got {factor!r}")
    for parameter in parameters:
        setattr(parameter, _FACTOR, float(factor))
    for _, sharded in sharded_models():
        apply_divide_factors(sharded)


def apply_divide_factors(sharded: Sharded) -> None:
    """Tell the runtime the factors of its parameters."""
    world = dist.get_world_size(sharded.group)
    for index, parameter in enumerate(sharded.tree.known):
        factor = getattr(parameter, _FACTOR, None)
        if factor is not None:
            sharded.runtime.set_gradient_scale(index, world / factor)


def copy_divide_factor(source: nn.Parameter, made: nn.Parameter) -> None:
    """`made` is a copy of `source`: torch copies no attributes of parameters."""
    if (factor := getattr(source, _FACTOR, None)) is not None:
        setattr(made, _FACTOR, factor)
