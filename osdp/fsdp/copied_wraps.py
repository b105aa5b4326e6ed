"""What wraps and fully_shard without a plan have noted of a module, for a copy of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from osdp.fsdp.first_forward import copy_wait
from osdp.fsdp.marks import MARKS
from osdp.fsdp.options import Options
from osdp.fsdp.state_dict_types import carry_over
from osdp.sharding.copies import Memo
from osdp.sharding.sharded_model import sharded_of


def copy_notes(module: nn.Module, copied: nn.Module, memo: Memo) -> None:
    if module in MARKS:
        MARKS[copied] = _of_copy(MARKS[module], memo)
    source, made = sharded_of(module), sharded_of(copied)
    if source is not None and made is not None:
        carry_over(source, made)
    copy_wait(module, copied, lambda options: _of_copy(options, memo))


def _of_copy(options: Options, memo: Memo) -> Options:
    """The options, with the copies of the modules and parameters that they name."""

    def theirs(named: Any) -> Any:
        return None if named is None else tuple(memo.get(id(each), each) for each in named)

    return dataclasses.replace(
        options,
        ignored_modules=theirs(options.ignored_modules),
        ignored_states=theirs(options.ignored_states),
    )
