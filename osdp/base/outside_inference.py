"""Describing, sharding and copying make tensors that are trained later, also where the script is inside of
torch.inference_mode(): a tensor made there can neither be written to nor saved for backward outside of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def outside_inference_mode(function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def outside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # inference_mode(False) would turn gradients on inside no_grad, too.
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return outside
