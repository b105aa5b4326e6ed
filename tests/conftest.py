"""Which tests one process runs, where several processes run tests: those that share what a fixture takes long to make."""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = (
    "tests/accelerator/",
    "tests/distributed/test_checkpoint.py::test_other_ranks_and_another_plan_go_on_where_it_stopped",
    "tests/distributed/test_torch_left_as_found.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadgroup` with groups by name: pytest 9.2 drops what pytest-xdist 3.8 makes of its mark "xdist_group"."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByName(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for group in TOGETHER if nodeid.startswith(group)), nodeid)

    return ByName(config, log)
