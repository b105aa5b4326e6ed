"""The commands. Modules are loaded when a command needs them: `osdp diff` never imports torch."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from osdp.cli.files import STANDARD, check_output, check_picture, read, read_either
from osdp.errors import InvalidProblemError, OSDPError

if TYPE_CHECKING:
    from torch import nn

    from osdp.description.model_description import ModelDescription
    from osdp.hardware.hardware import Hardware
    from osdp.plan.parallel_plan import ParallelPlan
    from osdp.plan.plan import Plan

# Options of `osdp search` that are not passed on as they are.
_NOT_SEARCHED = {
    *("command", "module", "hf_config", "meta", "sequence_length", "description", "output", "json"),
    *("memory", "hardware", "tp_plan"),
}


def describe(arguments: argparse.Namespace) -> None:
    check_output("-o", arguments.output)
    found = _described(arguments)
    if arguments.output not in (None, STANDARD):
        found.save(arguments.output)
    if arguments.json or arguments.output == STANDARD:
        print(found.dumps(), end="")
    else:
        from osdp.show.description_table import table

        _show(table(found))


def search(arguments: argparse.Namespace) -> None:
    from osdp.base.byte_sizes import parse_bytes

    try:
        from osdp.planning.arguments import THIS_MACHINE
        from osdp.planning.search import search
    except ImportError as error:
        raise OSDPError(f"the planner is not built ({error}); reinstall osdp: pip install .") from error

    memory = parse_bytes(arguments.memory) if arguments.memory is not None else None
    if arguments.world_size is not None and arguments.world_size < 1:
        raise InvalidProblemError(f"--world-size {arguments.world_size}: must be at least 1")
    check_output("-o", arguments.output)
    given = vars(arguments).items()
    options: dict[str, Any] = {k: v for k, v in given if k not in _NOT_SEARCHED and v is not None}
    if arguments.tp_plan is not None:
        options["tp_plan"] = dict(arguments.tp_plan)
    this = arguments.hardware == THIS_MACHINE
    if this and arguments.module is None:
        raise InvalidProblemError("--hardware this measures a model's operators too: it needs --module")
    hardware = THIS_MACHINE if this else _hardware(arguments.hardware)
    model, sample = _model_and_sample(arguments)
    if arguments.hf_config is not None:  # its sample's batch is nobody's
        options.setdefault("batch_size", "auto")
    found = search(model, sample, memory=memory, hardware=hardware, **options)
    if arguments.output not in (None, STANDARD):
        found.save(arguments.output)
    if arguments.json or arguments.output == STANDARD:
        print(found.dumps(), end="")
    else:
        _show(found.__rich__())


def verify(arguments: argparse.Namespace) -> int:
    """Returns 1 and reports on standard error if a claim of the plan is false."""
    from osdp.planning.verify import verify

    wrong = verify(_any_plan(arguments.plan), search=arguments.search)
    if wrong:
        print(f"osdp: {arguments.plan}: {' '.join(wrong.split())}", file=sys.stderr)
        return 1
    print(
        "everything that the plan states holds"
        + (", and a search by this version finds the same plan" if arguments.search else "")
    )
    return 0


def explain(arguments: argparse.Namespace) -> None:
    from osdp.show.explain import explained

    _show(explained(_plan(arguments.plan), search=not arguments.no_search))


def diff(arguments: argparse.Namespace) -> None:
    found = _plan(arguments.plan).diff(_plan(arguments.other))
    print(found or "the plans make the same decisions\n", end="")


def frontier(arguments: argparse.Namespace) -> None:
    from osdp.show.frontier_plot import plot, table

    check_picture(arguments.plot)
    found = _plan(arguments.plan).frontier(points=arguments.points)
    if arguments.plot:
        plot(found).figure.savefig(arguments.plot, dpi=150)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(point) for point in found.points], indent=1))
    else:
        _show(table(found))


def simulate(arguments: argparse.Namespace) -> None:
    from osdp.plan.parallel_plan import ParallelPlan
    from osdp.plan.timeline import Timeline

    check_picture(arguments.plot)
    check_output("--trace", arguments.trace)
    plan = _any_plan(arguments.plan)
    if isinstance(plan, ParallelPlan):
        for option in ("hardware", "world_size", "measured", "trace", "plot"):
            if getattr(arguments, option) is not None:
                raise InvalidProblemError(
                    f"--{option.replace('_', '-')} is for plans without degrees: of a plan with stages a step is played "
                    "on its own hardware and ranks, and shown as text or --json"
                )
        played = plan.simulate()
        return print(json.dumps(dataclasses.asdict(played))) if arguments.json else _show(played)
    step = plan.simulate(_hardware(arguments.hardware), arguments.world_size)
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


def profile(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from osdp.cli.model_source import build
    from osdp.profiling.each_rank import each
    from osdp.profiling.profile import profile
    from osdp.ranks.rank_group import Together

    check_output("-o", arguments.output)
    distributed = "RANK" in os.environ and "WORLD_SIZE" in os.environ  # torchrun
    accelerator = torch.accelerator.current_accelerator(check_available=True)
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
                ranks, "building the model", lambda: build(arguments.module, meta=False)
            )
            hardware = profile(model.to(device), *args, seconds=arguments.seconds, **kwargs)
        else:
            hardware = profile(seconds=arguments.seconds)
        if not distributed or dist.get_rank() == 0:
            if arguments.output not in (None, STANDARD):
                hardware.save(arguments.output)
                _show(hardware)
            else:
                print(hardware.dumps(), end="")
    finally:
        if distributed:
            dist.destroy_process_group()


def export(arguments: argparse.Namespace) -> None:
    from osdp.checkpoint.export import export

    for path in export(arguments.checkpoint, arguments.target, max_shard=arguments.max_shard):
        print(path)


def _described(arguments: argparse.Namespace) -> ModelDescription:
    if getattr(arguments, "description", None) is not None:
        from osdp.description.model_description import ModelDescription

        if arguments.meta or arguments.sequence_length is not None:
            raise InvalidProblemError(
                "--meta and --sequence-length apply to --module and --hf-config, not to --description"
            )
        return read(ModelDescription, arguments.description)
    from osdp.cli.model_source import model_of
    from osdp.description.describe import describe

    model, args, kwargs = model_of(arguments)
    precision = getattr(arguments, "precision", None) or "fp32"
    return describe(model, *args, precision=precision, device=getattr(arguments, "device", None), **kwargs)


def _model_and_sample(arguments: argparse.Namespace) -> tuple[nn.Module | ModelDescription, Any]:
    if arguments.description is not None:
        return _described(arguments), None
    from osdp.cli.model_source import model_of

    model, args, kwargs = model_of(arguments)
    return model, args or kwargs


def _plan(path: str) -> Plan:
    from osdp.plan.plan import Plan

    return read(Plan, path)


def _any_plan(path: str) -> Plan | ParallelPlan:
    """A plan, or one of several degrees of parallelism."""
    from osdp.plan.parallel_plan import ParallelPlan
    from osdp.plan.plan import Plan

    found: Plan | ParallelPlan = read_either(Plan, ParallelPlan, path)
    return found


def _hardware(name_or_path: str | None) -> Hardware | None:
    from osdp.hardware.hardware import Hardware

    return None if name_or_path is None else read(Hardware, name_or_path)


def _show(renderable: Any) -> None:
    """In colour and as wide as the terminal, or as plain text where there is none."""
    from rich.console import Console

    from osdp.base.printed import plain

    text = plain(renderable)
    if sys.stdout.isatty() and text.isascii() | ("utf" in (sys.stdout.encoding or "").lower()):
        Console().print(renderable)
    else:
        print(plain(renderable), end="")
