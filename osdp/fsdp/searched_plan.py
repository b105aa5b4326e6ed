"""The search of a wrapper with memory=, on rank 0 for all ranks."""

from __future__ import annotations

from torch import nn

from osdp.errors import ProcessGroupError
from osdp.fsdp.options import Options
from osdp.plan.mixed_precision import precision_name
from osdp.plan.plan import Plan
from osdp.ranks.rank_group import Together
from osdp.sharding.hybrid_mesh import RankGrid, given_or_found, model_ranks


def searched_plan(module: nn.Module, options: Options) -> Plan:
    """Rank 0's plan for `options.sample`, on every rank. Collective."""
    from osdp.planning.search import search

    assert options.sample is not None
    told = dict(options.search or {})
    if options.whole:
        told["whole"] = options.whole
    if options.precision is not None:
        told["precision"] = precision_name(options.precision)
    group, grid = model_ranks(options.process_group, options.device_mesh)
    together = Together(group, "the search for a plan")
    hosts = told.pop("hosts", None) or _hosts(together, grid, options.ranks_per_host)

    def found() -> str:
        if together.rank != 0:
            return ""
        plan = search(
            module,
            options.sample,
            memory=options.memory,
            world_size=together.world_size,
            hosts=hosts,
            hardware=options.hardware,
            **told,
        )
        return plan.dumps()

    text = together.do("searching for a plan", found)
    return Plan.loads(together.all(text)[0])


def _hosts(together: Together, grid: RankGrid | None, ranks_per_host: int | None) -> int:
    """The number of hosts; 1 if the ranks are not spread evenly over them, which rules HYBRID_SHARD out."""
    try:
        return len(given_or_found(together, grid, ranks_per_host).lines)
    except ProcessGroupError:
        return 1
