"""Every wait, held reference and moved node of Note [What orders streams] is needed: without it something is noticed.

`make test-sensitivity` builds the extension that can leave them out, and runs this.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import run_ranks
from run_rank import WITHOUT

pytestmark = pytest.mark.extras

# Between them these, the shortest, notice nearly all: the first that comes to a call is tried, then two more, then
# the others.
FIRST = [
    "shard_grad_op",
    "uneven",
    "hybrid_bf16",
    "no_shard",
    "clipping",
    "on_a_side_stream",
    "exception_in_backward",
    "state_dicts",
]
# By function: what is tried before these.
SHOWN_BY = {
    "Lane::empty": "offloaded",
    "UnitScheduler::await_host_memory": "offloaded",
    "GradientBuckets::await": "called_again",
    "Replicas::check": "accumulate_no_sync",
    "Replicas::submit": "exception_in_backward",
}
# Orders nothing new: the host has asked until the event had passed, and waits only to be told of a fault.
SEEN_BY_THE_HOST = "in bind_collectives"


def without(told: dict[str, Any], sites: dict[str, list[str]], tried: slice) -> set[str]:
    """Those of `sites` (and the cases that come to each) which are noticed where they are left out."""
    pairs = [f"{name}{WITHOUT}{site}" for site, names in sites.items() for name in names[tried]]
    noticed = set()
    for pair, ranks in run_ranks.run_cases(pairs, "ordered:check", timeout_s=300).items():
        name, _, site = pair.partition(WITHOUT)
        for rank, each in enumerate(ranks):
            assert "error" not in each, f"{pair}, rank {rank}: {each['error']}\n{each['trace']}"
            before = told[name][rank]["counts"].get("streams", ())
            if each["races"] or len(each["counts"].get("streams", ())) > len(before):
                noticed.add(site)
    return noticed


def rank_of(name: str, site: str) -> tuple[bool, int, str]:
    """In which order cases that come to `site` are tried."""
    shows = SHOWN_BY.get(site.rpartition(" in ")[2]) == name
    return not shows, FIRST.index(name) if name in FIRST else len(FIRST), name


def test_whatever_orders_streams_is_noticed_when_it_is_left_out(checked: dict[str, Any]) -> None:
    sites: dict[str, list[str]] = {}
    for name, ranks in checked.items():
        assert "error" not in ranks[0], f"{name}: {ranks[0]['error']}"
        assert "sites" in ranks[0], "this extension has no switches: make test-sensitivity"
        for site in ranks[0]["sites"]:
            sites.setdefault(site, []).append(name)
    assert len(sites) > 15
    asked = {
        site: sorted(names, key=functools.partial(rank_of, site=site))
        for site, names in sites.items()
        if not site.endswith(SEEN_BY_THE_HOST)
    }
    left = dict(asked)
    for tried in (slice(1), slice(1, 3), slice(3, None)):
        noticed = without(checked, left, tried) if left else set()
        left = {site: names for site, names in left.items() if site not in noticed}
    assert not left, f"not needed, or no case shows why: {left}"
