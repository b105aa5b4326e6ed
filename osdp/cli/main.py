"""The command line: `osdp search`, `explain`, `diff`, `frontier`, `simulate`, `profile` and `upgrade`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osdp.errors import InvalidProblemError, OSDPError

if TYPE_CHECKING:
    from torch import nn

    from osdp.hardware.hardware import Hardware

_MODULE_HELP = "FILE.py:FUNCTION or package.module:FUNCTION, which returns (model, sample)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, or 2 after one line on standard error when nothing fits or the input is
    bad.
    """
    arguments = _parser().parse_args(argv)
    try:
        command: Callable[[argparse.Namespace], None] = arguments.command
        command(arguments)
        sys.stdout.flush()
        return 0
    except (OSDPError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `osdp explain plan.json | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"osdp: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="osdp", description="Optimal Sharded Data Parallel for PyTorch")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    search = commands.add_parser("search", help="find the fastest plan that fits the memory")
    what = search.add_mutually_exclusive_group(required=True)
    what.add_argument("--module", metavar="WHERE", help=_MODULE_HELP)
    what.add_argument(
        "--hf-config", metavar="CONFIG.json", help="a config of transformers; the model is never given memory"
    )
    search.add_argument("--memory", required=True, metavar="SIZE", help="per device, such as 16GiB")
    search.add_argument(
        "--world-size", required=True, type=int, metavar="N", help="how many ranks will train"
    )
    search.add_argument(
        "--hardware", metavar="NAME|FILE", help="a known machine, or a file of `osdp profile`"
    )
    search.add_argument(
        "--meta", action="store_true", help="build the model on the meta device: no memory for weights"
    )
    search.add_argument(
        "--sequence-length", type=_count, metavar="N", help="tokens of a sample, with --hf-config"
    )
    search.add_argument(
        "--batch-size", type=_count_or_auto, metavar="N", help="per rank; default: the best one"
    )
    search.add_argument("--global-batch-size", type=int, metavar="N", help="over all ranks")
    for name in ("optimizer", "precision", "cost", "method"):
        search.add_argument(f"--{name}", help=f"as in osdp.search({name}=...)")
    search.add_argument("--granularity", type=_count_or_auto, metavar="N|auto", help="slices of an operator")
    search.add_argument("--checkpoint", choices=("auto", "none"), help="whether blocks may be recomputed")
    search.add_argument("--hosts", type=_count, metavar="N", help="over which the ranks are spread evenly")
    search.add_argument(
        "--whole",
        action="append",
        metavar="PATTERN",
        help="modules or parameters that every rank holds whole, such as 'head' or '*.norm?'; repeatable",
    )
    search.add_argument("--objective", help="throughput (default), memory or batch: as in osdp.search")
    search.add_argument(
        "--at-least", type=float, metavar="SAMPLES/S", help="with --objective memory: the throughput to reach"
    )
    search.add_argument("--time-limit", type=float, metavar="SECONDS", help="of the search")
    search.add_argument("--json", action="store_true", help="print the plan as JSON instead of a table")
    search.add_argument("-o", "--output", metavar="FILE", help="write the plan there")
    search.set_defaults(command=_search)

    explain = commands.add_parser("explain", help="show a plan, and why it is as it is")
    explain.add_argument("plan", metavar="PLAN.json")
    explain.add_argument(
        "--no-search", action="store_true", help="leave out what other limits and batch sizes would give"
    )
    explain.add_argument(
        "--diff", metavar="OTHER.json", help="show only what the other plan decides differently"
    )
    explain.set_defaults(command=_explain)

    diff = commands.add_parser("diff", help="show what a second plan decides differently")
    diff.add_argument("plan", metavar="PLAN.json")
    diff.add_argument("diff", metavar="OTHER.json")
    diff.set_defaults(command=_explain)

    frontier = commands.add_parser("frontier", help="throughput of the best plans under other memory limits")
    frontier.add_argument("plan", metavar="PLAN.json")
    frontier.add_argument("--points", type=_count, default=16, metavar="N", help="how many limits (16)")
    frontier.add_argument("--json", action="store_true", help="print them as JSON instead of a table")
    frontier.add_argument("--plot", metavar="FILE.png", help="draw them (needs matplotlib)")
    frontier.set_defaults(command=_frontier)

    simulate = commands.add_parser("simulate", help="play a step of a plan: what runs when, and the memory")
    simulate.add_argument("plan", metavar="PLAN.json")
    simulate.add_argument(
        "--hardware", metavar="NAME|FILE", help="on another machine than the plan's, or where it has none"
    )
    simulate.add_argument(
        "--world-size", type=_count, metavar="N", help="on so many ranks; default: the plan's"
    )
    simulate.add_argument(
        "--measured",
        metavar="FILE.json",
        help="beside a step that torch.profiler recorded (export_chrome_trace)",
    )
    simulate.add_argument("--json", action="store_true", help="print events and memory as JSON")
    simulate.add_argument("--trace", metavar="FILE.json", help="write them for https://ui.perfetto.dev")
    simulate.add_argument("--plot", metavar="FILE.svg", help="draw them (needs matplotlib)")
    simulate.set_defaults(command=_simulate)

    profile = commands.add_parser("profile", help="measure this machine; also under torchrun")
    profile.add_argument(
        "-o", "--output", metavar="FILE", help="write the figures there; default: print them"
    )
    profile.add_argument("--module", metavar="WHERE", help=_MODULE_HELP + ": measure its operators too")
    profile.add_argument("--seconds", type=float, default=10.0, help="about how long to measure (default 10)")
    profile.set_defaults(command=_profile)

    upgrade = commands.add_parser(
        "upgrade", help="rewrite files of an older OSDP in today's versions, in place"
    )
    upgrade.add_argument(
        "paths",
        nargs="+",
        metavar="FILE|DIR",
        help="a plan, a description, hardware, a checkpoint, or where such are",
    )
    upgrade.set_defaults(command=_upgrade)
    return parser


def _search(arguments: argparse.Namespace) -> None:
    from osdp.base.byte_sizes import parse_bytes
    from osdp.description.describe import describe
    from osdp.hardware.hardware import Hardware

    try:
        from osdp.planning.search import search
    except ImportError as error:
        raise OSDPError(f"the planner is not built ({error}); install osdp again: pip install .") from error

    memory = parse_bytes(arguments.memory)
    if arguments.world_size < 1:
        raise InvalidProblemError(f"--world-size {arguments.world_size}: it must be at least 1")
    hardware = Hardware.load(arguments.hardware) if arguments.hardware else None
    model, args, kwargs = _model(arguments)
    options = {
        name: value
        for name in (
            "batch_size",
            "global_batch_size",
            "optimizer",
            "precision",
            "cost",
            "method",
            "granularity",
            "checkpoint",
            "hosts",
            "objective",
            "at_least",
            "time_limit",
            "whole",
        )
        if (value := getattr(arguments, name)) is not None
    }
    plan = search(
        describe(model, *args, **kwargs),
        memory=memory,
        world_size=arguments.world_size,
        hardware=hardware,
        **options,
    )
    if arguments.output:
        plan.save(arguments.output)
    if arguments.json:
        print(plan.dumps(), end="")
    else:
        _show(plan.__rich__())


def _model(arguments: argparse.Namespace) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if arguments.hf_config is None:
        if arguments.sequence_length is not None:
            raise InvalidProblemError(
                "--sequence-length: only with --hf-config; --module gives its own sample"
            )
        return _build(arguments.module, arguments.meta)
    from osdp.cli.hf_config import build

    model, sample = build(arguments.hf_config, arguments.sequence_length)
    return model, (), sample


def _explain(arguments: argparse.Namespace) -> None:
    from osdp.plan.plan import Plan

    plan = Plan.load(arguments.plan)
    if arguments.diff is not None:
        print(plan.diff(Plan.load(arguments.diff)) or "the plans decide the same\n", end="")
        return
    from osdp.show.explain import explained

    _show(explained(plan, search=not arguments.no_search))


def _frontier(arguments: argparse.Namespace) -> None:
    from osdp.plan.plan import Plan
    from osdp.show.frontier_plot import plot, table

    found = Plan.load(arguments.plan).frontier(points=arguments.points)
    if arguments.plot:
        plot(found, "matplotlib").figure.savefig(arguments.plot, dpi=150)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(point) for point in found.points], indent=1))
    else:
        _show(table(found))


def _simulate(arguments: argparse.Namespace) -> None:
    from osdp.plan.plan import Plan
    from osdp.plan.timeline import Timeline

    step = Plan.load(arguments.plan).simulate(arguments.hardware, arguments.world_size)
    measured = Timeline.of_trace(arguments.measured) if arguments.measured else None
    if arguments.trace:
        step.save_trace(arguments.trace, measured)
    if arguments.plot:
        step.plot(measured).savefig(arguments.plot)
    shown = step if measured is None else step.beside(measured)
    if arguments.json:
        print(shown.to_json())
    else:
        _show(shown)


def _show(renderable: Any) -> None:
    """In colour and as wide as the terminal, or as plain text where there is none."""
    from rich.console import Console

    from osdp.show.terminal import plain

    if sys.stdout.isatty():
        Console().print(renderable)
    else:
        print(plain(renderable), end="")


def _profile(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from osdp.profiling.profile import each, profile
    from osdp.ranks.rank_group import Together

    distributed = "RANK" in os.environ and "WORLD_SIZE" in os.environ  # torchrun
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device("cpu")
    if accelerator is not None:
        index = int(os.environ.get("LOCAL_RANK", "0"))
        torch.accelerator.set_device_index(index)
        device = torch.device(accelerator.type, index)
    if distributed:
        dist.init_process_group(dist.get_default_backend_for_device(device))
    try:
        hardware: Hardware
        if arguments.module:
            ranks = Together()
            model, args, kwargs = each(
                ranks, "building the model", lambda: _build(arguments.module, meta=False)
            )
            hardware = profile(model.to(device), *args, seconds=arguments.seconds, **kwargs)
        else:
            hardware = profile(seconds=arguments.seconds)
        if not distributed or dist.get_rank() == 0:
            if arguments.output:
                hardware.save(arguments.output)
            else:
                print(hardware.dumps(), end="")
    finally:
        if distributed:
            dist.destroy_process_group()


def _upgrade(arguments: argparse.Namespace) -> None:
    from osdp.cli.upgrade_files import upgrade

    for path in arguments.paths:
        for line in upgrade(path):
            print(line)


def _build(where: str, meta: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Model, positional and keyword arguments of its sample, from the function named by `where`."""
    import torch
    from torch import nn

    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise InvalidProblemError(f"--module {where}: write FILE.py:FUNCTION or package.module:FUNCTION")
    try:
        function = getattr(_import(place), name)
    except OSDPError:
        raise
    except AttributeError:
        raise InvalidProblemError(f"--module {where}: {place} has no function {name!r}") from None
    except Exception as error:
        raise InvalidProblemError(
            f"--module {where}: importing failed: {type(error).__name__}: {error}"
        ) from error
    try:
        with torch.device("meta") if meta else nullcontext():
            built = function()
    except Exception as error:
        raise InvalidProblemError(
            f"--module {where}: {name}() failed: {type(error).__name__}: {error}"
        ) from error
    model, sample = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module):
        raise InvalidProblemError(
            f"--module {where}: {name}() must return (model, sample), not {type(built).__name__}"
        )
    if sample is None or (isinstance(sample, (tuple, list, dict)) and not sample):
        raise InvalidProblemError(
            f"--module {where}: {name}() returned a model without a sample, so nothing is known of its activations: "
            "return (model, (inputs,)), with the arguments of one forward as a tuple or a dict"
        )
    if isinstance(sample, dict):
        return model, (), sample
    return model, tuple(sample) if isinstance(sample, (tuple, list)) else (sample,), {}


def _import(place: str) -> Any:
    path = Path(place)
    if path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
    if not path.is_file():
        raise InvalidProblemError(f"--module: there is no file {place}")
    sys.path.insert(0, str(path.parent.resolve()))  # as for `python FILE.py`: it may import its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _count_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a positive number nor 'auto'")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
