"""The command line: what it prints, and that every failure is one line and exit code 2."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from osdp.cli.main import main
from osdp.description.describe import describe
from osdp.errors import InfeasibleError
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.planning.arguments import arguments_of

MODELS = """
import torch
from torch import nn
import neighbour

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.zeros(neighbour.BATCH, 8)

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        assert self.layer.weight.is_meta == neighbour.META
    def forward(self, *, x, y):
        return self.layer(x) + y

def keywords():
    return Named(), {"x": torch.zeros(2, 8), "y": torch.zeros(2, 8)}

def bare():
    return nn.Linear(3, 3)

def bare_and_none():
    return nn.Linear(3, 3), None

def bare_and_empty():
    return nn.Linear(3, 3), ()

def broken():
    raise KeyError("weights.bin")

def nothing():
    return 5
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    (tmp_path / "cli_models.py").write_text(MODELS)
    (tmp_path / "neighbour.py").write_text("BATCH = 3\nMETA = False\n")
    sys.modules.pop("neighbour", None)
    return str(tmp_path / "cli_models.py")


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for the search, which has its own tests: notes what it is asked, answers FULL_SHARD."""
    asked: list[dict[str, Any]] = []

    def search(model: nn.Module, sample: tuple[Any, ...] | dict[str, Any], **options: Any) -> Plan:
        args, kwargs = arguments_of(sample)
        description = describe(model, *args, **kwargs)
        asked.append({"description": description, **options})
        if options["memory"] < 100:
            raise InfeasibleError("no plan fits 64 B;\nthe smallest that fits is 1.00 KiB", 1024)
        return Plan.uniform(description)

    monkeypatch.setattr("osdp.planning.search.search", search)
    return asked


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("osdp: ")
    return err


def test_search_passes_everything_on_and_writes_the_plan(
    models: str, searched: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    argv = [
        "search",
        "--module",
        f"{models}:build",
        "--memory",
        "2GiB",
        "--world-size",
        "8",
        "--hardware",
        "a100-8",
    ]
    assert (
        main(
            [
                *argv,
                "--batch-size",
                "4",
                "--method",
                "dfs",
                "--granularity",
                "auto",
                "--whole",
                "head",
                "--whole",
                "*.norm",
                "-o",
                str(plan),
            ]
        )
        == 0
    )
    (asked,) = searched
    assert (
        asked["memory"] == 2**31 and asked["world_size"] == 8 and asked["hardware"] == Hardware.load("a100-8")
    )
    assert asked["whole"] == ["head", "*.norm"]
    assert asked["batch_size"] == 4 and asked["method"] == "dfs" and asked["granularity"] == "auto"
    assert asked["description"].sample_batch == 3
    assert not {"cost", "precision", "checkpoint"} & set(asked), "what was not given is left to the search"
    assert Plan.load(plan) == Plan.uniform(asked["description"])
    assert "FULL_SHARD" in capsys.readouterr().out


def test_search_prints_json_on_request(
    models: str, searched: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["search", "--module", f"{models}:keywords", "--memory", "1GB", "--world-size", "1", "--json"]
    assert main(argv) == 0
    assert set(Plan.loads(capsys.readouterr().out).choices) == {"layer"}


def test_search_can_build_on_the_meta_device(models: str, searched: list[dict[str, Any]]) -> None:
    (Path(models).parent / "neighbour.py").write_text("BATCH = 3\nMETA = True\n")
    assert (
        main(["search", "--module", f"{models}:keywords", "--memory", "1GB", "--world-size", "1", "--meta"])
        == 0
    )
    assert searched[0]["description"].sample_batch == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"--memory": "64B"}, "smallest that fits is 1.00 KiB"),
        ({"--memory": "8"}, "is not a size"),
        ({"--world-size": "0"}, "--world-size 0"),
        ({"--hardware": "cray-1"}, "rtx-titan-8"),
        ({"--module": "build"}, "write FILE.py:FUNCTION"),
        ({"--module": "{}:missing"}, "no function 'missing'"),
        ({"--module": "{}:broken"}, "KeyError: 'weights.bin'"),
        ({"--module": "{}:nothing"}, "must return (model, sample)"),
        ({"--module": "{}:bare"}, "return (model, (inputs,))"),
        ({"--module": "{}:bare_and_none"}, "return (model, (inputs,))"),
        ({"--module": "{}:bare_and_empty"}, "return (model, (inputs,))"),
        ({"--module": "/nowhere/m.py:build"}, "no such file: /nowhere/m.py"),
        ({"--module": "no.such.package:build"}, "ModuleNotFoundError"),
        ({"-o": "/nowhere/plan.json"}, "/nowhere"),
    ],
)
def test_bad_input_to_search_is_one_line(
    models: str,
    searched: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    says: str,
) -> None:
    options = {"--module": "{}:build", "--memory": "1GiB", "--world-size": "2"} | changes
    argv = [word.format(models) for pair in options.items() for word in pair]
    assert says in fails(capsys, "search", *argv)


def test_search_for_real(models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    argv = ["search", "--module", f"{models}:build", "--world-size", "2", "--hardware", "rtx-titan-8"]
    assert main([*argv, "--memory", "1GiB", "-o", str(plan)]) == 0
    found = Plan.load(plan)
    assert set(found.choices) == {"0", "2"} and found.world_size == 2 and found.predicted is not None
    assert found.predicted.peak_memory_bytes <= 2**30
    assert "peak memory" in capsys.readouterr().out
    assert "smallest that fits" in fails(capsys, *argv, "--memory", "100B")

    assert main(["explain", str(plan)]) == 0
    assert "Why a batch of" in capsys.readouterr().out
    assert main(["explain", str(plan), "--no-search"]) == 0
    text = capsys.readouterr().out
    assert "Why a batch of" not in text and "Why each choice" in text


def test_frontier_of_a_plan(models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, picture = tmp_path / "plan.json", tmp_path / "frontier.png"
    argv = ["search", "--module", f"{models}:build", "--world-size", "2", "--hardware", "rtx-titan-8"]
    assert main([*argv, "--memory", "64KiB", "-o", str(plan)]) == 0
    capsys.readouterr()
    assert main(["frontier", str(plan), "--points", "4", "--plot", str(picture)]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["frontier", str(plan), "--points", "4", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert points == [dataclasses.asdict(p) for p in Plan.load(plan).frontier(points=4).points]
    Plan.uniform(Plan.load(plan).description).save(plan)
    assert "not made by osdp.search" in fails(capsys, "frontier", str(plan))


CONFIGS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 99},
    "LlamaForCausalLM": {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 64,
    },
    "BertForSequenceClassification": {
        "model_type": "bert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 99, "max_position_embeddings": 64,
    },
    "T5ForConditionalGeneration": {
        "model_type": "t5", "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 99,
        "n_positions": 64,
    },
    "SwinForImageClassification": {
        "model_type": "swin", "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "image_size": 64, "window_size": 4,
    },
}  # fmt: skip


# One each of words, of two sequences, and of pictures; the others take the same inputs as these.
ALIKE = ("LlamaForCausalLM", "BertForSequenceClassification")


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=[pytest.mark.extras] * (name in ALIKE)) for name in (*CONFIGS, None)],
)
def test_search_of_a_transformers_config(architecture: str | None, tmp_path: Path) -> None:
    config, plan = tmp_path / "config.json", tmp_path / "plan.json"
    named = {"architectures": [architecture]} if architecture else {}
    config.write_text(json.dumps(CONFIGS[architecture or "GPT2LMHeadModel"] | named))
    argv = [
        "search",
        "--hf-config",
        str(config),
        "--memory",
        "2GiB",
        "--world-size",
        "8",
        "--hardware",
        "a100-8",
    ]
    length = [] if architecture and architecture.startswith("Swin") else ["--sequence-length", "16"]
    assert main([*argv, *length, "-o", str(plan)]) == 0
    found = Plan.load(plan)
    assert found.description.name == (architecture or "GPT2Model") and found.description.sample_batch == 1
    assert all(o.traced for o in found.description.operators if o.kind == "Linear")
    assert len(found.description.blocks) >= 2


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ('{"model_type": "gpt2"', [], "truncated"),
        ("[]", [], "no field 'model_type'"),
        ('{"model_type": "gpt99"}', [], "cannot build the model"),
        ('{"model_type": "gpt2", "n_embd": 30, "n_head": 4}', [], "cannot build the model"),
        ('{"model_type": "gpt2", "n_embd": "wide"}', [], "cannot build the model"),
        (None, [], "config.json"),
    ],
)
def test_a_bad_config_is_one_line(
    text: str | None, options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    if text is not None:
        config.write_text(text)
    argv = ["search", "--hf-config", str(config), "--memory", "1GiB", "--world-size", "8", *options]
    assert says in fails(capsys, *argv)


def test_a_sequence_length_needs_a_config(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["search", "--module", f"{models}:build", "--memory", "1GiB", "--world-size", "8"]
    assert "--hf-config" in fails(capsys, *argv, "--sequence-length", "8")


WRONG = """
search
fly
explain
search --batch-size -3
search --memory 1GiB --world-size 8
search --memory 1GiB --world-size 8 --module m:f --hf-config c.json
frontier plan.json --points 0
"""


@pytest.mark.parametrize("argv", [line.split() for line in [*WRONG.strip().splitlines()]])
def test_wrong_arguments_exit_with_2_and_show_the_usage(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2 and "usage: osdp" in capsys.readouterr().err


def test_explain_shows_a_plan_and_the_difference_to_another(
    models: str, searched: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    argv = ["search", "--module", f"{models}:build", "--memory", "1GB", "--world-size", "1", "-o", str(first)]
    assert main(argv) == 0
    plan = Plan.load(first)
    plan.replace({"0": Choice("NO_SHARD")}).save(second)
    capsys.readouterr()
    assert main(["explain", str(first)]) == 0
    assert capsys.readouterr().out == plan.explain()
    assert main(["diff", str(first), str(second)]) == 0
    assert capsys.readouterr().out == "0: FULL_SHARD -> NO_SHARD\n"
    assert main(["diff", str(first), str(first)]) == 0
    assert "the same" in capsys.readouterr().out


def test_explain_of_what_is_no_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert "nothing.json" in fails(capsys, "explain", str(tmp_path / "nothing.json"))
    path.write_text('{"osdp": "plan", "version": 1, "choi')
    assert "truncated" in fails(capsys, "explain", str(path))
    path.write_text(Hardware.load("a100-8").dumps())
    assert "not an osdp 'plan' file" in fails(capsys, "explain", str(path))
    assert fails(capsys, "explain", str(tmp_path))


def test_profile_writes_figures_that_load(
    models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.json"
    assert main(["profile", "--seconds", "0.2", "--module", f"{models}:build", "-o", str(path)]) == 0
    assert capsys.readouterr().out == str(Hardware.load(path))
    assert {"0", "2"} <= set(Hardware.load(path).gamma_s)
    assert main(["profile", "--seconds", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["world_size"] == 1
    assert "KeyError" in fails(capsys, "profile", "--seconds", "0.2", "--module", f"{models}:broken")
    assert "seconds" in fails(capsys, "profile", "--seconds", "-1")
