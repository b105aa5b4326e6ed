"""The model of a command: `--module` or `--hf-config`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osdp.errors import InvalidProblemError, OSDPError

if TYPE_CHECKING:
    from torch import nn

Built = tuple["nn.Module", tuple[Any, ...], dict[str, Any]]


def model_of(arguments: argparse.Namespace) -> Built:
    """Model, positional and keyword arguments of its sample."""
    if arguments.hf_config is None:
        if arguments.sequence_length is not None:
            raise InvalidProblemError(
                "--sequence-length works only with --hf-config; --module gives its own sample"
            )
        return build(arguments.module, arguments.meta)
    from osdp.cli import hf_config

    model, sample = hf_config.build(arguments.hf_config, arguments.sequence_length)
    return model, (), sample


def build(where: str, meta: bool) -> Built:
    """Model, positional and keyword arguments of its sample, from the function named by `where`."""
    import torch
    from torch import nn

    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise InvalidProblemError(f"--module {where}: write FILE.py:FUNCTION or package.module:FUNCTION")
    try:
        function = getattr(_import(place), name)
    except OSDPError:
        raise
    except AttributeError:
        raise InvalidProblemError(f"--module {where}: {place} has no function {name!r}") from None
    except Exception as error:
        raise InvalidProblemError(
            f"--module {where}: import failed: {type(error).__name__}: {error}"
        ) from error
    try:
        with torch.device("meta") if meta else nullcontext():
            built = function()
    except Exception as error:
        raise InvalidProblemError(
            f"--module {where}: {name}() failed: {type(error).__name__}: {error}"
        ) from error
    model, sample = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module):
        raise InvalidProblemError(
            f"--module {where}: {name}() must return (model, sample), not {type(built).__name__}"
        )
    if sample is None or (isinstance(sample, (tuple, list, dict)) and not sample):
        raise InvalidProblemError(
            f"--module {where}: {name}() returned a model without a sample, so its activations are "
            "unknown: return (model, (inputs,)), with the arguments of one forward as a tuple or a "
            "dict"
        )
    if isinstance(sample, dict):
        return model, (), sample
    return model, tuple(sample) if isinstance(sample, (tuple, list)) else (sample,), {}


def _import(place: str) -> Any:
    path = Path(place)
    if path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
    if not path.is_file():
        raise InvalidProblemError(f"--module: no such file: {place}")
    sys.path.insert(0, str(path.parent.resolve()))  # as for `python FILE.py`: it may import its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
