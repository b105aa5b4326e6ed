"""A step waits for the device no more often than torch's own sharding does; and that, the control, has no race."""

from __future__ import annotations

import run_ranks
from test_asynchronous_streams import judge

# The others are for `python run_ranks.py counted`, and a look by hand.
PAIRS = ["FULL_SHARD", "NO_SHARD", "offload"]


def test_the_host_waits_no_more_often_than_under_torch() -> None:
    told = run_ranks.run_cases(
        [f"{who} {how}" for how in PAIRS for who in ("osdp", "torch")], "ordered:check"
    )
    judge(told, 1e-6)
    for how in PAIRS:
        ours, theirs = (
            sum(told[f"{who} {how}"][0]["counts"]["host_syncs"].values()) for who in ("osdp", "torch")
        )
        assert ours <= theirs, how


def test_clipping_waits_only_where_an_error_is_asked_for() -> None:
    """Beside the copy of the step's data from pageable memory, there is one wait, for the norm."""
    told = run_ranks.run_cases(["osdp FULL_SHARD", "osdp error asked for"], "ordered:check")
    judge(told, 1e-6)
    assert told["osdp FULL_SHARD"][0]["counts"]["host_syncs"] == {"copy from the host": 1}
    assert told["osdp error asked for"][0]["counts"]["host_syncs"] == {"copy from the host": 1, "item": 1}


def test_the_older_fsdp_has_no_race() -> None:
    judge(run_ranks.run_cases(["torch FSDP1"], "ordered:check"), 1e-6)
