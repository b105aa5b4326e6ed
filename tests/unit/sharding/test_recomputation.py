"""Recomputed blocks: what they keep besides their inputs."""

from __future__ import annotations

import torch

from osdp.sharding import recomputation


def test_blocks_between_which_nothing_is_drawn_share_one_state_of_the_generator():
    made = [recomputation._AsBefore({}, torch.ones(1)) for _ in range(3)]
    assert made[0].generators is made[1].generators is made[2].generators
    with made[0]:
        first = torch.rand(3)
    torch.rand(1)
    other = recomputation._AsBefore({}, torch.ones(1))
    assert other.generators is not made[0].generators
    with made[2]:
        assert torch.equal(first, torch.rand(3))
    with other:
        assert not torch.equal(first, torch.rand(3))
