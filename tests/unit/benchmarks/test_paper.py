"""benchmarks/paper.py: headlines over the baselines that the paper names, and nothing where one side does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import osdp

OOM = {"why": "OOM", "search_s": 0.5}


def rate(value: float) -> dict[str, Any]:
    return {"rate": value, "batch": 1, "search_s": 0.5, "sliced": 0.0}


@pytest.fixture
def headlines(benchmarks_first: None) -> Iterator[Any]:
    from support.paper import headlines

    yield headlines


def row(family: str, hosts: int, **columns: list[dict[str, Any]]) -> dict[str, Any]:
    none = {name: columns.get(name.replace("-", "_"), [OOM]) for name in ("DP", "FSDP", "OSDP-base", "OSDP")}
    none["FSDP, hybrid"], none["FSDP, hpZ"] = columns.get("hybrid", [OOM]), [OOM]
    degrees = {
        name: columns.get(name.replace("3D+OSDP", "all").replace("3D", "three"), [OOM])
        for name in ("DP", "FSDP", "OSDP", "GPipe", "TP", "3D", "3D+OSDP")
    }
    forced = {"FSDP": [OOM], "FSDP kept": [OOM], "OSDP": [OOM]}
    capped = {"none": none, "degrees": degrees, "forced": forced, "free choice": {"OSDP": [OOM]}}
    setting = f"{8 * hosts} ranks, 8 GB"
    return {
        "model": f"{family} 48x1536",
        "family": family,
        "setting": setting,
        "hosts": hosts,
        "capped": capped,
    }


def test_each_figure_of_the_paper_is_computed(headlines: Any) -> None:
    figures = json.loads(headlines.FIGURES.read_text())
    assert {f["id"] for f in figures} == {*headlines.OURS, "search_s"}
    assert all(f["where"] for f in figures)
    rows = [row(family, hosts, OSDP=[rate(2.0)]) for family in ("N&D", "W&S", "I&C") for hosts in (1, 2)]
    assert len(headlines.headline_rows(rows)) == len(figures)


def test_gains_are_over_baselines_that_fit_at_their_best_batch(headlines: Any) -> None:
    first = row("N&D", 1, OSDP=[rate(2.0), rate(3.0), OOM], FSDP=[rate(2.0), OOM, OOM], TP=[rate(4.0)])
    second = row("N&D", 1, OSDP=[OOM, rate(6.0)], FSDP=[rate(4.0), rate(5.0)])
    third = row("N&D", 1, OSDP=[rate(1.0)], FSDP=[OOM])
    over_fsdp = headlines.OURS["nd_fsdp"](
        [first, second, third, row("W&S", 1, OSDP=[rate(9)], FSDP=[rate(1)])]
    )
    assert over_fsdp.percent == pytest.approx((50.0, 20.0)) and over_fsdp.alone == 1
    pure = headlines.OURS["nd_pure"]([first])
    assert pure.percent == pytest.approx((-25.0, 50.0)) and pure.alone == 2  # DP and GPipe do not fit
    assert headlines.OURS["two_fsdp"]([first, second]).percent == ()
    two = row("I&C", 2, OSDP=[rate(3.0)], FSDP=[rate(1.0)], hybrid=[rate(2.0)])
    assert headlines.OURS["two_fsdp"]([two]).percent == pytest.approx((200.0,))
    assert headlines.OURS["two_hybrid"]([two]).percent == pytest.approx((50.0,))


def test_what_is_not_reached_is_said(headlines: Any) -> None:
    rows = [
        row("N&D", 1, OSDP=[rate(1.1)], FSDP=[rate(1.0)]),
        row("W&S", 2, all=[rate(2.0)], three=[rate(1.0)]),
    ]
    said = {line[0]: line[-1] for line in headlines.headline_rows(rows)}
    assert said["N&D, OSDP"] == "max no"  # the last one of that name: 174% over pure strategies
    assert said["W&S, OSDP"] == "-"
    assert said["search, seconds"] == "faster"


@pytest.fixture
def links(benchmarks_first: None) -> Iterator[Any]:
    from support.paper import links

    yield links


def test_only_the_bandwidth_of_the_link_is_varied(links: Any) -> None:
    from support.paper.settings import SETTINGS

    for setting in SETTINGS:
        before = osdp.Hardware.load(setting.hardware)
        after = links.with_link(setting, 4.0).hardware
        varied = {f.name for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)}
        one_server = {"all_gather", "reduce_scatter", "all_reduce"}
        assert varied == (one_server if setting.hosts == 1 else {"between_hosts"})
        for name in varied:
            link, faster = getattr(before, name), getattr(after, name)
            assert faster.alpha_s == link.alpha_s
            assert faster.beta_s_per_byte == pytest.approx(link.beta_s_per_byte / 4)


def test_a_line_for_each_regime_and_a_column_for_each_bandwidth(links: Any) -> None:
    def cells(times: float, hosts: int) -> dict[str, Any]:
        of = {name: {"OSDP": rate(1 + 1 / times), "FSDP": rate(1.0)} for name in links.REGIMES}
        of["free"]["FSDP"] = OOM
        if hosts > 1:
            of["capped"]["the fastest FSDP"] = rate(1 + 1 / times)
        return of

    found = [
        {"model": "W&S", "setting": f"{hosts} servers", "times": t, "cells": cells(t, hosts)}
        for hosts in (1, 2)
        for t in links.TIMES
    ]
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in links.links(found) if line][2:]
    assert [line[1] for line in lines] == ["1 servers"] * 3 + ["2 servers"] * 4
    assert lines[0][3:] == ["+400.0%", "+200.0%", "+100.0%", "+50.0%", "+25.0%"]
    assert set(lines[1][3:]) == {"only OSDP fits"}
    assert lines[-1][2] == links.FASTEST and set(lines[-1][3:]) == {"+0.0%"}
