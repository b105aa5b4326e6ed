"""benchmarks/for_real.py: what it stores for each family and link is shown, against the peer that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def page(benchmarks_first: None) -> Iterator[Any]:
    import results_page

    yield results_page


def run(family: str, speed: str, **rates: float | None) -> dict[str, Any]:
    rows = {
        name: {"batch": 32, "peak_bytes": 1e6, "step_s": 2.0, "rate": rate}
        if rate
        else {"batch": 0, "peak_bytes": 3e6}
        for name, rate in rates.items()
    }
    rows["OSDP"]["predicted_s"] = 2.1
    machine = {"processor": "P", "cores": 2, "load": 0.5, "torch": "2", "date": f"of {speed}"}
    settings = {"ranks": 4, "hosts": 4, "unit": 32, "rounds": 3, "machine": machine, "limit_bytes": 2e6}
    return {"family": family, "speed": speed, **settings, "rows": rows}


def test_each_family_and_link_is_shown_the_slowest_link_first(page: Any) -> None:
    fast = run("N&D", "1gbit", FSDP1=4.0, FSDP2=5.0, OSDP=10.0)
    slow = run("W&S", "100mbit", FSDP1=4.0, FSDP2=None, OSDP=10.0)
    lines = page.for_real({"runs": [fast, slow]})
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line.startswith("| 1")]
    assert [row[:3] for row in rows[:3]] == [["100mbit", "W&S", name] for name in ("FSDP1", "FSDP2", "OSDP")]
    assert rows[1][3:5] == ["does not fit", "3 of 2 MB"]
    assert rows[2][-2:] == ["2.10 s (+5.0%)", "2.50 of FSDP1's"]
    assert rows[-1][:3] == ["1gbit", "N&D", "OSDP"] and rows[-1][-1] == "2.00 of FSDP2's"
    said = " ".join(lines)
    assert "of 100mbit" in said and "of 1gbit" in said and "5.0% off on average" in said
    assert [page.link_bits(s) for s in ("500kbit", "200mbit", "2.5gbit")] == [5e5, 2e8, 2.5e9]
