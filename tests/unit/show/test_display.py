"""What a person sees of a plan."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest
import torch

import osdp
from osdp.base.numbers import cells, format_count, format_seconds
from osdp.base.printed import PrintedText, plain
from osdp.description.model_description import ModelDescription
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import Certificate, OperatorPrediction, Prediction
from osdp.sharding.report_value import Report
from osdp.show.notebook import html
from osdp.show.plan_figures import step_parts
from osdp.show.table_rows import ranged, rows, sections
from tests.unit.description.nasty_models import GPT


@pytest.fixture(scope="module")
def description() -> ModelDescription:
    return osdp.describe(GPT(layers=4), torch.zeros(2, 16, dtype=torch.long))


def predicted(plan: Plan) -> Plan:
    operators = {
        name: OperatorPrediction(2**20, 2**10, 0, 0.001, 0.002, "memory is short") for name in plan.choices
    }
    prediction = Prediction(0.25, 128.0, 3 * 2**30, 0.1, 0.2, 0.01, operators)
    certificate = Certificate(10**12, 10**12, 10**12, 1024, 1024, 0, 0, 0, (), 1)
    return dataclasses.replace(
        plan, predicted=prediction, certificate=certificate, memory_limit_bytes=4 * 2**30, world_size=8
    )


def test_equal_operators_of_equal_blocks_share_a_row(description: ModelDescription) -> None:
    plan = Plan.uniform(description).replace({"blocks.2.up": Choice("FULL_SHARD", 4, 1, "in")})
    labels = [row.label for row in rows(plan)]
    assert "blocks.0-3.qkv" in labels and "blocks.0-1,3.up" in labels and "blocks.2.up" in labels
    assert labels[:2] == ["tokens", "(model)"] and labels[-1] == "norm"
    assert sorted(name for row in rows(plan) for name in row.names) == sorted(plan.choices)


def test_equal_blocks_are_one_section_and_recomputed_ones_another(description: ModelDescription) -> None:
    plan = Plan.uniform(description)
    assert [s.blocks for s in sections(plan)] == [(), tuple(f"blocks.{i}" for i in range(4)), ()]
    plan = plan.replace(recompute={"blocks.1": "hold", "blocks.2": "hold", "blocks.3": "regather"})
    parts = [(s.blocks, s.recompute) for s in sections(plan) if s.blocks]
    assert parts == [
        (("blocks.0",), None),
        (("blocks.1", "blocks.2"), "hold"),
        (("blocks.3",), "regather"),
    ]
    lines = plain(plan, 80).splitlines()
    assert any(re.match(r"blocks\.1-2 +2 equal +recompute: hold", line) for line in lines)
    assert any(re.match(r"blocks\.3 +block +recompute: regather", line) for line in lines)


def test_a_section_says_which_blocks_choose_otherwise(description: ModelDescription) -> None:
    plan = Plan.uniform(description).replace({f"blocks.{i}.up": Choice("NO_SHARD") for i in (0, 1, 3)})
    text = plain(plan, 80)
    assert re.search(r"^  up \[0-1,3\] +3 x \S+ k +NO_SHARD$", text, re.M)
    assert re.search(r"^  up \[2\] +\S+ k +FULL_SHARD$", text, re.M)
    assert re.search(r"^  qkv +4 x \S+ k +FULL_SHARD$", text, re.M)
    assert text.count("qkv") == 1, "equal blocks are shown once"


def test_names_are_put_together_only_where_one_number_differs() -> None:
    assert ranged(("a.0.b", "a.1.b", "a.2.b", "a.5.b")) == "a.0-2,5.b"
    assert ranged(("h.0.e.1", "h.0.e.2")) == "h.0.e.1-2"
    assert ranged(("x1",)) == "x1"


def test_experts_in_layers_stay_readable() -> None:
    layers = torch.nn.ModuleList(
        torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3)) for _ in range(2)
    )
    labels = [
        row.label for row in rows(Plan.uniform(osdp.describe(torch.nn.Sequential(torch.nn.ReLU(), layers))))
    ]
    assert labels == ["1.0.0-2", "1.1.0-2"]


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(4, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + sum(expert(x) for expert in self.experts) * self.gate(x).mean()


def test_experts_inside_equal_blocks_are_one_row() -> None:
    model = torch.nn.Sequential(*(Experts() for _ in range(4)))
    plan = Plan.uniform(osdp.describe(model, torch.zeros(2, 4)))
    (section,) = sections(plan)
    assert [(row.label, len(row.names)) for row in section.rows if row.choice] == [
        ("0-3.experts.0-2", 12),
        ("0-3.gate", 4),
    ]


def test_the_table_has_what_was_decided(description: ModelDescription) -> None:
    plan = predicted(
        Plan.uniform(description).replace(
            {"norm": Choice("NO_SHARD"), "blocks.2.up": Choice("FULL_SHARD", 4, 1, "in")},
            recompute={"blocks.1": "hold"},
        )
    )
    text = plain(plan, 120)
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert re.search(r"NO_SHARD .* 1.00 MiB +1.00 KiB +1 ms +2 ms$", lines["norm"])
    assert re.search(r"^  up \[2\].*FULL_SHARD +1/4 in", text, re.M)
    assert lines["peak"].count("█") + lines["peak"].count("▓") == 30 and lines["peak"].count("░") == 10
    assert "3.00 GiB of 4.00 GiB per rank (75%)" in text
    assert "250 ms a step, 128 samples/s" in text
    assert "both at once 60 ms" in text and "computation 140 ms" in text and "communication 40 ms" in text
    assert "no plan in this search space has a simulated step that is faster" in lines["proof"]
    assert "8 ranks" in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_nothing_is_wider_than_the_terminal(description: ModelDescription, width: int) -> None:
    plan = predicted(
        Plan.uniform(description, granularity=4).replace(
            {"blocks.1.up": Choice("NO_SHARD")}, recompute={f"blocks.{i}": "regather" for i in range(4)}
        )
    )
    for text in (plain(plan, width), plan.explain(width)):
        assert max(map(len, text.splitlines())) <= width and "…" not in text


def test_what_is_printed_and_what_a_prompt_shows_is_the_table(
    description: ModelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    plan = predicted(Plan.uniform(description))
    assert str(plan) == plain(plan, 90) == repr(plan) + "\n"


def test_a_plan_made_by_hand_explains_itself_without_a_prediction(description: ModelDescription) -> None:
    text = Plan.uniform(description, "SHARD_GRAD_OP").explain()
    assert "any number of ranks" in text and "SHARD_GRAD_OP" in text
    assert "Why" not in text and "peak memory" not in text


def test_a_gap_is_told_where_optimality_is_not_proven(description: ModelDescription) -> None:
    plan = predicted(Plan.uniform(description))
    certificate = Certificate(1000, 990, 980, 0, 0, 0, 0, 0, (), 1)
    shown = " ".join(str(dataclasses.replace(plan, certificate=certificate)).split())
    assert "more than 1.00% faster" in shown


def test_the_parts_of_a_step_add_up_to_it() -> None:
    for communication, compute, step in (
        (0.1, 0.2, 0.25),
        (0.1, 0.2, 0.2),
        (0.3, 0.1, 0.41),
        (0.0, 0.0, 0.01),
    ):
        p = Prediction(step, 1.0, 1, communication, compute, 0.01, {})
        parts = step_parts(p)
        assert sum(s for _, s in parts.parts) == pytest.approx(max(step, 0.01 + max(communication, compute)))
        assert all(s >= 0 for _, s in parts.parts)
        assert parts.compute_s + parts.overlap_s == pytest.approx(compute)
    assert cells([1.0, 1.0, 1.0], 3.0, 10) == [3, 4, 3] and cells([5.0], 1.0, 10) == [10]


class Page(HTMLParser):
    """The text of a page; fails where tags do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_notebook_shows_the_same_as_html(description: ModelDescription) -> None:
    plan = predicted(
        Plan.uniform(description, granularity=2).replace(
            {"norm": Choice("NO_SHARD")}, recompute={"blocks.1": "hold"}
        )
    )
    words = Page(plan._repr_html_()).words
    text = " ".join(words)
    for expected in (
        "3.00 GiB of 4.00 GiB per rank (75%)",
        "both at once 60 ms",
        "qkv [0,2-3]",
        "NO_SHARD",
        "2/2 out",
    ):
        assert expected in text or "[0,2-3]" in expected, expected
    assert "recomputed, parameters held for it" in text and "proof: no plan" in text
    for row in rows(plan):
        assert any(row.place in word for word in words), row.place


def test_html_escapes_names(description: ModelDescription) -> None:
    evil = "<script>alert('x')</script>"
    named = dataclasses.replace(description, name=evil)
    page = html(predicted(Plan.uniform(named)))
    assert evil not in page and "&lt;script&gt;" in page
    assert "<script" not in page


def test_diff_tells_every_difference_and_nothing_else(description: ModelDescription) -> None:
    plan = Plan.uniform(description)
    assert plan.diff(plan) == ""
    other = plan.replace(
        {f"blocks.{i}.up": Choice("NO_SHARD") for i in range(4)} | {"norm": Choice("SHARD_GRAD_OP")},
        recompute={"blocks.0": "regather"},
    )
    other = dataclasses.replace(other, batch_size=4, memory_limit_bytes=2**30)
    assert plan.diff(other).splitlines() == [
        "batch_size: 1 -> 4",
        "memory_limit_bytes: none -> 1.00 GiB",
        "blocks.0-3.up (4 operators): FULL_SHARD -> NO_SHARD",
        "norm: FULL_SHARD -> SHARD_GRAD_OP",
        "blocks.0: activations keep -> regather",
    ]
    regrouped = dataclasses.replace(plan, units=tuple((name,) for name in plan.choices))
    assert plan.diff(regrouped).startswith("units:")


def test_numbers_for_people() -> None:
    assert [format_count(n) for n in (0, 999, 1000, 10_300_000, 7 * 10**9)] == [
        "0",
        "999",
        "1 k",
        "10.3 M",
        "7 B",
    ]
    assert [format_seconds(t) for t in (0, 2e-9, 3.21e-4, 0.0999, 1.5, 12345)] == [
        "0 s", "2 ns", "321 us", "99.9 ms", "1.5 s", "12345 s",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def values(description: ModelDescription) -> dict[str, object]:
    """What a notebook's cell may end with."""
    plan = osdp.search(description, memory="2GiB", world_size=2, hardware="a100-8", batch_size=2)
    return {
        "description": description,
        "hardware": plan.hardware,
        "plan": plan,
        "timeline": plan.simulate(),
        "frontier": plan.frontier(3),
        "explanation": plan.explain(search=False),
        "difference": plan.diff(Plan.uniform(description, "FULL_SHARD")),
        "solution": osdp.solve([[(1, 2), (3, 1)]] * 1000, 1500),
        "report": Report(0.1, 0.11, 2**20, 2**20, 5),
    }


def test_every_value_prints_as_a_table_instead_of_its_fields(
    description: ModelDescription, values: dict[str, object]
) -> None:
    for name, value in values.items():
        shown = repr(value)
        assert len(shown) < 8000 and "(name=" not in shown and "\\n" not in shown, name
        assert 1 < len(shown.splitlines()) < 100, name
        text = HTMLParser()
        text.feed(value._repr_html_())  # type: ignore[attr-defined]
        assert "<" in value._repr_html_() and str(value), name  # type: ignore[attr-defined]
    assert "4 equal" in repr(description) and "GB/s" in repr(osdp.Hardware.load("h100-8"))


def test_text_is_escaped_in_a_notebook() -> None:
    assert PrintedText("a < b\n")._repr_html_() == "<pre>a &lt; b\n</pre>"
    assert repr(PrintedText("one\ntwo\n")) == "one\ntwo" and PrintedText("one\n") == "one\n"


def test_every_table_of_times_says_whether_its_machine_was_measured(values: dict[str, object]) -> None:
    for name in ("hardware", "plan", "timeline", "frontier"):
        for text in (str(values[name]), values[name]._repr_html_()):  # type: ignore[attr-defined]
            assert "a100-8 (assumed)" in " ".join(re.sub("<[^>]*>", "", text).split()), name
