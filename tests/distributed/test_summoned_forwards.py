"""Forwards inside summon_full_params: without gradients they compute with the full values that are there."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from torch import nn

import osdp

PLANS = {**{mode: mode for mode in plans.MODES}, "slices": lambda d: plans.in_slices(d, "out"),
         "input slices": lambda d: plans.in_slices(d, "in")}  # fmt: skip
BF16 = osdp.MixedPrecision(param_dtype=torch.bfloat16)


def on_one_rank(me: Member) -> None:
    """Rank 0 alone evaluates, more than once, and nobody waits for it; training goes on as if it had not."""
    for name, plan in PLANS.items():
        with naming(name):
            pair = Pair(me, blocks.workload(), plan)
            pair.train(steps=1)
            (tokens,), _ = pair.data(5)
            for writeback in (False, True):
                with osdp.summon_full_params(pair.sharded, writeback=writeback):
                    with pytest.raises(osdp.ShardingError, match="summon_full_params"):
                        pair.sharded(tokens)
                    for context in (torch.no_grad(), torch.inference_mode()):
                        with context:
                            for _ in range(2 if me.rank == 0 else 0):
                                close(pair.sharded(tokens), pair.whole(tokens), 1e-9, "an output")
                                x = torch.ones(1, blocks.HIDDEN, dtype=torch.float64)
                                for each in (pair.sharded, pair.whole):  # a part, and forward by itself
                                    x = each.blocks[0].forward(each.blocks[0](x)) - x
            pair.train(steps=2)


def in_other_dtypes(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = Pair(me, blocks.workload(), plan, dtype=torch.float32, tolerance=0.1, mixed_precision=BF16)
            (tokens,), _ = pair.data(5)
            with torch.no_grad():
                wanted = pair.sharded(tokens)
                with osdp.summon_full_params(pair.sharded, writeback=False):
                    assert torch.equal(pair.sharded(tokens), wanted)
                    assert all(p.dtype == torch.float32 for p in pair.sharded.parameters())
                    with pytest.raises(IndexError):
                        pair.sharded(tokens + blocks.VOCABULARY)
                    assert all(p.dtype == torch.float32 for p in pair.sharded.parameters())
                assert torch.equal(pair.sharded(tokens), wanted)


class Generates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = blocks.Blocks()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(tokens)

    @torch.no_grad()
    def generate(self, tokens: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)
        return tokens


def generated(me: Member) -> None:
    """Through the class, as scripts for FSDP1 do: prompts of other lengths on each rank."""
    torch.manual_seed(0)
    whole = Generates()
    torch.manual_seed(0)
    model = osdp.FullyShardedDataParallel(Generates(), me.group, auto_wrap_policy={blocks.Block})
    prompt = torch.arange(2 + me.rank)[None]
    with osdp.FullyShardedDataParallel.summon_full_params(model, writeback=False, recurse=False):
        assert torch.equal(model.generate(prompt), whole.generate(prompt))
        model.head = nn.Linear(2, 2)  # what is added meanwhile is taken in later
        with torch.no_grad():
            model(prompt)
    model(torch.ones(1, 3, dtype=torch.long)).sum().backward()


@pytest.mark.outcome(
    "`generate` or evaluation inside `summon_full_params`, on some ranks only, without gradients", "equal"
)
@pytest.mark.parametrize("case", [on_one_rank, in_other_dtypes, generated])
def test_forwards_of_what_is_summoned(ranks, case):
    ranks(case, world=2)
