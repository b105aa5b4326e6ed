"""What DTensor parameters would cost: an optimizer's step, clipping and the switch between rows and full parameter.

    python benchmarks/dtensor.py [--json FILE] [--rounds N]

AdamW over this rank's rows of 100 and 400 parameters on 2 ranks, as plain tensors and as DTensors (`Shard(0)`) of the
same rows, in turns in the same processes. A figure is the median over rounds of the processor time of one thread (what
else the machine does counts less than in elapsed time); `ratio` is DTensor over plain of the same round. The same for
plain parameters whose gradients have a class of their own, which would see torch's functions (docs/torch.md). Decision
and figures: docs/dtensor.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from support.launch import as_rank, run_ranks
from support.machine import machine, machine_line

COUNTS, ROWS, COLUMNS = (100, 400), 32, 64
ADAMW = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}


def measure(rounds: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def shown(rows: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(rows, mesh, (Shard(0),), run_check=False)

    def parameters(count: int, as_dtensors: bool) -> list[nn.Parameter]:
        torch.manual_seed(0)
        made = []
        for _ in range(count):
            rows, gradient = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
            made.append(nn.Parameter(shown(rows) if as_dtensors else rows))
            made[-1].grad = shown(gradient) if as_dtensors else gradient
        return made

    class Watched(torch.Tensor):
        """A gradient that sees torch's functions."""

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    def watched(params: list[nn.Parameter]) -> list[nn.Parameter]:
        for p in params:
            p.grad.__class__ = Watched
        return params

    def switch_data(params: list[nn.Parameter]) -> Callable[[], None]:
        other = [torch.empty(2 * ROWS, COLUMNS) for _ in params]
        own = [p.data for p in params]

        def switch() -> None:
            for tensors in (other, own):
                for p, tensor in zip(params, tensors, strict=True):
                    p.data = tensor

        return switch

    def switch_attributes(params: list[nn.Parameter]) -> Callable[[], None]:
        """FSDP2's way: another Parameter under the module's name, per parameter and phase."""
        modules = []
        for p in params:
            module = nn.Module()
            module.weight = p
            modules.append(module)
        other = [nn.Parameter(torch.empty(2 * ROWS, COLUMNS)) for _ in params]

        def switch() -> None:
            for tensors in (other, params):
                for module, tensor in zip(modules, tensors, strict=True):
                    module._parameters["weight"] = tensor

        return switch

    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for count in COUNTS:
        for name, options in ADAMW.items():
            plain, dtensor = (
                torch.optim.AdamW(parameters(count, kind), lr=1e-3, **options).step for kind in (False, True)
            )
            cases[f"AdamW {name}, {count}"] = (plain, dtensor)
            cases[f"AdamW {name}, {count}, or gradients of a subclass"] = (
                plain,
                torch.optim.AdamW(watched(parameters(count, False)), lr=1e-3, **options).step,
            )
        plain_ps, dtensor_ps = parameters(count, False), parameters(count, True)

        def to_dtensors(rows: list[nn.Parameter] = plain_ps) -> None:
            for p in rows:
                shown(p.grad)

        def clip(ps: list[nn.Parameter]) -> Callable[[], Any]:
            return lambda: torch.nn.utils.clip_grad_norm_(ps, 1e9)

        cases[f"torch's clip_grad_norm_, {count} (DTensors: right, and communicates)"] = (
            clip(plain_ps),
            clip(dtensor_ps),
        )
        cases[f"torch's clip_grad_norm_, {count}, or of a subclass (sees it)"] = (
            clip(plain_ps),
            clip(watched(parameters(count, False))),
        )
        cases[f"nothing, or a DTensor around every gradient, {count}"] = (lambda: None, to_dtensors)
        cases[f"set_data from Python, or module attributes, {count}"] = (
            switch_data(parameters(count, False)),
            switch_attributes(parameters(count, False)),
        )
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(3 + int(rounds)):
        for name, pair in cases.items():
            found = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                dist.barrier()
                begin = time.thread_time()
                pair[which]()
                found[which] = 1e6 * (time.thread_time() - begin)
            if turn >= 3:
                times[name].append((found[0], found[1]))
    return {
        name: {
            "plain_us": median(a for a, _ in rows),
            "dtensor_us": median(b for _, b in rows),
            "ratio": median(b / max(a, 1e-3) for a, b in rows),
        }
        for name, rows in times.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    here = machine()
    found = run_ranks(__file__, [str(arguments.rounds)], 2)
    print(f"{'':72} {'plain us':>9} {'the other':>11} {'ratio':>6}")
    for name, row in found.items():
        print(f"{name:72} {row['plain_us']:9.0f} {row['dtensor_us']:11.0f} {row['ratio']:6.2f}")
    print(machine_line(here))
    if arguments.json:
        result = {"machine": here, "rounds": arguments.rounds, "cases": found}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
