"""Full parameters asked for where they cannot be shown: refused by name, and the model trains on."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.pair import SEED, close
from torch import Tensor, nn

import osdp

FSDP = osdp.FullyShardedDataParallel


class Reads(nn.Module):
    """Asks for full parameters in its own forward, once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.layer = nn.Linear(4, 4)
        self.asks = False

    def forward(self, x: Tensor) -> Tensor:
        if self.asks:
            self.asks = False
            with FSDP.summon_full_params(self):
                pass
        return self.layer(x)


def misused(me: Member) -> None:
    plain, model = Reads(), FSDP(Reads(), me.group)
    x = torch.ones(2, 4)

    def trains() -> None:
        for each in (plain, model):
            each.zero_grad()
            each(x).square().mean().backward()
        with model.summon_full_params(with_grads=True):
            close(model.layer.weight.grad, plain.layer.weight.grad, 1e-6, "a gradient")

    def in_backward(gradient: Tensor) -> None:
        with model.summon_full_params():
            pass

    trains()
    model.module.asks = True
    with pytest.raises(osdp.ShardingError, match="forward or backward"):
        model(x)
    trains()
    output = model(x)
    output.register_hook(in_backward)
    with pytest.raises(osdp.ShardingError, match="forward or backward"):
        output.sum().backward()
    trains()
    with model.summon_full_params():
        with pytest.raises(osdp.ShardingError, match="already active"), model.summon_full_params():
            pass
        with pytest.raises(osdp.ShardingError, match="inside summon_full_params; leave"):
            model(x)
        assert model.layer.weight.shape == (4, 4)
    trains()
    with pytest.raises(ValueError, match="on purpose"), model.summon_full_params():
        raise ValueError("on purpose")
    trains()


@pytest.mark.outcome("`summon_full_params` in a forward, in backward or in another one", osdp.ShardingError)
def test_full_parameters_asked_for_at_the_wrong_moment(ranks):
    ranks(misused, world=2)
