"""The errors OSDP raises. Each message says what happened, where (rank, module, phase) and what to do next."""

from __future__ import annotations

import os
from typing import Protocol


class SavedPlan(Protocol):
    """What an error says of the plan it carries, an osdp.Plan."""

    @property
    def memory_limit_bytes(self) -> int | None: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...


class OSDPError(RuntimeError):
    """Base of every error that OSDP raises on purpose."""


class InfeasibleError(OSDPError):
    """No plan fits the memory limit.

    `smallest_limit` is the least memory limit, in bytes, under which a plan exists (None where unknown), and
    `plan` the plan for it, where there is one.
    """

    def __init__(
        self, message: str, smallest_limit: int | None = None, plan: SavedPlan | None = None
    ) -> None:
        super().__init__(message)
        self.smallest_limit = smallest_limit
        self.plan = plan


class InvalidProblemError(OSDPError, ValueError):
    """A search problem, size or option that cannot mean anything: negative, not finite, overflowing, empty."""


class FormatError(OSDPError, ValueError):
    """A file or checkpoint that is damaged, has unknown fields, wrong types or a newer version, or is of another model.

    `field` is the path of the offending field, such as "choices.blocks.0.fc.granularity"; `line` and `column` (from 1)
    say where in the text it is, None where there is no text.
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
    """A plan's predictions are of another machine than the one that trains; the message says what differs."""


class PlanMismatchError(OSDPError):
    """A plan that was made for another model, world size or precision than it is applied to."""


class DisagreementError(OSDPError):
    """Ranks hold different plans, models, dtypes or versions; the message names the rank and the first difference."""


class OrderError(DisagreementError):
    """Ranks ran different modules in a step, or another number of micro-batches, so their collectives do not match; the
    message says where each rank was."""


class ReplicaError(DisagreementError):
    """Parameters that every rank holds in full (NO_SHARD) differ across ranks; the message names one, who holds which value,
    and what may have made them differ."""


class RankError(OSDPError):
    """Another rank died, hangs, or raised an exception that this rank did not; the message names it and where it was."""


class OutOfMemoryError(OSDPError):
    """No memory to gather parameters into; the message says what was asked for and what the plan predicted."""


class GradientError(OSDPError):
    """Gradients are not finite; every rank raises alike."""


class BuildError(OSDPError, ImportError):
    """osdp was built with another torch than the one installed; the message names the command that mends it."""


class ProcessGroupError(OSDPError):
    """No usable process group."""


class ShardingError(OSDPError):
    """A sharded model was used in a way that cannot work; nothing was changed."""
