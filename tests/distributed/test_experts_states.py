"""State dicts, optimizer states and checkpoints of a model whose experts are sharded over ranks of their own."""

from __future__ import annotations

import warnings

import pytest
import torch
from harness import Member
from support.experts import FSDP, WIDTH, by_hand, mixture, new_mixture, own_group
from support.pair import adamw, close
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType

import osdp


def refused(me: Member) -> None:
    group = own_group(me)
    model = new_mixture(me, by_hand(me), group)
    expert = model.layers[0].expert
    assert expert.process_group is group and expert.world_size == me.world // 2
    assert not expert.check_is_root() and FSDP.fsdp_modules(model, root_only=True) == [model]
    part = r"'layers\.0\.expert'"
    optimizer = adamw(model.parameters())
    model(torch.randn(4, WIDTH, dtype=torch.float64), skip=me.rank % 2 == 1).sum().backward()
    optimizer.step()
    for call in (expert.no_sync, lambda: expert.clip_grad_norm_(1.0)):
        with pytest.raises(osdp.ShardingError, match=f"outermost wrap: {part}"):
            call()
    for what, call in (
        ("A checkpoint", lambda: osdp.save(model, optimizer, "nowhere")),
        ("local_metadata_dict", model.local_metadata_dict),
        ("optimizer state dict, rank 0's", lambda: model.gather_full_optim_state_dict(optimizer)),
        (
            "optimizer state dict, rank 0's",
            lambda: FSDP.scatter_full_optim_state_dict({}, model, optim=optimizer),
        ),
    ):
        with pytest.raises(osdp.ShardingError, match=f"{what}.*{part}"):
            call()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        for call in (model.state_dict, lambda: FSDP.optim_state_dict(model, optimizer)):
            with pytest.raises(osdp.ShardingError, match=f"whose part {part}"):
                call()
    # The first rank of each group has its experts.
    with FSDP.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=True),
        FullOptimStateDictConfig(rank0_only=False),
    ):
        names = [n for n in mixture(0, 0).state_dict() if me.rank == 0 or (me.rank == 1 and ".expert." in n)]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert list(model.state_dict()) == names
        assert [w for w in told if "save these too" in str(w.message)] if me.rank == 0 else True
        states = FSDP.optim_state_dict(model, optimizer)
        assert ("layers.0.expert.up.weight" in states["state"]) == (
            me.rank % 2 == 0
        )  # others never called it
        assert states["state"]["layers.1.expert.up.weight"]["exp_avg"].shape == (2 * WIDTH, WIDTH)
    # And they come back, from each rank's own.
    fresh = new_mixture(me, by_hand(me), group)
    theirs = adamw(fresh.parameters())
    theirs.load_state_dict(FSDP.optim_state_dict_to_load(fresh, theirs, states))
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        assert (p in optimizer.state) == (q in theirs.state)
        if p in optimizer.state:
            close(theirs.state[q]["exp_avg"], optimizer.state[p]["exp_avg"], 0, "exp_avg")
    # Parts stay as they were where the model around them cannot be sharded.
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    around = mixture(0, 0)
    expert = around.layers[0].expert = FSDP(around.layers[0].expert, group)
    before = expert(x)
    with pytest.raises(osdp.DescribeError, match="failed while the model was described"):
        FSDP(around, me.group, sample=(torch.ones(2, 99, dtype=torch.float64),))
    assert torch.equal(expert(x), before) and around.layers[0].expert is expert
    # A whole model in two groups; parameters shared with a part; more ranks inside than outside.
    whole = FSDP(nn.Linear(2, 2), group)
    with pytest.raises(osdp.ShardingError, match="only a part of a model may have"):
        FSDP(whole, me.group)
    tied = mixture(0, 0)
    tied.layers[0].expert.up.weight = nn.Parameter(tied.table.weight.detach().repeat(2, 1))
    tied.table.weight = tied.layers[0].expert.up.weight
    tied.layers[0].expert = FSDP(tied.layers[0].expert, group)
    with pytest.raises(osdp.ShardingError, match=r"'table\.weight' is already sharded"):
        FSDP(tied, me.group)
    larger = nn.Sequential(nn.Linear(2, 2), FSDP(nn.Linear(2, 2), me.group))
    larger = FSDP(larger, group)
    larger(torch.ones(1, 2)).sum().backward()
    with pytest.raises(osdp.ShardingError, match=r"'1' is sharded over ranks .* the norm"):
        larger.clip_grad_norm_(1.0)
    with pytest.raises(osdp.ShardingError, match="would be missing from the norm"):
        nn.utils.clip_grad_norm_(larger.parameters(), 1.0)
    # Another model's norm does not depend on it: it may be garbage that one rank has not collected yet.
    whole(torch.ones(1, 2)).sum().backward()
    squares = sum(p.grad.square().sum() for p in whole.parameters())
    norm = nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    dist.all_reduce(squares, group=group)
    close(norm, squares.sqrt(), 1e-6, "norm")


@pytest.mark.outcome(
    "checkpoints, sharded and rank 0's optimizer state dicts of a model around such parts", osdp.ShardingError
)
def test_what_would_keep_one_groups_experts_is_refused(ranks):
    ranks(refused, world=4)
