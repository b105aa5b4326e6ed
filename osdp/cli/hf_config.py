"""A model from a `transformers` config.json, without weights: for `osdp search --hf-config`."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

from osdp.base import json_files
from osdp.errors import InvalidProblemError

if TYPE_CHECKING:
    from torch import nn

_LENGTHS = ("max_position_embeddings", "n_positions", "max_length")
_DEFAULT_LENGTH = 512


def build(
    path: str | os.PathLike[str], sequence_length: int | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """(model on the meta device, sample of one sequence or image as keyword arguments) of the config in `path`.

    The class is the file's `architectures[0]`, else the model type's plain one. Where its forward takes labels it gets
    them, as in training. `sequence_length`: tokens; None: as many as the config says it has positions for, else 512.
    Raises InvalidProblemError where `transformers` is missing or cannot build it, FormatError for a damaged file.
    """
    try:
        import transformers
    except ImportError as error:
        raise InvalidProblemError("--hf-config needs transformers: pip install 'osdp[hf]'") from error
    import torch

    values = json_files.parse(json_files.load_bytes(path))
    kind = values.pop("model_type", None) if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise InvalidProblemError(f"--hf-config {path}: has no field 'model_type'; is it a config.json?")
    try:
        config = transformers.AutoConfig.for_model(kind, **values)
        names = getattr(config, "architectures", None) or []
        cls = getattr(transformers, names[0], None) if names else None
        config.use_cache = False  # of generation; training keeps none
        with torch.device("meta"):
            make: Any = cls if cls is not None else transformers.AutoModel.from_config
            model = make(config)
            sample = _sample(model, config, sequence_length)
    except InvalidProblemError:
        raise
    except Exception as error:
        raise InvalidProblemError(
            f"--hf-config {path}: transformers {transformers.__version__} cannot build the model: "
            f"{type(error).__name__}: {error}"
        ) from error
    return model.train(), sample


def _sample(model: nn.Module, config: Any, sequence_length: int | None) -> dict[str, Any]:
    import torch

    takes = inspect.signature(model.forward).parameters
    labelled = "labels" in takes
    if "pixel_values" in takes and "input_ids" not in takes:
        size = getattr(config, "image_size", None)
        if size is None:
            raise InvalidProblemError("the config of this vision model has no image_size")
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        pixels = torch.zeros(1, getattr(config, "num_channels", 3), height, width)
        return {"pixel_values": pixels} | ({"labels": torch.zeros(1, dtype=torch.long)} if labelled else {})
    if "input_ids" not in takes:
        raise InvalidProblemError(
            f"the forward of {type(model).__name__} takes neither input_ids nor pixel_values; "
            "use --module with a function that returns (model, sample)"
        )
    tokens = torch.zeros(1, sequence_length or _length(config), dtype=torch.long)
    sample = {"input_ids": tokens}
    per_sequence = labelled and type(model).__name__.endswith("ForSequenceClassification")
    if per_sequence:
        sample["labels"] = torch.zeros(1, dtype=torch.long)
    elif labelled:
        sample["labels"] = tokens
    if "decoder_input_ids" in takes:  # also beside labels: not every config says how those are shifted
        sample["decoder_input_ids"] = tokens
    return sample


def _length(config: Any) -> int:
    for name in _LENGTHS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 1:
            return value
    return _DEFAULT_LENGTH
