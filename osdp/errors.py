"""The errors OSDP raises. Each message says what happened, where (rank, module, phase) and what to do next."""

from __future__ import annotations

import os
from typing import Protocol


class SavedPlan(Protocol):
    """The part of osdp.Plan that errors depend on; a protocol, since this module imports no other of osdp."""

    @property
    def memory_limit_bytes(self) -> int | None: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...


class OSDPError(RuntimeError):
    """Base of every error that OSDP raises on purpose."""


class InfeasibleError(OSDPError):
    """No plan fits the memory limit.

    `smallest_limit` is the smallest memory limit, in bytes, under which a plan exists (None if unknown);
    `plan` is the plan for that limit, or None.
    """

    def __init__(
        self, message: str, smallest_limit: int | None = None, plan: SavedPlan | None = None
    ) -> None:
        super().__init__(message)
        self.smallest_limit = smallest_limit
        self.plan = plan


class InvalidProblemError(OSDPError, ValueError):
    """A search problem, size or option that is invalid: negative, not finite, overflowing or empty."""


class FormatError(OSDPError, ValueError):
    """A file or checkpoint is damaged, has unknown fields, wrong types or a newer version, or belongs to
    another model.

    `field` is the path of the offending field, such as "choices.blocks.0.fc.granularity"; `line` and `column`
    (from 1) are its position in the text, None if there is no text.
    """

    def __init__(
        self, message: str, field: str = "", line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(message)
        self.field = field
        self.line = line
        self.column = column


class DescribeError(OSDPError):
    """The model could not be described: its forward failed on the sample, or it has no parameters."""


class ProfileError(OSDPError):
    """The machine could not be measured."""


class MachineMismatchWarning(UserWarning):
    """The plan's predictions were made for a different machine than the one that trains; the message says
    what differs."""


class PlanMismatchError(OSDPError):
    """The plan was made for a different model, world size or precision than those it is applied to."""


class DisagreementError(OSDPError):
    """Ranks hold different plans, models, dtypes or versions; the message names the rank and the first difference."""


class OrderError(DisagreementError):
    """Ranks ran different modules, or different numbers of micro-batches, in a step, so their collectives do
    not match; the message says where each rank was."""


class ReplicaError(DisagreementError):
    """Parameters that every rank holds in full (NO_SHARD) differ across ranks; the message names one such
    parameter, the ranks' values and possible causes."""


class RankError(OSDPError):
    """Another rank died, hangs, or raised an exception that this rank did not; the message names that rank
    and where it was."""


class OutOfMemoryError(OSDPError):
    """Allocating memory for gathered parameters failed; the message gives the requested size and the plan's
    prediction."""


class GradientError(OSDPError):
    """Gradients are not finite; every rank raises this error."""


class BuildError(OSDPError, ImportError):
    """osdp was built with a different version of torch than the one installed; the message names the command
    that fixes it."""


class ProcessGroupError(OSDPError):
    """No usable process group."""


class ShardingError(OSDPError):
    """A sharded model was used in a way that is not supported; nothing was changed."""
