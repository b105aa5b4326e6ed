"""Ranks of one replica that were given different samples are noticed, whatever the difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from osdp.parallel.samples import Samples, samples_apart

TOKENS, WORDS = torch.arange(12).view(3, 4), torch.rand(3, 2)


def given(replica: int, stage: int, inputs: Any = TOKENS, targets: Any = WORDS) -> Samples:
    return Samples.of(replica, stage, (inputs, {"mask": None}), targets, last=stage == 1)


def test_replicas_have_their_own_samples_and_stages_need_no_targets() -> None:
    other = TOKENS + 1
    ranks = [given(0, 0, targets=None), given(1, 0, other), given(0, 1), given(1, 1, other, -WORDS)]
    assert samples_apart(ranks) == ""
    assert samples_apart([given(0, 0), given(0, 0, TOKENS.clone())]) == ""


@pytest.mark.parametrize(
    "inputs",
    [TOKENS.flip(0), TOKENS + 1, TOKENS.int(), TOKENS.view(4, 3), (TOKENS, TOKENS), TOKENS.double(), WORDS],
)
def test_different_inputs(inputs: Any) -> None:
    told = samples_apart([given(1, 0), given(0, 0), given(1, 1, inputs)])
    assert told.startswith("rank 0 (stage 0) and rank 2 (stage 1) have parts of one replica"), told
    assert "different inputs" in told


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.uint8])
def test_different_targets(dtype: torch.dtype) -> None:
    one, other = (torch.tensor(values, dtype=dtype) for values in ([0, 1, 1], [1, 1, 0]))
    assert "different targets" in samples_apart([given(0, 1, targets=one), given(0, 1, targets={"y": other})])
    assert samples_apart([given(0, 1, targets=one), given(0, 1, targets=[one.clone()])]) == ""
