"""One rank: joins the process groups, then runs the cases that the pool sends until the pipe closes."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Collection
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SEED = 20230819
PR_SET_PDEATHSIG = 1
MOST_GROUPS = 1000  # that a case makes


def main(pipe: Connection, rank: int, size: int, folder: str, path: list[str]) -> None:
    """What a process of `pool.Pool` runs. `path`: where modules of cases are found."""
    directory = Path(folder)
    # A rank that hangs in a collective never sees its pipe close: let the kernel end it with the server it is forked
    # from, which ends with the tests.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(directory / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    stacks = (directory / f"stacks{rank}").open("w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    sys.path[:] = path
    groups = join_groups(rank, size, directory)
    gc.freeze()
    known = len(sys.modules)
    pipe.send_bytes(pickle.dumps("ready"))
    while True:
        try:
            number, module, name, world, args, kwargs = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        destroy_groups(but=groups.values())
        count_groups_from(number * MOST_GROUPS)
        pipe.send_bytes(answer(module, name, rank, world, groups[world], args, kwargs))
        known = collect(known)


def collect(known: int) -> int:
    """Collects what a case has left; returns how many modules there are (`known` before). Collections, and what sharding
    looks for, pass over all that was imported: looking at it took two fifths of the ranks' processor time."""
    gc.collect()
    if len(sys.modules) > known:
        gc.freeze()
    return len(sys.modules)


def destroy_groups(but: Collection[Any]) -> None:
    """Those that the last case has made, which all ranks have ended by now. Gloo has a thread for each that wakes a hundred
    times a second: those of hundreds of cases took more processor time than the cases. OSDP's own end with the caller's."""
    from torch import distributed as dist
    from torch.distributed import distributed_c10d

    names = distributed_c10d._world.pg_names
    left = [g for g, name in names.items() if g not in but and not name.startswith("osdp/")]
    for group in left:
        dist.destroy_process_group(group)
    if left:  # DTensor remembers layouts over their meshes, and takes an equal mesh of other groups for one of these
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()


def count_groups_from(number: int) -> None:
    """torch names a new group by how many this rank has made. Ranks that took part in other cases have made others, and
    would wait for each other under different names."""
    from torch.distributed import distributed_c10d

    distributed_c10d._world.group_count = number


def join_groups(rank: int, size: int, directory: Path) -> dict[int, Any]:
    """World size -> a gloo group of the first that many ranks, for every size up to the pool's."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Longer than any case may take: the pool reports a hang first, with every rank's stack.
    patience = timedelta(minutes=10)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size, timeout=patience
    )
    groups = {w: dist.new_group(list(range(w)), timeout=patience) for w in range(1, size)}
    return {**groups, size: dist.group.WORLD}


def answer(module: str, name: str, rank: int, world: int, group: Any, args: Any, kwargs: Any) -> bytes:
    """Run one case; the pickled (True, result) or (False, (error's type and message, traceback))."""
    import torch

    from harness.member import Member

    try:
        case = getattr(importlib.import_module(module), name)
        random.seed(SEED)
        torch.manual_seed(SEED)
        return pickle.dumps((True, case(Member(rank, world, group), *args, **kwargs)))
    except BaseException as error:  # pytest.fail and pytest.raises do not raise an Exception
        line = traceback.format_exception_only(error)[0].strip()
        return pickle.dumps((False, (line, traceback.format_exc())))
