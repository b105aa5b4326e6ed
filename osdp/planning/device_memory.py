"""Memory that a device holds besides tensors, by term; it counts against a plan's limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware

# Note [Memory that no tensor has]
# On an accelerator the limit applies to the device, which holds more than tensors: the driver's context,
# buffers of communicators, workspaces of matrix products, and memory that the caching allocator rounds up or
# caches. None of these depends on how operators are sharded, so their sum is counted in every phase of every
# plan, like buffers: search, certificate and prediction count it in one place, and nothing is added to a peak
# afterwards.

# The caller's thread and autograd's thread for the device each have a handle and a workspace.
_COMPUTING_THREADS = 2
# A fused optimizer's step count, besides its states of the parameters' size.
_SMALL_STATES = 1


@dataclass(frozen=True)
class Term:
    """A part of the memory besides tensors. `why`: a readable origin of the bytes."""

    name: str
    bytes: int
    why: str


def total(terms: Iterable[Term]) -> int:
    """The sum of the terms' bytes."""
    return sum(term.bytes for term in terms)


def memory_terms(
    description: ModelDescription,
    hardware: Hardware,
    *,
    ranks: int,
    hosts: int = 1,
    state: int = 2,
    separate_reductions: bool = False,
    other_groups: int = 0,
) -> tuple[Term, ...]:
    """The nonzero terms of one rank; none on a CPU. `state`: number of optimizer state tensors per
    parameter. `other_groups`: process groups of a stage besides its data-parallel one."""
    m = hardware.device_memory
    levels = 1 if hosts == 1 else 3  # all ranks; inside and between hosts
    apart = 0 if not separate_reductions else 1 if hosts == 1 else 2  # all ranks; inside hosts
    groups = other_groups + (0 if ranks == 1 else 1 + levels + apart)
    pools = 3 if separate_reductions else 2  # the caller's stream's and the lanes' that allocate
    tensors = sum(2 + state + _SMALL_STATES if p.trainable else 1 for p in description.parameters)
    terms = (
        Term("context", m.context_bytes, "of the driver, including the code of kernels"),
        Term(
            "communicators",
            groups * m.communicator_bytes,
            f"{groups}: the caller's and OSDP's"
            + (", and one inside and one between hosts" if hosts > 1 else "")
            + (", and those of reductions" if apart else "")
            + (", and those of tensor parallelism and between stages" if other_groups else ""),
        ),
        Term(
            "workspaces",
            _COMPUTING_THREADS * m.workspace_bytes,
            "of matrix products, for the caller's thread and autograd's",
        ),
        Term(
            "rounding",
            tensors * m.tensor_rounding_bytes,
            f"{tensors} persistent tensors, each rounded up to a multiple of {m.tensor_rounding_bytes} bytes",
        ),
        Term(
            "open blocks",
            pools * (m.small_block_bytes + m.large_block_bytes),
            f"of the caching allocator, one of each size for each of {pools} streams",
        ),
        Term(
            "unused",
            m.unused_bytes,
            "reserved by the caching allocator at the peak of a step, but in no tensor",
        ),
    )
    return tuple(term for term in terms if term.bytes)
