"""What trials on a device say of computing and communicating at once; the device's own clock gives the moments."""

from __future__ import annotations

import pytest

from osdp.profiling.overlap_by_events import Judgement, Trial


def test_only_what_was_beside_computation_counts() -> None:
    """Two sizes, 4 and 1 s alone. The first two run beside; the third begins beside and ends after it; the last after."""
    trial = Trial(computed=(0.0, 10.0), communicated=(0.0, 5.0, 6.5, 12.0, 13.0))
    assert trial.beside() == [(5.0, 1.0), (1.5, 1.0), (5.5, 3.5 / 5.5), (1.0, 0.0)]
    judgement = Judgement(alone_s=(4.0, 1.0), compute_alone_s=8.0)
    delays = judgement.delays([trial])
    assert delays[0] == pytest.approx((1.0 + 1.5 / (3.5 / 5.5)) / 2) and delays[1] == pytest.approx(0.5)
    # 4 + 1 + 4 * 3.5 / 5.5 seconds of communication, as it is alone, took 2 from computation.
    assert judgement.stolen([trial]) == pytest.approx(2 / (5 + 4 * 3.5 / 5.5))


def test_collectives_that_were_over_before_say_nothing() -> None:
    trial = Trial(computed=(7.0, 10.0), communicated=(0.0, 4.0, 5.0))
    judgement = Judgement(alone_s=(4.0, 1.0), compute_alone_s=2.0)
    assert judgement.delays([trial]) == [None, None] and judgement.stolen([trial]) is None


def test_a_disturbance_does_not_make_anything_negative_or_decide_alone() -> None:
    faster = Trial(computed=(0.0, 2.0), communicated=(0.0, 1.0, 2.0))
    judgement = Judgement(alone_s=(1.5,), compute_alone_s=3.0)
    assert judgement.delays([faster]) == [0.0] and judgement.stolen([faster]) == 0.0
    usual = Trial(computed=(0.0, 4.0), communicated=(0.0, 2.0, 4.0))
    late = Trial(computed=(0.0, 40.0), communicated=(0.0, 20.0, 40.0))
    assert judgement.delays([usual, late, usual]) == [pytest.approx(0.5)]
    assert judgement.stolen([usual, late, usual]) == pytest.approx(1 / 3)
