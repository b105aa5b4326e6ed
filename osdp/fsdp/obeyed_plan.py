"""Shards a module by a plan, with the options of its wrapper."""

from __future__ import annotations

from typing import Any

from torch import nn

from osdp.fsdp.marks import marked_precision
from osdp.fsdp.options import Options
from osdp.plan.plan import Plan
from osdp.sharding.fully_shard import fully_shard
from osdp.sharding.resharding import Resharding


def obey(
    module: nn.Module, plan: Plan, options: Options, resharding: Resharding, **initialising: Any
) -> None:
    """Shard `module` in place. Collective. `initialising`: the arguments of `osdp.fully_shard` for parameters
    without values.

    Raises the errors of `osdp.fully_shard`.
    """
    fully_shard(
        module,
        plan,
        options.process_group,
        device_mesh=options.device_mesh,
        ranks_per_host=options.ranks_per_host,
        device_id=options.device,
        cpu_offload=options.offload,
        mixed_precision=marked_precision(module, options),
        resharding=resharding,
        **initialising,
    )
