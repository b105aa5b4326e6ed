"""What a rank gains while others of its host wait."""

import pytest

from tests.unit.gpt_descriptions import machine


def test_times_between_those_measured_are_linear() -> None:
    hardware = machine(8, fewer_ranks_speedup=(4.0, 2.0, 2.0))  # while 1, 2 and 4 of 8 compute
    assert [hardware.speedup(n, 8) for n in (1, 2, 4, 8)] == pytest.approx([4, 2, 2, 1])
    assert hardware.speedup(3, 8) == pytest.approx(2)
    assert hardware.speedup(6, 8) == pytest.approx(1 / 0.75)
    assert hardware.speedup(3, 4) == pytest.approx(
        1 / 0.75
    )  # four ranks on a host, not measured: between 2 and all
    assert [machine(8).speedup(n, 8) for n in (1, 8)] == [1, 1]
