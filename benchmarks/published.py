"""Predictions for assumed machines beside runs that others published: each played as the same plan.

    python benchmarks/published.py [--json results/published.json] [--picture results/published.svg] [--rows] [--quick]
                                   [--descriptions FOLDER]

Notes [Published runs] and [What is theirs] in support/published_runs.py say what is known of them, and which figures are
theirs. Printed are, by GPU, model and scale, predicted tokens/s over published ones, and the mean error; the same of runs
that were not fitted; of the H100 with the A100's shares; of both without each figure; and with today's attention,
which ships. Single runs that their neighbours contradict (a rule that was fixed before anything was fitted) are left out of
the means and listed. --rows prints every run. --descriptions keeps descriptions in a folder for the next call. --quick
leaves out what other figures would predict.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table
from support import mpt
from support.machine import machine
from support.published_picture import draw
from support.published_runs import (
    BANDWIDTH,
    FROM_A100,
    PEAK,
    SCALES,
    Change,
    Run,
    contradicted,
    machine_of,
    plan_of,
    products_changed,
    rates_changed,
    runs,
)

import osdp
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware

Row = Mapping[str, Any]
WITHIN, MOST_WITHIN = 0.20, 0.12  # goals: every run, and 95% of them
WITHOUT: Mapping[str, Change] = {
    "slow small products": rates_changed(half_rate_dimension=0.0),
    "attention's share": rates_changed(attention_share=1.0),
    "slow short attention": rates_changed(attention_half_intensity=0.0),
    "launches": rates_changed(launch_s=0.0),
    "stolen computation": lambda machine: replace(machine, stolen_computation=0.0),
    "NCCL's protocols": lambda machine: replace(machine, protocols=()),
}
HELD_OUT: Mapping[str, Callable[[Run], bool]] = {
    "16,384 tokens and more": lambda run: run.sequence >= 16384,
    "128 GPUs and more": lambda run: run.gpus >= 128,
    "30B and larger": lambda run: run.parameters > 2e10,
}


def described(run: Run, precision: str, folder: Path | None) -> ModelDescription:
    compute = precision.partition("-")[0]
    file = folder / f"{run.model}-{run.sequence}-{compute}.json" if folder is not None else None
    if file is not None and file.exists():
        return ModelDescription.load(file)
    model, sample = mpt.make(run.layers, run.width, run.heads, run.vocabulary, run.sequence)
    description = osdp.describe(model, *sample, precision=compute)
    if file is not None:
        description.save(file)
    return description


def predicted(run: Run, folder: Path | None, hardware: Hardware | None = None) -> dict[str, Any]:
    """In each reading of its precision: the first one counts, and is the only one where the machine is given."""
    precisions = run.precisions if hardware is None else run.precisions[:1]
    hardware = hardware or machine_of(run)
    readings = {}
    for precision in precisions:
        plan = plan_of(run, described(run, precision, folder), precision)
        played = plan.simulate(hardware, run.gpus, run.hosts)
        tokens_per_s = run.sequence * run.micro_batch * run.accumulation / played.step_time_s
        readings[precision] = {
            "tokens_per_s_per_gpu": tokens_per_s,
            "ratio": tokens_per_s / run.tokens_per_s_per_gpu,
            "compute_s": played.compute_s,
            "communication_s": played.communication_s,
            "overlap_s": played.overlap_s,
            "optimizer_s": played.optimizer_s,
            "peak_share": played.largest_peak_bytes / (hardware.memory_bytes or 1),
        }
    return {
        "run": run.name,
        "model": run.model,
        "gpu": run.gpu,
        "gpus": run.gpus,
        "sequence": run.sequence,
        "scale": run.scale,
        "published": run.tokens_per_s_per_gpu,
        "held_out": [group for group, belongs in HELD_OUT.items() if belongs(run)],
        "readings": readings,
        **readings[run.precisions[0]],
    }


def error(rows: Sequence[Row]) -> float:
    return fmean(abs(row["ratio"] - 1) for row in rows)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    ratios = sorted(row["ratio"] for row in rows)
    return {
        "runs": len(rows),
        "mean_error": error(rows),
        "median_ratio": median(ratios),
        "least_ratio": ratios[0],
        "largest_ratio": ratios[-1],
        "within_12%": fmean(abs(r - 1) <= MOST_WITHIN for r in ratios),
        "within_20%": fmean(abs(r - 1) <= WITHIN for r in ratios),
    }


def groups(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By GPU, and within it by scale, by model and number of GPUs, and by group that was not fitted."""
    found = {}
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        own = [row for row in rows if row["gpu"] == gpu]
        found[gpu] = summary(own)
        parts = {scale: [r for r in own if r["scale"] == scale] for scale in SCALES}
        parts |= {
            model: [r for r in own if r["model"] == model] for model in dict.fromkeys(r["model"] for r in own)
        }
        parts |= {f"held out: {group}": [r for r in own if group in r["held_out"]] for group in HELD_OUT}
        found |= {f"{gpu}, {name}": summary(part) for name, part in parts.items() if part}
    chips = {"A100": [r for r in rows if r["gpu"].startswith("a100")]}
    chips["H100"] = [r for r in rows if r["gpu"].startswith("h100")]
    return found | {f"all {chip}": summary(part) for chip, part in chips.items() if part}


def fitted_to(run: Run) -> bool:
    """Whether constants were fitted to it: Note [What is theirs]."""
    return run.sequence <= 8192 and run.gpus <= 64 and run.parameters < 2e10


def other_figures(kept: Sequence[Run], folder: Path) -> dict[str, dict[str, float]]:
    """Mean error of A100 and H100 with other figures."""

    def full_rate(run: Run) -> Change:
        return products_changed(lambda machine: PEAK[run.gpu] / machine.flops_per_s_by_dtype["bfloat16"])

    def full_bandwidth(run: Run) -> Change:
        return rates_changed(memory_bytes_per_s=BANDWIDTH[run.gpu])

    def errors(machine: Callable[[Run], Hardware], *chips: str) -> dict[str, float]:
        found = {}
        for chip in chips:
            own = [run for run in kept if run.gpu.startswith(chip.lower())]
            found[chip] = error([predicted(run, folder, machine(run)) for run in own])
        return found

    found = {}
    for name, change in FROM_A100.items():
        found[name] = errors(lambda run, c=change: c(machine_of(run)), "H100")
    for name, change in WITHOUT.items():
        found[f"without {name}"] = errors(lambda run, c=change: c(machine_of(run)), "A100", "H100")
    found["without products' share"] = errors(lambda run: full_rate(run)(machine_of(run)), "A100", "H100")
    found["without the memory's share"] = errors(
        lambda run: full_bandwidth(run)(machine_of(run)), "A100", "H100"
    )
    found["with the attention that ships"] = errors(
        lambda run: machine_of(run, their_attention=False), "A100", "H100"
    )
    return found


def shown_others(found: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table("mean error", "A100", "H100")
    for name, errors in found.items():
        table.add_row(name, *(f"{errors[chip]:.1%}" if chip in errors else "" for chip in ("A100", "H100")))
    return table


def bar(low: float, middle: float, high: float, width: int = 28) -> str:
    """Ratios from 0.5 to 2.5: the range, its median, and where 1 is."""

    def at(ratio: float) -> int:
        return round((min(max(ratio, 0.5), 2.5) - 0.5) / 2 * (width - 1))

    line = [" "] * width
    line[at(low) : at(high) + 1] = "-" * (at(high) + 1 - at(low))
    line[at(1)] = "|"
    line[at(middle)] = "o"
    return "".join(line)


def shown(found: Mapping[str, dict[str, Any]]) -> Table:
    table = Table("", "runs", "median", "range", "mean error", "within 12%", "0.5 to 2.5, | is 1")
    for name, s in found.items():
        low, middle, high = s["least_ratio"], s["median_ratio"], s["largest_ratio"]
        range_ = f"{low:.2f} to {high:.2f}"
        figures = (f"{middle:.2f}", range_, f"{s['mean_error']:.1%}", f"{s['within_12%']:.0%}")
        table.add_row(name, str(s["runs"]), *figures, bar(low, middle, high))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--descriptions", type=Path)
    given = parser.parse_args()
    folder = given.descriptions or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=150)
    all_runs = runs()
    aside = {run.name for run in contradicted(all_runs)}
    rows = [predicted(run, folder) for run in all_runs]
    kept = [row for row in rows if row["run"] not in aside]
    found = groups(kept)
    for row in rows:
        if given.rows or row["run"] in aside:
            others = "".join(f", {name}: {r['ratio']:.3f}" for name, r in list(row["readings"].items())[1:])
            note = " (contradicted by its neighbours)" if row["run"] in aside else ""
            console.print(
                f"{row['run']}: {row['ratio']:.3f}{others}, peak {row['peak_share']:.0%} of the GPU{note}"
            )
    console.print(shown(found))
    beyond = [row["run"] for row in rows if row["peak_share"] > 1]
    least = 1 - max(row["peak_share"] for row in rows)
    console.print(f"predicted beyond their GPU, which all fitted: {len(beyond)}; least headroom {least:.1%}")
    fitted = {run.name for run in all_runs if fitted_to(run)}
    parts = {chip: [r for r in kept if r["gpu"].startswith(chip.lower())] for chip in ("A100", "H100")}
    for chip, own in parts.items():
        where = [error([r for r in own if (r["run"] in fitted) == side]) for side in (True, False)]
        console.print(f"{chip}: {where[0]:.1%} off where fitted, {where[1]:.1%} elsewhere")
    other: dict[str, dict[str, float]] = {}
    if not given.quick:
        other = other_figures([run for run in all_runs if run.name not in aside], folder)
        console.print(shown_others(other))
    if given.json:
        figures = {
            "machine": machine(),
            "groups": found,
            "headroom": least,
            "other figures": other,
            "aside": sorted(aside),
            "rows": rows,
        }
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    if given.picture:
        draw(rows, aside, given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
