"""State dicts of DTensors go into parameters that the loading model holds in full on every rank."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from torch import nn
from torch.distributed.fsdp import StateDictType

from osdp import FullyShardedDataParallel as FSDP


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def wrapped(seed: int, me: Member, strategy: str = "FULL_SHARD") -> FSDP:
    torch.manual_seed(seed)
    return FSDP(layers(), me.group, sharding_strategy=strategy)


def all_equal(model: FSDP, wanted: dict[str, torch.Tensor]) -> None:
    found = model.state_dict()
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def between_modes(me: Member) -> None:
    for kind in (StateDictType.SHARDED_STATE_DICT, StateDictType.LOCAL_STATE_DICT):
        written = wrapped(1, me)
        with FSDP.state_dict_type(written, kind):
            state = written.state_dict()
        for seed, reading in enumerate((StateDictType.FULL_STATE_DICT, kind), start=2):
            whole = wrapped(seed, me, "NO_SHARD")
            with FSDP.state_dict_type(whole, reading):
                whole.load_state_dict(state)
            all_equal(whole, written.state_dict())


def attached_since(me: Member) -> None:
    """The writer has made its plan since, in its first forward; the reader has not seen the new part yet."""

    def with_a_part(seed: int) -> FSDP:
        model = wrapped(seed, me)
        model.added = nn.Linear(3, 3).double()
        return model

    written, read = with_a_part(1), with_a_part(2)
    written(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
    with FSDP.state_dict_type(written, StateDictType.SHARDED_STATE_DICT):
        state = written.state_dict()
    with FSDP.state_dict_type(read, StateDictType.SHARDED_STATE_DICT):
        read.load_state_dict(state)
    all_equal(read, written.state_dict())


@pytest.mark.parametrize("case", [between_modes, attached_since], ids=lambda case: case.__name__)
def test_dtensors_are_loaded(ranks, case):
    ranks(case, world=2)
