"""The published runs: what was copied, which rows their neighbours contradict, and a run as a plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import osdp

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/published.py; benchmarks and the tests among ranks each have a package `support`."""
    others = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "support"
    }
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published

    yield published
    for name in [n for n in sys.modules if n.partition(".")[0] == "support"] + ["published"]:
        del sys.modules[name]
    sys.modules.update(others)


def test_parameters_are_those_that_were_published(published: ModuleType) -> None:
    kinds = {(r.layers, r.width, r.heads, r.vocabulary, r.sequence, r.parameters) for r in published.runs()}
    for *shape, parameters in kinds:
        model, _ = published.mpt.make(*shape)
        assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_row_that_its_neighbours_contradict_is_set_aside(published: ModuleType) -> None:
    every = published.runs()
    assert {run.name for run in published.contradicted(every)} == {"760m x 512 on 8 a100_80gb"}
    middle = next(r for r in every if r.name == "350m x 16384 on 8 a100_80gb")
    for factor, aside in ((1.05, False), (1.25, True), (0.8, True)):
        changed = replace(middle, tokens_per_s_per_gpu=factor * middle.tokens_per_s_per_gpu)
        others = [changed if r is middle else r for r in every]
        assert (changed in published.contradicted(others)) == aside


def test_a_run_is_played_as_its_plan(published: ModuleType) -> None:
    run = replace(
        next(r for r in published.runs() if r.recomputation), layers=2, width=256, heads=2, sequence=128
    )
    model, sample = published.mpt.make(run.layers, run.width, run.heads, run.vocabulary, run.sequence)
    plan = published.plan_of(run, osdp.describe(model, *sample, precision="bf16"), "bf16")
    assert [len(unit) for unit in plan.units] == [3, 6, 6] and set(plan.recompute.values()) == {"hold"}
    played = plan.simulate(published.machine_of(run), run.gpus)
    backward = [e.name for e in played.events if e.action == "gather" and e.phase == "backward"]
    assert backward and not any(name.startswith("token") for name in backward), (
        "the root's unit stays gathered"
    )


def test_a_run_on_one_host_and_one_on_four_are_predicted(published: ModuleType) -> None:
    runs = {run.name: run for run in published.runs()}
    for name in ("125m x 2048 on 8 a100_80gb", "125m x 2048 on 32 a100_40gb"):
        assert published.predicted(runs[name], None)["ratio"] == pytest.approx(1, abs=0.05), name


def test_every_run_has_the_hosts_and_the_link_that_it_had(published: ModuleType) -> None:
    for run in published.runs():
        machine = published.machine_of(run)
        assert machine.world_size in (run.gpus, 8) and run.hosts * 8 == run.gpus
        trees = [p for p in machine.protocols if p.algorithm == "tree"]
        assert bool(trees) == (machine.between_hosts is not None) == (run.hosts > 1)
        if machine.between_hosts is not None:
            gbps = run.host_gbps or 3200
            assert 8e-9 / machine.between_hosts.beta_s_per_byte == pytest.approx(0.8 * gbps)
