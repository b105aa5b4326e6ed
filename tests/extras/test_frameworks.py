"""The examples of frameworks: losses are DDP's, and either goes on from what the other saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from training_scripts import TORCHRUN, figures_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
RUNNERS = {"lightning": [sys.executable], "accelerate": TORCHRUN, "trainer": TORCHRUN}
NEEDS = {"lightning": "lightning", "accelerate": "accelerate", "trainer": "accelerate"}
# Less than the model, its gradients and its optimizer's state take.
MEMORY = {"lightning": "3.5MiB", "accelerate": "3.5MiB", "trainer": "3.5MiB"}


def run(framework: str, *options: object) -> dict[str, Any]:
    return figures_of([*RUNNERS[framework], str(EXAMPLES / f"train_{framework}.py"), *map(str, options)])


@pytest.mark.parametrize("framework", RUNNERS)
def test_losses_are_those_under_ddp_also_of_a_run_that_was_resumed(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[framework])
    places = {"ddp": tmp_path / "ddp", "osdp": tmp_path / "osdp"}
    plan = {"ddp": [], "osdp": ["--memory", MEMORY[framework]]}
    first = {how: run(framework, *plan[how], "--directory", places[how]) for how in places}
    assert first["osdp"]["losses"] == pytest.approx(first["ddp"]["losses"], rel=1e-4)
    assert first["osdp"].get("validation", []) == pytest.approx(first["ddp"].get("validation", []), rel=1e-4)
    assert first["osdp"]["held parameters"] < first["ddp"]["held parameters"]
    if framework == "lightning":
        planned_before = run(framework, *plan["osdp"], "--sample", "--directory", tmp_path / "sample")
        assert planned_before["losses"] == pytest.approx(first["ddp"]["losses"], rel=1e-4)
    wanted = run(framework, *plan["ddp"], *resuming(framework, places["ddp"]))
    for how, other in (("osdp", "osdp"), ("osdp", "ddp"), ("ddp", "osdp")):
        resumed = run(framework, *plan[how], *resuming(framework, places[other]))
        assert resumed["losses"] == pytest.approx(wanted["losses"], rel=1e-3), (how, other)


def resuming(framework: str, place: Path) -> list[object]:
    if framework == "lightning":
        return ["--directory", place / "resumed", "--resume", place / "last.ckpt", "--steps", 12]
    if framework == "trainer":
        return ["--directory", place / "resumed", "--resume", place / "checkpoint-6", "--steps", 9]
    return ["--resume", place, "--steps", 3]
