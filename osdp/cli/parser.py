"""The commands and their options. Options' valid values come from the modules that implement them."""

from __future__ import annotations

import argparse
from functools import partial

from osdp._search import RECOMPUTES
from osdp.cli import commands
from osdp.cli.suggestions import Parser
from osdp.hardware.hardware import known_machines
from osdp.plan.parallel_plan import SCHEDULES
from osdp.plan.precisions import PRECISIONS
from osdp.plan.searched import COSTS, METHODS, OBJECTIVES
from osdp.planning.arguments import DEFAULT_HARDWARE
from osdp.planning.optimizer_states import OPTIMIZERS
from osdp.version import __version__

_PLAN = "a plan file; - reads standard input"
_MACHINES = (
    f"one of {', '.join(known_machines())}, or a file written by `osdp profile`; - reads standard input"
)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="osdp", description="Optimal Sharded Data Parallel for PyTorch")
    parser.add_argument("--version", action="version", version=f"osdp {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _describe,
        _search,
        _verify,
        _explain,
        _diff,
        _frontier,
        _simulate,
        _profile,
        _export,
    ):
        add(subparsers)
    return parser


def _add_model(parser: argparse.ArgumentParser, what: argparse._MutuallyExclusiveGroup) -> None:
    what.add_argument(
        "--module",
        metavar="WHERE",
        help="a function that returns (model, sample), as FILE.py:FUNCTION or package.module:FUNCTION",
    )
    what.add_argument(
        "--hf-config",
        metavar="CONFIG.json",
        help="a config.json of transformers; the model's weights are never allocated",
    )
    parser.add_argument(
        "--meta", action="store_true", help="build the model on the meta device, without memory for weights"
    )
    parser.add_argument(
        "--sequence-length", type=_count, metavar="N", help="length of the sample in tokens, with --hf-config"
    )


def _add_output(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON instead of a table")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"write {what} to FILE; - is the same as --json"
    )


def _describe(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser("describe", help="show a model's operators with their bytes and FLOPs")
    _add_model(parser, parser.add_mutually_exclusive_group(required=True))
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="what will train the model: cpu, or cuda; default: where it is, else cpu",
    )
    _add_output(parser, "the description")
    parser.set_defaults(command=commands.describe)


def _search(subparsers: argparse._SubParsersAction[Parser]) -> None:
    search = subparsers.add_parser("search", help="find the fastest plan that fits in memory")
    what = search.add_mutually_exclusive_group(required=True)
    _add_model(search, what)
    what.add_argument(
        "--description", metavar="FILE", help="a file written by `osdp describe -o`; - reads standard input"
    )
    search.add_argument(
        "--memory", metavar="SIZE", help="memory limit per rank, such as 16GiB; default: the hardware's"
    )
    search.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="number of ranks that will train; default: the hardware's",
    )
    search.add_argument(
        "--hardware",
        metavar="NAME|FILE|this",
        help=f"{_MACHINES}; this: measure this machine now, with --module; default: {DEFAULT_HARDWARE}",
    )
    search.add_argument(
        "--batch-size",
        type=_count_or_auto,
        metavar="N|auto",
        help="samples per rank; auto: the best size; default: the sample's, and auto with --description",
    )
    search.add_argument("--global-batch-size", type=int, metavar="N", help="samples per step over all ranks")
    search.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help="default: adamw")
    search.add_argument("--precision", choices=tuple(PRECISIONS), help="default: fp32")
    search.add_argument("--cost", choices=COSTS, help="cost model; default: osdp")
    search.add_argument(
        "--method", choices=METHODS, help="search method; default: exact, the others are the paper's"
    )
    search.add_argument(
        "--granularity",
        type=_counts_or_auto,
        metavar="N,N|auto",
        help="numbers of slices to try for an operator; default: auto",
    )
    search.add_argument(
        "--checkpoint",
        type=_ways,
        metavar="WAY,WAY|auto",
        help=f"recomputations to try for a block: {', '.join(RECOMPUTES)}; default: auto, all of them",
    )
    search.add_argument(
        "--hosts", type=_count, metavar="N", help="number of hosts; every host has the same number of ranks"
    )
    search.add_argument(
        "--whole",
        action="append",
        metavar="PATTERN",
        help="names or patterns of modules or parameters that every rank holds in full, such as 'head' or "
        "'*.norm?'; repeatable",
    )
    search.add_argument(
        "--modes",
        type=lambda text: text.split(","),
        metavar="MODE,MODE",
        help="the modes that a plan may use; default: all that apply",
    )
    search.add_argument(
        "--prefetch",
        type=partial(_count_or_auto, least=0),
        metavar="N|auto",
        help="how many units are gathered ahead; default: auto, as many as are fastest",
    )
    search.add_argument(
        "--separate-reductions",
        action="store_const",
        const=True,
        help="reduce gradients in a process group of their own",
    )
    for degree in ("tensor", "pipeline"):
        search.add_argument(
            f"--{degree}-parallel",
            type=_count_or_auto,
            metavar="N|auto",
            help=f"degree of {degree} parallelism; auto: the fastest; with one of the two the plan has stages",
        )
    search.add_argument(
        "--tp-plan",
        type=_style,
        action="append",
        metavar="PATTERN=STYLE",
        help="what tensor parallelism divides, such as '*.up=colwise'; repeatable",
    )
    search.add_argument(
        "--schedule", choices=("auto", *SCHEDULES), help="of the stages; default: auto, the faster of both"
    )
    search.add_argument(
        "--gap",
        type=float,
        metavar="FRACTION",
        help="the search ends when its plan's simulated step is within this fraction of the bound; default: 0.005",
    )
    search.add_argument("--objective", choices=OBJECTIVES, help="default: throughput")
    search.add_argument(
        "--at-least", type=float, metavar="SAMPLES/S", help="the throughput to reach, with --objective memory"
    )
    search.add_argument("--time-limit", type=float, metavar="SECONDS", help="time limit of the search")
    _add_output(search, "the plan")
    search.set_defaults(command=commands.search)


def _verify(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser("verify", help="check everything that a plan states, from its file alone")
    parser.add_argument("plan", metavar="PLAN.json", help=_PLAN)
    parser.add_argument(
        "--search",
        action="store_true",
        help="also repeat the search, which checks what no certificate proves",
    )
    parser.set_defaults(command=commands.verify)


def _explain(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser("explain", help="show a plan and the reasons for its choices")
    parser.add_argument("plan", metavar="PLAN.json", help=_PLAN)
    parser.add_argument(
        "--no-search",
        action="store_true",
        help="leave out what other memory limits and batch sizes would give",
    )
    parser.set_defaults(command=commands.explain)


def _diff(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser("diff", help="show how a second plan differs")
    parser.add_argument("plan", metavar="PLAN.json", help=_PLAN)
    parser.add_argument("other", metavar="OTHER.json", help=_PLAN)
    parser.set_defaults(command=commands.diff)


def _frontier(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser(
        "frontier", help="show the throughput of the best plans under other memory limits"
    )
    parser.add_argument("plan", metavar="PLAN.json", help=_PLAN)
    parser.add_argument(
        "--points", type=_count, default=16, metavar="N", help="number of limits (default 16)"
    )
    parser.add_argument("--json", action="store_true", help="print the points as JSON instead of a table")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the points (needs matplotlib)")
    parser.set_defaults(command=commands.frontier)


def _simulate(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser(
        "simulate", help="simulate a step of a plan: the timeline of events, and memory"
    )
    parser.add_argument("plan", metavar="PLAN.json", help=_PLAN)
    parser.add_argument(
        "--hardware", metavar="NAME|FILE", help=f"use this hardware instead of the plan's: {_MACHINES}"
    )
    parser.add_argument(
        "--world-size", type=_count, metavar="N", help="simulate this number of ranks; default: the plan's"
    )
    parser.add_argument(
        "--measured",
        metavar="FILE.json",
        help="compare with a step recorded by torch.profiler (export_chrome_trace)",
    )
    parser.add_argument("--json", action="store_true", help="print events and memory as JSON")
    parser.add_argument("--trace", metavar="FILE.json", help="write a trace for https://ui.perfetto.dev")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the timeline (needs matplotlib)")
    parser.set_defaults(command=commands.simulate)


def _profile(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser("profile", help="measure this machine; works under torchrun too")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the figures to FILE; default: print them"
    )
    parser.add_argument(
        "--module",
        metavar="WHERE",
        help="also measure the operators of a model: a function that returns (model, sample), as "
        "FILE.py:FUNCTION or package.module:FUNCTION",
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="how long to measure, approximately (default 10)"
    )
    parser.set_defaults(command=commands.profile)


def _export(subparsers: argparse._SubParsersAction[Parser]) -> None:
    parser = subparsers.add_parser(
        "export", help="write a checkpoint's weights as safetensors, in Hugging Face's layout"
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a directory written by osdp.save")
    parser.add_argument("target", metavar="DIR", help="directory for model.safetensors")
    parser.add_argument(
        "--max-shard", default="5GB", metavar="SIZE", help="largest size of one file (default 5GB)"
    )
    parser.set_defaults(command=commands.export)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _counts_or_auto(text: str) -> str | list[int]:
    return text if text == "auto" else [_count(part) for part in text.split(",")]


def _ways(text: str) -> str | list[str]:
    ways = text.split(",")
    for way in ways:
        if text != "auto" and way not in RECOMPUTES:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {way!r} (choose from auto, {', '.join(RECOMPUTES)})"
            )
    return text if text == "auto" else ways


def _style(text: str) -> tuple[str, str]:
    pattern, _, style = text.rpartition("=")
    if not pattern or not style:
        raise argparse.ArgumentTypeError(f"{text!r}: a module's name or pattern, =, and its style")
    return pattern, style


def _count_or_auto(text: str, least: int = 1) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from {least} on nor 'auto'")
    return int(text)
