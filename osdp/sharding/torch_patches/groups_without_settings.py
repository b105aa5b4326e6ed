"""Refuses optimizer state dicts whose groups have no learning rate, which torch would load without a word.

Note [Settings of another stage]
`get_optimizer_state_dict` lists a group's settings once, beside the names of its parameters, and
`torch.distributed.checkpoint` writes one rank's list for all. Of a pipeline that is one stage's: the parameters of the
others are in no group that is loaded, so torch gives their optimizer groups of parameters alone, and the next step is
"KeyError: 'betas'". With `flatten_optimizer_state_dict=True` each parameter has its own settings.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from osdp.errors import ShardingError
from osdp.sharding.sharded_model import sharded_models


def check_settings(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Raises ShardingError if one of `groups` has parameters alone, and the optimizer's has one of a sharded model."""
    for own, given in zip(optimizer.param_groups, groups, strict=False):
        if set(given) - {"params", "param_names"} or not own["params"]:
            continue
        parameter = own["params"][0]
        for _, sharded in sharded_models():
            if (index := sharded.tree.index.get(id(parameter))) is not None:
                raise ShardingError(
                    f"{sharded.runtime.rank_name}: the {type(optimizer).__name__} state dict has no settings (a learning "
                    f"rate) for the group of '{sharded.name_of(index)}': torch.distributed.checkpoint keeps those of one "
                    "stage of a pipeline alone. Save and load with StateDictOptions(flatten_optimizer_state_dict=True), "
                    "or with osdp.save and osdp.load."
                )
