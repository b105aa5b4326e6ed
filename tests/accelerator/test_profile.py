"""profile on a device whose streams are asynchronous: every figure, measured on it, by two ranks."""

from __future__ import annotations

import pytest
import run_ranks
from test_asynchronous_streams import in_order, judge


def test_a_profile_finds_every_figure_and_every_access_is_ordered() -> None:
    """Of a model: it has the machine's figures too."""
    cases = ["profile_model", "sizes", "unused_memory", "report_of_memory"]
    judge(run_ranks.run_cases(cases, "ordered:check"), 1e-6)


@pytest.mark.extras
def test_a_second_profile_knows_the_communicator_that_the_first_has_seen_come() -> None:
    judge(run_ranks.run_cases(["profile", "profile_model"], "ordered:check"), 1e-6)


def test_contention_is_judged_by_collectives_that_were_in_flight_while_computing() -> None:
    in_order(run_ranks.run_cases(["contention"], "ordered:async:3:100"))


# A prediction has a profile, and training, in it.
@pytest.mark.parametrize(
    "alone", [["prediction"], pytest.param(["profile", "report_of_memory"], marks=pytest.mark.extras)]
)
def test_one_rank_that_calls_its_backend_alone(alone: list[str]) -> None:
    """What a machine with one accelerator can run of it."""
    judge(run_ranks.run_cases(alone, "ordered:check", world=1, OSDP_SHARD_ALONE="1"), 1e-6)
