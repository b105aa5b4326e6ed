"""Arguments of FairScale's and torch's classes that have no effect here, and the positional order of each
class's arguments.

The table of all of them is docs/drop-in.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP

from osdp.base.names import did_you_mean
from osdp.errors import InvalidProblemError
from osdp.plan.plan import Plan

# Accepted with any value: they tune mechanisms that OSDP does not have, and losses do not depend on them.
HARMLESS = frozenset(
    (
        # FairScale
        *("process_group_reduce_scatter", "disable_reshard_on_root", "flatten_parameters", "bucket_cap_mb"),
        *("clear_autocast_cache", "verbose", "gradient_predivide_factor"),
        # torch's FSDP
        *("backward_prefetch", "forward_prefetch", "limit_all_gathers"),
        *("use_orig_params", "sync_module_states"),
    )
)

# Refused arguments, and what to do instead; None, False and empty sequences are accepted as "not requested".
REFUSED = {
    "no_broadcast_optim_state": "every rank keeps its part of every parameter's optimizer state, so leave it out",
    "allow_reset_parameters": "call reset_parameters() inside osdp.summon_full_params(model)",
}

ORDERS = {
    "OSDP": ("plan", "memory"),
    "torch's FSDP": tuple(inspect.signature(TorchFSDP).parameters)[2:],
    "FairScale": (
        *("process_group_reduce_scatter", "reshard_after_forward", "disable_reshard_on_root"),
        *("mixed_precision", "fp32_reduce_scatter", "flatten_parameters", "move_params_to_cpu"),
        *("compute_dtype", "buffer_dtype", "move_grads_to_cpu", "bucket_cap_mb", "compute_device"),
        *("no_broadcast_optim_state", "state_dict_device", "clear_autocast_cache", "force_input_to_fp32"),
        *("verbose", "cpu_offload", "state_dict_on_rank_0_only", "gradient_predivide_factor"),
        "allow_reset_parameters",
    ),
}


def _is_group(value: object) -> bool:
    name = type(value).__name__
    return isinstance(value, dist.ProcessGroup) or name == "ProcessGroupName" or hasattr(value, "rank")


# The valid values of these arguments, which distinguish the positional orders.
_CAN_BE: dict[str, Callable[[Any], bool]] = {
    "plan": lambda v: isinstance(v, Plan),
    "memory": lambda v: isinstance(v, (int, float, str)) and not isinstance(v, bool),
    "sharding_strategy": lambda v: (isinstance(v, Enum) and not _is_group(v)) or isinstance(v, str),
    "cpu_offload": lambda v: isinstance(v, bool) or hasattr(v, "offload_params"),
    "auto_wrap_policy": lambda v: callable(v) or hasattr(v, "_run_policy"),
    "process_group_reduce_scatter": _is_group,
    "reshard_after_forward": lambda v: isinstance(v, bool),
    "disable_reshard_on_root": lambda v: isinstance(v, bool),
}


def by_position(values: Sequence[object]) -> dict[str, object]:
    """Names of the positional arguments after `module, process_group`, in the order of the class that they
    fit.

    >>> by_position((torch.distributed.fsdp.ShardingStrategy.NO_SHARD,))
    {'sharding_strategy': <ShardingStrategy.NO_SHARD: 3>}
    """
    for owner, names in ORDERS.items():
        if len(values) > len(names):
            continue
        named = dict(zip(names, values, strict=False))
        # If FSDP's third argument is omitted, its fourth still distinguishes it from FairScale's.
        strict = (
            {"cpu_offload"} if owner == "torch's FSDP" and isinstance(named.get("cpu_offload"), bool) else ()
        )
        if all(v is None or (n not in strict and _CAN_BE.get(n, _anything)(v)) for n, v in named.items()):
            return named
    shown = "; ".join(f"{owner}: {', '.join(names[:3])} ..." for owner, names in ORDERS.items())
    raise InvalidProblemError(
        f"the {len(values)} positional arguments after process_group match no known order ({shown}): "
        "pass them by name"
    )


def _anything(value: object) -> bool:
    return True


def check_names(given: Mapping[str, object], own: Iterable[str]) -> None:
    """Raises InvalidProblemError for names that no class has and for refused values. `own`: the implemented
    names."""
    options = _search_options()
    for name, value in given.items():
        if name in REFUSED and _asks(value):
            raise InvalidProblemError(f"{name}={value!r} is not supported: {REFUSED[name]}")
        if name in HARMLESS or name in REFUSED or name in own:
            continue
        if name in options:
            raise InvalidProblemError(
                f"FullyShardedDataParallel has no argument {name!r}: pass options of the search as "
                f"search={{{name!r}: ...}}"
            )
        hint = did_you_mean(name, [*own, *HARMLESS, *REFUSED])
        raise InvalidProblemError(f"FullyShardedDataParallel has no argument {name!r}{hint}")


def check_search(given: Mapping[str, object]) -> None:
    """Raises InvalidProblemError for names that are not options of the search, or are arguments of the class
    itself."""
    options = _search_options()
    for name in given:
        if name not in options:
            raise InvalidProblemError(
                f"search={{{name!r}: ...}}: the search has no such option; its options are "
                f"{', '.join(options)}"
            )


def _search_options() -> list[str]:
    from osdp.planning.search import search

    decided_here = ("model_or_desc", "memory", "world_size", "sample", "hardware", "precision", "whole")
    return [name for name in inspect.signature(search).parameters if name not in decided_here]


def _asks(value: object) -> bool:
    if value is None or value is False:
        return False
    return bool(value) if isinstance(value, (list, tuple, set, frozenset, dict)) else True
