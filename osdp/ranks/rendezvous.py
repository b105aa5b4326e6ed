"""Rendezvous of ranks before they have a lane, whose heartbeat names missing ranks.

The first exchanges use the caller's group and the job's store, whose errors name no rank. So each rank stores
its process's identity before it waits; if an exchange then fails, the others check which ranks have arrived
and which still run.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from torch import distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _get_default_store

from osdp import _C
from osdp.errors import OSDPError, RankError

T = TypeVar("T")
PHASE = "connecting the ranks"
_PATIENCE_S = 1.0  # time for a process that has just lost its connections to end
_POLL_S = 0.01


def first_contact(group: dist.ProcessGroup, work: Callable[[], T], phase: str) -> T:
    """The result of `work`, which communicates over `group` or its ranks' store. Collective. If it fails
    because a rank's process has ended, or has not arrived, RankError names the rank and the `phase`.
    """
    ranks = dist.get_process_group_ranks(group)
    me = dist.get_rank(group)
    store = _get_default_store()
    key = f"osdp/process/{group.group_name}/"
    try:
        store.set(f"{key}{me}", _C.this_process())
        return work()
    except OSDPError:
        raise
    except RuntimeError as error:
        missing = _missing(store, key, me, ranks)
        if not missing:
            raise
        raise RankError(
            f"OSDP: rank {ranks[me]} cannot continue in {phase}: {missing} ({_first_line(error)}). "
            "End all ranks and restart them."
        ) from error


def _missing(store: Store, key: str, me: int, ranks: Sequence[int]) -> str:
    """The ranks that have ended, else those that have not arrived; "" if unknown."""
    until = time.monotonic() + _PATIENCE_S
    absent: list[int] = []
    while True:
        try:
            others = [r for r in range(len(ranks)) if r != me]
            absent = [r for r in others if not store.check([f"{key}{r}"])]
            for rank in others:
                if rank not in absent and _C.process_ended(store.get(f"{key}{rank}").decode()):
                    return f"rank {ranks[rank]}'s process has ended"
        except RuntimeError:  # the store is gone too
            return "the process that holds the ranks' store (rank 0's, or the launcher's) has ended"
        if time.monotonic() > until:
            break
        time.sleep(_POLL_S * 5)
    names = ", ".join(f"rank {ranks[r]}" for r in absent)
    return f"{names} did not arrive (ended earlier, or busy elsewhere)" if absent else ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def meet(name: str, ranks: Sequence[int], timeout: timedelta) -> str:
    """Random digits shared by these global ranks in this attempt only; `name`: the same on all. It needs no
    group, and values that an earlier attempt left in the store under `name` have no effect.

    A rank sends a request with its own digits; the first of `ranks` answers under these, and waits for
    acknowledgements under its own digits.
    """
    store = _get_default_store()
    me, first = dist.get_rank(), ranks[0]
    until = time.monotonic() + timeout.total_seconds()
    if me != first:
        mine = secrets.token_hex(8)
        store.set(f"{name}/asks/{me}", mine)
        answer = f"{name}/answer/{me}/{mine}"
        while not store.check([answer]):
            _sleep(until, [first], name)
        digits = store.get(answer).decode()
        store.set(f"{name}/thanks/{me}/{digits}", "")
        return digits
    digits = secrets.token_hex(8)
    while missing := [r for r in ranks[1:] if not store.check([f"{name}/thanks/{r}/{digits}"])]:
        for rank in missing:
            if store.check([f"{name}/asks/{rank}"]):
                store.set(f"{name}/answer/{rank}/{store.get(f'{name}/asks/{rank}').decode()}", digits)
        _sleep(until, missing, name)
    return digits


def _sleep(until: float, missing: Sequence[int], name: str) -> None:
    if time.monotonic() > until:
        names = ", ".join(f"rank {r}" for r in missing)
        raise RankError(
            f"{names} (global ranks) did not arrive to create the group {name}: ended earlier, or "
            "busy elsewhere"
        )
    time.sleep(_POLL_S)
