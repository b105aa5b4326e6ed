"""Limits of benchmarks/support/limits.py: there is a plan under each, also where the fastest is the smallest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import osdp
from tests.unit.gpt_descriptions import gpt, machine

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def least_and_most(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, int]]]:
    # Benchmarks and the tests among ranks each have a package `support`.
    others = {n: sys.modules.pop(n) for n in list(sys.modules) if n.partition(".")[0] == "support"}
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from support.limits import least_and_most

    yield least_and_most
    for name in [n for n in sys.modules if n.partition(".")[0] == "support"]:
        del sys.modules[name]
    sys.modules.update(others)


@pytest.mark.parametrize("modes", ["FULL_SHARD", "NO_SHARD", "auto"])
def test_there_is_a_plan_under_every_limit(
    least_and_most: Callable[..., tuple[int, int]], modes: str
) -> None:
    arguments: dict[str, Any] = {
        "hardware": machine(2),
        "world_size": 2,
        "batch_size": 1,
        "checkpoint": False,
        "granularity": (),
        "modes": modes,
    }
    description = gpt(2, 128)
    least, most = least_and_most(description, **arguments)
    assert most >= least
    for i in range(4):
        limit = least + (most - least) * i // 3
        assert osdp.search(description, memory=limit, **arguments).memory_limit_bytes == limit
