"""Arguments of FullyShardedDataParallel that mean nothing, or something for the search alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import osdp


@pytest.mark.parametrize("memory", [None, "1GiB"])
@pytest.mark.outcome("an argument that `FullyShardedDataParallel` does not have", osdp.InvalidProblemError)
def test_an_unknown_argument_is_named(memory):
    with pytest.raises(
        osdp.InvalidProblemError, match=r"no argument 'auto_wrap_policy'.*those of the search: .*batch_size"
    ):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), memory=memory, auto_wrap_policy=None)


def test_arguments_of_the_search_need_a_limit():
    with pytest.raises(
        osdp.InvalidProblemError, match=r"^sample, batch_size are for the search: give memory="
    ):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), sample=(torch.randn(2, 2),), batch_size=4)
    with pytest.raises(osdp.InvalidProblemError, match=r"^hardware is for the search: give memory="):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), hardware="a100-8")
