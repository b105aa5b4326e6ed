"""A profile of fewer ranks than are searched for: refused where it knows nothing of communication, else said to be
carried on."""

from __future__ import annotations

import warnings

import pytest

import osdp
from osdp.hardware.hardware import Collective, Measured
from tests.unit.gpt_descriptions import gpt, machine

MEASURED = Measured("a processor", 2, 1, "2.13.0", product_s=2e-3, copy_s=16e-3)
NOTHING = Collective(0.0, 0.0)
ALONE = {"all_gather": NOTHING, "reduce_scatter": NOTHING, "all_reduce": NOTHING}


def search(world: int, **hardware: object) -> osdp.Plan:
    return osdp.search(
        gpt(1, 64), memory="64MiB", world_size=world, batch_size=1, hardware=machine(**hardware)
    )


@pytest.mark.outcome("`osdp.search` for several ranks with a profile of one rank", osdp.InvalidProblemError)
@pytest.mark.parametrize("measured", [None, MEASURED], ids=["by hand", "profiled"])
def test_a_profile_of_one_rank_plans_for_one(measured: Measured | None) -> None:
    with pytest.raises(osdp.InvalidProblemError, match=r"one rank.*4 ranks"):
        search(4, ranks=1, measured=measured, **ALONE)
    assert search(1, ranks=1, measured=measured, **ALONE).world_size == 1


def test_a_profile_of_fewer_ranks_is_extrapolated_with_a_warning() -> None:
    with pytest.warns(osdp.MachineMismatchWarning, match="2 ranks.* 8"):
        plan = search(8, ranks=2, measured=MEASURED)
    assert plan.world_size == 8 and osdp.verify(plan) == ""


@pytest.mark.parametrize(("ranks", "measured"), [(4, MEASURED), (8, MEASURED), (2, None)])
def test_nothing_is_said_of_as_many_ranks_nor_of_figures_that_nobody_measured(
    ranks: int, measured: Measured | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(4, ranks=ranks, measured=measured)
