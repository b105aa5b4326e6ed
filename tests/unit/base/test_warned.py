"""A warning's line is the user's, however OSDP was called."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import osdp
from osdp.base.warned import warn


def user_line(call: str) -> int:
    lines, first = inspect.getsourcelines(inspect.currentframe().f_back)  # type: ignore[arg-type, union-attr]
    return first + next(i for i, line in enumerate(lines) if call in line and "user_line" not in line)


def pointed_at(caught: list[warnings.WarningMessage]) -> tuple[str, int]:
    (warning,) = [w for w in caught if issubclass(w.category, UserWarning)]
    return warning.filename, warning.lineno


def test_through_torch_and_generated_code(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
class Warns(nn.Module):
    def forward(self, x):
        Told(x)
        return x

@dataclasses.dataclass
class Told:
    x: object

    def __post_init__(self):
        warn("told")
"""
    library = types.ModuleType("osdp.of_this_test")
    monkeypatch.setitem(sys.modules, library.__name__, library)
    names = vars(library)
    names.update(warn=warn, nn=nn, dataclasses=dataclasses)
    exec(compile(source, "<generated>", "exec", dont_inherit=True), names)
    module = names["Warns"]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module(torch.zeros(1))
    assert pointed_at(caught) == (__file__, user_line("module(torch"))


def test_a_block_that_changes_its_inputs_is_told_at_the_line_that_describes() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1.0)
            return self.linear(x)

    model = nn.Sequential(*(InPlace() for _ in range(3)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        osdp.describe(model, torch.zeros(2, 4))
    assert pointed_at(caught) == (__file__, user_line("osdp.describe(model"))


def test_no_warning_of_osdp_counts_frames() -> None:
    package = Path(osdp.__file__).parent
    counting = [
        str(path)
        for path in package.rglob("*.py")
        if "warnings.warn(" in path.read_text() and path.name != "warned.py"
    ]
    assert counting == []
