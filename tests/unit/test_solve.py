"""osdp.solve: the bare problem."""

import json
from pathlib import Path

import pytest

import osdp
from osdp.searching import check_solution

DATA = Path(__file__).parent.parent / "data"
INSTANCES = json.loads((DATA / "search_instances.json").read_text())["instances"]


def options_of(instance):
    return [[tuple(o) for o in options] for options in instance["operators"]]


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i["name"])
def test_known_instances_are_solved_to_their_proven_optimum(instance):
    options = options_of(instance)
    s = osdp.solve(options, instance["limit"])
    assert s.optimal and s.time == s.lower_bound == instance["best_time"]
    assert sum(options[i][k][0] for i, k in enumerate(s.choices)) == s.time
    assert sum(options[i][k][1] for i, k in enumerate(s.choices)) == s.memory <= instance["limit"]
    assert check_solution(options, instance["limit"], s) == ""
