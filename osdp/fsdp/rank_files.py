"""FairScale's functions for saving each rank's part in its own file, and for merging the files in one
process.

torch.save((model.local_state_dict(), model.local_metadata_dict()), f"part{rank}.pt")    # every rank
weights, metadata = zip(*(torch.load(path) for path in paths))                           # later, one process
plain_model.load_state_dict(FSDP.consolidate_shard_weights(weights, metadata))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osdp import _C
from osdp.base.modules import unwrapped, without_wrappers
from osdp.errors import FormatError, InvalidProblemError, ShardingError
from osdp.fsdp.sharded_in import first_sharded_in
from osdp.sharding.nested_models import refuse_parts


def local_metadata_dict(model: nn.Module) -> dict[str, Any]:
    """The position of each piece of this rank's parameters in the full ones, in OSDP's own format, not
    FairScale's. Raises ShardingError where parameters are divided by tensor parallelism."""
    root = unwrapped(model)
    sharded = first_sharded_in(root)
    refuse_parts(
        root, "local_metadata_dict", "Call it for each part by itself, and for the rest by state_dict()"
    )
    if sharded.tensor_parallel:
        raise ShardingError(
            "local_metadata_dict does not know the parts of tensor parallelism: use state_dict()"
        )
    runtime, by_id = sharded.runtime, sharded.tree.index
    parameters = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        if id(parameter) not in by_id:
            continue  # ignored by the wrapper
        index = by_id[id(parameter)]
        pieces = [_described(piece, parameter) for piece in runtime.pieces(index)]
        parameters[without_wrappers(name)] = {"shape": list(runtime.full_shape(index)), "pieces": pieces}
    buffers = [without_wrappers(name) for name, _ in root.named_buffers()]
    return {"osdp": 1, "parameters": parameters, "buffer_names": buffers}


def consolidate_shard_weights(
    shard_weights: Sequence[Mapping[str, Tensor]],
    shard_metadata: Sequence[Mapping[str, Any]],
    with_module_buffers: bool = True,
    strict: bool = True,
) -> dict[str, Tensor]:
    """Merge the local state dicts of all ranks and their metadata to the full one. Buffers are rank 0's.

    Raises FormatError for metadata of another library and, with `strict`, for a parameter that a rank lacks;
    InvalidProblemError unless there is one state dict and one metadata of every rank.
    """
    if not shard_weights or len(shard_weights) != len(shard_metadata):
        raise InvalidProblemError(
            f"got {len(shard_weights)} local state dicts and {len(shard_metadata)} metadata: pass "
            "both from every rank"
        )
    if any("parameters" not in metadata for metadata in shard_metadata):
        raise FormatError(
            "the metadata does not come from osdp's local_metadata_dict; load FairScale's with FairScale",
            "parameters",
        )
    full: dict[str, Tensor] = {}
    for name, first in shard_metadata[0]["parameters"].items():
        if not all(name in weights for weights in shard_weights):
            if strict:
                raise FormatError(f"a local state dict has no {name!r}", name)
            continue
        whole = torch.empty(first["shape"], dtype=shard_weights[0][name].dtype)
        for weights, metadata in zip(shard_weights, shard_metadata, strict=True):
            for begin, sizes, strides, offset in metadata["parameters"][name]["pieces"]:
                piece = weights[name].contiguous().as_strided(sizes, strides, offset)
                whole[tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))].copy_(piece)
        full[name] = whole
    if with_module_buffers:
        names = shard_metadata[0]["buffer_names"]
        full |= {name: shard_weights[0][name] for name in names if name in shard_weights[0]}
    return {name: full[name] for name in shard_weights[0] if name in full}


def _described(piece: _C.Piece, parameter: Tensor) -> tuple[list[int], list[int], list[int], int]:
    """The piece's offsets in the full tensor, its sizes, and its strides and storage offset in this rank's
    tensor."""
    view = piece.view(torch.empty(parameter.shape))
    return list(piece.global_offsets), list(piece.sizes), list(view.stride()), int(view.storage_offset())
