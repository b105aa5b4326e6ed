"""Backends for our own process groups, of the same kind and with the same options as the caller's group has
for a device.

Note [Beside the caller's group]
A group that is created by hand does not get the options of `init_process_group`, so they are copied: NCCL's
`config` (how many blocks it may use, `cta_policy`), the stream's priority, description and ranks. If the
caller's group is bound to a device, its communicator exists and can be split (ncclCommSplit), which takes
less time and memory than a new one. All of its ranks must call it, and one call creates several disjoint
groups: each rank selects its group by a colour, the first of that group's ranks. So a group of all ranks is
created in this way, and all lines of HYBRID_SHARD, and all columns, but not a group of only some ranks. The
split is made immediately instead of by the first collective, since no operation may be in progress on the
communicator that is split. `destroy_process_group` knows our groups: it shuts them down with all others, in
the same order on all ranks.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, _register_process_group
from torch.distributed.distributed_c10d import _get_default_store, _world

from osdp import _C
from osdp.errors import ProcessGroupError


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    return _C.timeout_of(group.group_name, device)


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str | None:
    """The name of the backend of `group` (None: the default one) for devices of this type; None if it has
    none."""
    config: Any = _world.pg_backend_config[group or dist.group.WORLD]  # type: ignore[index]
    return dist.BackendConfig(config).get_device_backend_map().get(device.type)


def make_group(
    name: str,
    like: dist.ProcessGroup,
    devices: Sequence[torch.device],
    ranks: Sequence[int],
    together: bool = False,
) -> dist.ProcessGroup:
    """Create a group of these global ranks, which include this one, under a unique name, with the backends,
    options and timeout of `like` for `devices`. Called by these ranks only, or with `together` by all ranks
    of `like`, each for its own group.
    """
    rank = list(ranks).index(dist.get_rank())
    made = dist.ProcessGroup(PrefixStore(f"{name}/", _get_default_store()), rank, len(ranks))
    backends: dict[str, Any] = {}
    for device in devices:
        kind = backend_of(like, device)
        assert kind is not None
        if kind not in backends:
            source = _splittable(like, device) if together else None
            backends[kind] = _backend(kind, name, like, device, list(ranks), rank, source)
            if source is not None:
                backends[kind].eager_connect_single_device(like.bound_device_id)
        known = dist.ProcessGroup.BackendType
        made._register_backend(device, getattr(known, kind.upper(), known.CUSTOM), backends[kind])
    made._set_group_name(name)  # type: ignore[arg-type]
    made._set_group_desc(f"osdp, beside {like.group_desc}")
    _register_process_group(name, made)  # type: ignore[arg-type]
    _announce(made, name, like, ranks)
    return made


def forget_group(group: dist.ProcessGroup, name: str) -> None:
    """Remove all of torch.distributed's references to the group; there are none if the default group has been
    destroyed."""
    for known in (_world.pg_map, _world.pg_names, _world.pg_group_ranks, _world.pg_backend_config):
        known.pop(group, None)
    tag = _world.pg_to_tag.pop(group, None)
    if tag is not None:
        _world.tags_to_pg.pop(tag, None)
    unregister = getattr(c10d, "_unregister_process_group", None)  # without it the registry keeps a name
    if unregister is not None:
        unregister(name)


def _announce(group: dist.ProcessGroup, name: str, like: dist.ProcessGroup, ranks: Sequence[int]) -> None:
    """Register the group with torch.distributed, as new_group does at its end."""
    _world.pg_map[group] = (_world.pg_map[like][0], PrefixStore(f"{name}/", _get_default_store()))
    _world.pg_names[group] = name  # type: ignore[assignment]
    _world.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
    _world.pg_backend_config[group] = _world.pg_backend_config[like]
    tag = f"ptd:{name}"
    _world.tags_to_pg.setdefault(tag, []).append(group)
    _world.pg_to_tag[group] = tag


def _backend(
    kind: str,
    name: str,
    like: dist.ProcessGroup,
    device: torch.device,
    ranks: list[int],
    rank: int,
    source: Any,
) -> Any:
    """A backend of a kind built into torch or registered with it; split from `source` if given."""
    store = PrefixStore(f"{name}/{kind}/", _get_default_store())
    # The heartbeat must report first, since it knows the cause.
    timeout = timeout_of(like, device) + timedelta(seconds=_C.HEARTBEAT_MARGIN_S)
    if kind == dist.Backend.GLOO:
        gloo = dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
        _describe(gloo.options, name, ranks)
        return gloo
    options = _options_of(like, device)
    if kind == dist.Backend.NCCL:
        options = options or dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        _describe(options, name, ranks)
        _split(options, source, ranks)
        return dist.ProcessGroupNCCL(store, rank, len(ranks), options)
    plugin = dist.Backend._plugins.get(kind.upper())
    if plugin is None:
        raise ProcessGroupError(
            f"backend {kind!r} is not supported: use gloo, nccl, or one that dist.Backend.register_backend knows"
        )
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, len(ranks), timeout)
    _split(options, source, ranks)
    wanted: Any = c10d._DistributedBackendOptions()
    wanted.store, wanted.group_rank, wanted.group_size, wanted.timeout = store, rank, len(ranks), timeout
    wanted.group_id, wanted.global_ranks_in_group = name, ranks
    return plugin.creator_fn(wanted, options)


def _describe(options: Any, name: str, ranks: list[int]) -> None:
    options.global_ranks_in_group = ranks
    options.group_name = name


def _unwrapped(like: dist.ProcessGroup, device: torch.device) -> Any:
    """The backend itself, without the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    backend: Any = like._get_backend(device)
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def _options_of(like: dist.ProcessGroup, device: torch.device) -> Any:
    """A copy of the caller's options, or the options themselves if they cannot be copied; None if the backend
    has none."""
    try:
        options = getattr(_unwrapped(like, device), "options", None)
    except RuntimeError:
        return None
    with contextlib.suppress(TypeError):
        options = copy.deepcopy(options)
    return options


def _splittable(like: dist.ProcessGroup, device: torch.device) -> Any:
    """The caller's backend if its communicator can be split, else None: Note [Beside the caller's group]."""
    source = _unwrapped(like, device)
    bound = getattr(like, "bound_device_id", None)
    return source if bound is not None and source.supports_splitting else None


def _split(options: Any, source: Any, ranks: list[int]) -> None:
    if source is not None and hasattr(options, "split_from"):
        options.split_from = source
        options.split_color = ranks[0]
