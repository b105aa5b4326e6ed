"""osdp.profile on two ranks: equal figures, and an error on one is an error on both."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from torch import nn

import osdp
from osdp.hardware.hardware import Hardware


class FailsToRun(nn.Module):
    """It can be described."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor:
            raise RuntimeError("out of luck")
        return x


def profiles(me: Member) -> tuple[str, list[str]]:
    torch.manual_seed(me.rank)
    linears, sample = [nn.Linear(8, 8), nn.Linear(8, 8)], torch.randn(4, 8)
    model = nn.Sequential(*linears)
    hardware = osdp.profile(model, sample, seconds=0.4, group=me.group)
    other, fails = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(*linears, FailsToRun())
    errors = []
    for of_second in ((model, torch.randn(4, 5)), (other, sample), (fails, sample)):
        given = of_second if me.rank == 1 else (model, sample)
        with pytest.raises(osdp.ProfileError) as e:
            osdp.profile(*given, seconds=0.2, group=me.group)
        errors.append(str(e.value))
    return hardware.dumps(), errors


def test_two_ranks_agree_and_fail_together(ranks):
    of_ranks = ranks(profiles, world=2)
    assert of_ranks[0] == of_ranks[1], "hardware and errors are the same on both ranks"
    text, (bad_sample, other_model, fails_later) = of_ranks[0]
    hardware = Hardware.loads(text)
    assert hardware.world_size == 2 and "gloo" in hardware.source
    for cost in (hardware.all_gather, hardware.reduce_scatter, hardware.all_reduce):
        assert cost.alpha_s > 0 or cost.beta_s_per_byte > 0
        assert cost.alpha_s < 1 and cost.beta_s_per_byte < 1e-5
    assert set(hardware.gamma_s) == {"0", "1"}
    assert "rank 1 failed while preparing" in bad_sample
    assert "different things" in other_model
    assert "rank 1 failed while timing the model's operators" in fails_later and "out of luck" in fails_later
