"""The command line's manners: versions and choices, standard input, outputs checked first, one line for failures."""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import osdp
from osdp.cli import commands, parser
from osdp.cli.main import main
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware, known_machines
from osdp.plan.parallel_plan import ParallelPlan
from osdp.plan.plan import Plan
from osdp.planning.arguments import DEFAULT_HARDWARE
from osdp.planning.optimizer_states import OPTIMIZERS

MODELS = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.zeros(3, 8)

def wrong_sample():
    return nn.Sequential(nn.Linear(8, 16)), torch.zeros(3, 9)
"""
MACHINE = ("--world-size", "2", "--hardware", "rtx-titan-8", "--batch-size", "4")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "cli_models.py").write_text(MODELS)
    return tmp_path / "cli_models.py"


@pytest.fixture
def plan(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.json"
    argv = ["search", "--module", f"{models}:build", "--memory", "1GiB", *MACHINE]
    assert main([*argv, "-o", str(path)]) == 0
    capsys.readouterr()
    return path


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("osdp: ")
    return err


def test_python_m_osdp_is_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "osdp", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, f"osdp {osdp.__version__}\n", "")


def test_help_tells_what_every_option_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["search", "--help"])
    assert caught.value.code == 0
    told = "".join(capsys.readouterr().out.split())  # argparse breaks lines within names
    choices = (
        *OPTIMIZERS,
        "bf16-reduce-fp32",
        "dfs-smallest-first",
        "paper",
        "memory",
        "none",
        *known_machines(),
    )
    assert [name for name in choices if name not in told] == []


@pytest.mark.parametrize("option", ["optimizer", "precision", "cost", "method", "objective", "checkpoint"])
def test_what_is_no_choice_shows_the_choices(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["search", "--module", "m:f", "--memory", "1GiB", "--world-size", "2", f"--{option}", "fast"])
    assert caught.value.code == 2 and "choose from" in capsys.readouterr().err


def test_describe_writes_what_search_reads(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "description.json"
    assert main(["describe", "--module", f"{models}:build", "-o", str(path)]) == 0
    table = capsys.readouterr().out
    assert "Sequential: 212 parameters" in table and "Linear" in table
    assert main(["describe", "--module", f"{models}:build", "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert ModelDescription.loads(text) == ModelDescription.load(path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["search", "--description", "-", "--memory", "1GiB", *MACHINE, "--json"]) == 0
    assert Plan.loads(capsys.readouterr().out).description == ModelDescription.load(path)
    argv = ("search", "--description", str(path), "--memory", "1GiB", *MACHINE)
    assert "not to --description" in fails(capsys, *argv, "--meta")


def test_verify_says_what_holds(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(plan)]) == 0
    assert "holds" in capsys.readouterr().out
    assert main(["verify", str(plan), "--search"]) == 0
    capsys.readouterr()
    text = plan.read_text()
    peak = Plan.load(plan).predicted.peak_memory_bytes  # type: ignore[union-attr]
    plan.write_text(text.replace(f'"peak_memory_bytes": {peak}', f'"peak_memory_bytes": {peak - 1}'))
    assert plan.read_text() != text
    assert main(["verify", str(plan)]) == 1
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.startswith(f"osdp: {plan}: ")
        and "peak_memory_bytes" in err
        and err.count("\n") == 1
    )


def test_plans_and_hardware_come_from_standard_input(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    given(plan.read_text())
    assert main(["explain", "--no-search", "-"]) == 0
    given(plan.read_text())
    assert main(["diff", str(plan), "-"]) == 0
    assert "the same" in capsys.readouterr().out
    given(Hardware.load("a100-8").dumps())
    assert main(["simulate", str(plan), "--hardware", "-", "--json"]) == 0
    capsys.readouterr()
    given(plan.read_text())
    assert "only one argument may be -" in fails(capsys, "diff", "-", "-")
    given(plan.read_text()[:50])
    assert "standard input: " in fails(capsys, "explain", "-")


@pytest.mark.parametrize(
    ("option", "name", "says"),
    [
        ("-o", "missing/plan.json", "no such directory"),
        ("-o", ".", "is a directory; give a file"),
        ("-o", "cli_models.py/plan.json", "no such directory"),
        ("-o", "/proc/plan.json", "is not writable"),
        ("--plot", "missing/frontier.png", "no such directory"),
        ("--plot", "frontier.excel", "must end in one of"),
        ("--plot", "frontier", "must end in one of"),
        ("--trace", "missing/step.json", "no such directory"),
    ],
)
def test_outputs_are_checked_before_the_work(
    option: str,
    name: str,
    says: str,
    models: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worked(*_: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(commands, "_plan", worked)
    monkeypatch.setattr(commands, "_described", worked)
    monkeypatch.chdir(models.parent)
    argv = {
        "-o": ("search", "--module", f"{models}:build", "--memory", "1GiB", *MACHINE),
        "--plot": ("frontier", "plan.json"),
        "--trace": ("simulate", "plan.json"),
    }[option]
    assert says in fails(capsys, *argv, option, name)
    assert sorted(os.listdir(models.parent)) == ["cli_models.py"]


def test_a_forward_that_fails_is_one_line(
    models: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    argv = ("search", "--module", f"{models}:wrong_sample", "--memory", "1GiB", *MACHINE)
    assert "the forward of Linear '0' failed" in fails(capsys, *argv)
    assert caplog.records == []
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


def test_ctrl_c_ends_it_without_a_traceback(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> Plan:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    monkeypatch.setattr(commands, "_plan", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        assert main(["explain", str(plan)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "osdp: interrupted\n")


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "describe",
        "search",
        "verify",
        "explain",
        "diff",
        "frontier",
        "simulate",
        "profile",
        "export",
    ):
        with pytest.raises(SystemExit) as caught:
            parser.make_parser().parse_args([name, "--help"])
        assert caught.value.code == 0 and f"usage: osdp {name}" in capsys.readouterr().out


def test_the_bare_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: osdp") and "search" in out and "profile" in out


def test_profile_into_a_file_shows_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Hardware.load("rtx-titan-8")
    monkeypatch.setattr("osdp.profiling.profile.profile", lambda *_, **__: machine)
    path = tmp_path / "here.json"
    assert main(["profile", "-o", str(path)]) == 0
    assert capsys.readouterr().out == str(machine) and Hardware.load(path) == machine


def test_every_option_of_search_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    told = capsys.readouterr().out
    options = set(inspect.signature(osdp.search).parameters) - {"model_or_desc", "sample"}
    assert {
        name for name in options if f"--{name.replace('_', '-')} " not in told.replace("]", " ]")
    } == set()


def test_the_other_flags_of_search_reach_it(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    argv = ["search", "--module", f"{models}:build", "--memory", "1GiB", *MACHINE, "-o", str(path)]
    assert main([*argv, "--modes", "NO_SHARD,FULL_SHARD", "--prefetch", "0", "--separate-reductions"]) == 0
    plan = Plan.load(path)
    assert plan.separate_reductions and plan.prefetch == 0 and plan.searched is not None
    assert set(plan.searched.modes) == {"NO_SHARD", "FULL_SHARD"}


def test_degrees_are_searched_verified_and_simulated(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "degrees.json"
    argv = ["search", "--module", f"{models}:build", "--memory", "1GiB", *MACHINE, "-o", str(path)]
    assert main([*argv, "--pipeline-parallel", "2", "--schedule", "gpipe", "--global-batch-size", "64"]) == 0
    plan = ParallelPlan.load(path)
    assert (plan.pipeline_parallel, plan.tensor_parallel, plan.schedule) == (2, 1, "gpipe")
    assert main(["verify", str(path)]) == 0 and main(["simulate", str(path)]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
    capsys.readouterr()
    assert main(["simulate", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == plan.simulate().step_time_s
    assert "--world-size is for plans without" in fails(capsys, "simulate", str(path), "--world-size", "8")
    damaged = tmp_path / "damaged.json"
    damaged.write_text(path.read_text().replace('"gpipe"', '"gpip"'))
    assert "schedule" in fails(capsys, "verify", str(damaged))
    with pytest.raises(SystemExit):
        main([*argv, "--tensor-parallel", "2", "--tp-plan", "nothing"])
    assert "a module's name or pattern" in capsys.readouterr().err


def test_what_search_assumes_by_default_the_command_does_too(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory and the number of ranks are the hardware's, and the batch is the sample's."""
    assert main(["search", "--module", f"{models}:build", "--json"]) == 0
    plan = Plan.loads(capsys.readouterr().out)
    machine = Hardware.load(DEFAULT_HARDWARE)
    assert (plan.world_size, plan.memory_limit_bytes) == (machine.world_size, machine.memory_bytes)
    assert plan.batch_size == 3, "dimension 0 of the sample"


def test_lists_of_granularities_and_recomputations_reach_the_search(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["search", "--module", f"{models}:build", "--memory", "1GiB", *MACHINE, "--json"]
    assert main([*argv, "--granularity", "2,4", "--checkpoint", "none,hold"]) == 0
    searched = Plan.loads(capsys.readouterr().out).searched
    assert searched is not None
    assert (searched.granularity, searched.checkpoint) == ((2, 4), ("none", "hold"))


def test_hardware_this_measures_this_machine(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["search", "--module", f"{models}:build", "--world-size", "1", "--hardware", "this", "--json"]
    assert main(argv) == 0
    plan = Plan.loads(capsys.readouterr().out)
    assert plan.hardware is not None and plan.hardware.measured is not None and plan.hardware.gamma_s
    assert "needs --module" in fails(
        capsys, "search", "--description", "d.json", "--memory", "1GiB", "--hardware", "this"
    )


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (("serach",), "search"),
        (("search", "--module", "m:f", "--memry", "1GiB"), "--memory"),
        (("search", "--module", "m:f", "--wrld-size=2"), "--world-size"),
        (("search", "--module", "m:f", "--optimizer", "adgrad"), "adagrad"),
        (("search", "--module", "m:f", "--checkpoint", "hodl"), "hold"),
        (("explain", "plan.json", "--nosearch"), "--no-search"),
    ],
)
def test_a_typing_error_gets_a_suggestion(
    argv: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2 and f"did you mean '{meant}'?" in capsys.readouterr().err


def test_what_is_like_nothing_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "--module", "m:f", "--qqqq", "1"])
    assert "did you mean" not in capsys.readouterr().err


def test_a_machine_that_is_nearly_known_is_suggested(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("search", "--module", f"{models}:build", "--hardware", "a100_8")
    assert "did you mean 'a100-8'?" in fails(capsys, *argv)
