"""The search of a wrapper with memory=, on rank 0 for all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from osdp.base.byte_sizes import format_bytes, parse_bytes
from osdp.errors import InfeasibleError, ProcessGroupError
from osdp.fsdp.options import Options
from osdp.plan.mixed_precision import precision_name
from osdp.plan.plan import Plan
from osdp.ranks.rank_group import Together
from osdp.sharding.hybrid_mesh import RankGrid, given_or_found, model_ranks
from osdp.sharding.separate_parts import SeparateParts


def searched_plan(module: nn.Module, options: Options, separate: SeparateParts) -> Plan:
    """Rank 0's plan for `options.sample`, on every rank. Collective. The limit is what `separate`, the parts that are not
    in the plan, leave of `options.memory` on the rank where they hold most."""
    from osdp.planning.optimizer_states import OPTIMIZERS, OptimizerState
    from osdp.planning.search import search

    assert options.sample is not None
    told = dict(options.search or {})
    if options.whole:
        told["whole"] = options.whole
    if options.precision is not None:
        told["precision"] = precision_name(options.precision)
    group, grid = model_ranks(options.process_group, options.device_mesh)
    together = Together(group, "the search for a plan")
    # An unknown optimizer is refused by search().
    optimizer = OPTIMIZERS.get(str(told.get("optimizer", "adamw")), OptimizerState())
    held = max(together.all(separate.resting_bytes(optimizer.bytes)))
    hosts = told.pop("hosts", None) or _hosts(together, grid, options.ranks_per_host)

    def found() -> str:
        with _left_by_parts(options.memory, held) as memory:
            plan = search(
                module,
                options.sample,
                memory=memory,
                world_size=together.world_size,
                hosts=hosts,
                hardware=options.hardware,
                **told,
            )
        return str(plan.dumps())

    return Plan.loads(together.done_first("searching for a plan", found))


@contextmanager
def _left_by_parts(memory: int | float | str | None, held: int) -> Iterator[int | float | str | None]:
    """The limit for the rest of the model; an InfeasibleError from inside speaks of the limit for all of it."""
    if not held or memory is None:
        yield memory
        return
    whole = parse_bytes(memory)
    of_parts = f"{format_bytes(held)} of memory={format_bytes(whole)} is what parts over other ranks hold"
    if held >= whole:
        raise InfeasibleError(
            f"{of_parts} with their gradients and optimizer states; nothing is left for the rest"
        )
    try:
        yield whole - held
    except InfeasibleError as error:
        least = error.smallest_limit and error.smallest_limit + held
        raise InfeasibleError(
            f"{error} ({of_parts}; the figures are of the rest)", least, error.plan
        ) from None


def _hosts(together: Together, grid: RankGrid | None, ranks_per_host: int | None) -> int:
    """The number of hosts; 1 if the ranks are not spread evenly over them, which rules HYBRID_SHARD out."""
    try:
        return len(given_or_found(together, grid, ranks_per_host).lines)
    except ProcessGroupError:
        return 1
