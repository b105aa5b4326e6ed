"""Whether all ranks of a replica were given the same samples.

A sampler that goes by the rank in the job, as under plain data parallelism, gives the last stage targets of other inputs
than the first stage's: it would train, without a word, to say something about other samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from osdp.base.tensor_parallel import local_part
from osdp.base.tensor_trees import tensors_in

_MOST = 2**20  # elements of a tensor that are compared
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Samples:
    """What a rank was given in a step."""

    replica: int
    stage: int
    inputs: tuple[object, ...]
    targets: tuple[object, ...] | None  # of the last stage; others need none

    @staticmethod
    def of(replica: int, stage: int, inputs: Any, targets: Any, last: bool) -> Samples:
        return Samples(replica, stage, _seen(inputs), _seen(targets) if last else None)


def samples_apart(everyones: Sequence[Samples]) -> str:
    """What is wrong, of all ranks in their order; "" if nothing is."""
    first: dict[object, tuple[int, Samples]] = {}
    for rank, mine in enumerate(everyones):
        for what, given in (("inputs", mine.inputs), ("targets", mine.targets)):
            if given is None:
                continue
            other, known = first.setdefault((what, mine.replica), (rank, mine))
            if given != (known.inputs if what == "inputs" else known.targets):
                return (
                    f"rank {other} (stage {known.stage}) and rank {rank} (stage {mine.stage}) have parts of one replica of "
                    f"the model, and were given different {what}: all ranks of a replica pass the same samples. Let "
                    "samplers go by pipeline.mesh['dp']: DistributedSampler(data, "
                    "num_replicas=pipeline.mesh['dp'].size(), rank=pipeline.mesh['dp'].get_local_rank())"
                )
    return ""


def _seen(values: Any) -> tuple[object, ...]:
    return tuple(map(_of, tensors_in(values)))


def _of(tensor: Tensor) -> object:
    """What tells its values, exactly: sums of their bits as integers, whatever the order of summation."""
    own = local_part(tensor.detach())
    shape = (str(own.dtype), tuple(own.shape))
    if own.layout is not torch.strided or own.is_meta or own.itemsize not in _BITS:
        return shape
    bits = own.flatten()[:_MOST].cpu().contiguous().view(_BITS[own.itemsize]).long()
    return *shape, bits.sum().item(), (bits * torch.arange(1, len(bits) + 1)).sum().item()
