"""Where several processes run tests: which tests one of them runs, and a folder for what all of them use."""

from __future__ import annotations

import gc
import os
import tempfile
from typing import Any

import pytest

# They share what a fixture takes long to make.
TOGETHER = (
    "tests/accelerator/",
    "tests/distributed/test_checkpoint.py::test_other_ranks_and_another_plan_go_on_where_it_stopped",
    "tests/distributed/test_torch_left_as_found.py",
)


_folder: tempfile.TemporaryDirectory[str] | None = None


def pytest_configure(config: pytest.Config) -> None:
    """The folder of support/descriptions.py: processes that run tests, and ranks, have it from the first one."""
    global _folder
    if not hasattr(config, "workerinput"):
        _folder = tempfile.TemporaryDirectory(prefix="osdp-tests-")
        os.environ["OSDP_TEST_DESCRIPTIONS"] = _folder.name


def pytest_collection_finish() -> None:
    """What the tests have imported stays, and is not looked through in each collection; younger objects are, less often.
    Half of the time of collections was that, in tests of one process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 20, 20)


def pytest_unconfigure() -> None:
    if _folder is not None:
        _folder.cleanup()


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
