"""One checkpoint of all stages of a pipeline, which other degrees and one process load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Member
from support.pair import close, naming
from test_parallelize import SAMPLES, batch, loss_of, net, plan_for
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

import osdp


class Trained:
    """A model over `tensor` x `pipeline` x what is left, or in one process, and its optimizer."""

    def __init__(self, me: Member, tensor: int, pipeline: int, seed: int = 0, **options: Any) -> None:
        model = net(seed)
        plan = me.once(lambda: plan_for(model, tensor, pipeline, me.world))
        self.pipe = osdp.parallelize(model, plan, loss_of, **options)
        self.model = self.pipe.module
        self.optimizer = torch.optim.AdamW(self.pipe.parameters(), lr=0.01)

    def step(self, number: int) -> None:
        plan = self.pipe.plan
        size, replica = SAMPLES // plan.data_parallel, self.pipe.mesh["dp"].get_local_rank()
        mine = slice(replica * size, (replica + 1) * size)
        tokens, targets = batch(number)
        self.pipe.step(tokens[mine], target=targets[mine])
        self.optimizer.step(), self.optimizer.zero_grad()


class Alone:
    def __init__(self, seed: int = 0) -> None:
        self.model = net(seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self, number: int) -> None:
        tokens, targets = batch(number)
        loss_of(self.model(tokens), targets).backward()
        self.optimizer.step(), self.optimizer.zero_grad()


def same(found: nn.Module, wanted: nn.Module) -> None:
    values = wanted.state_dict()
    for name, value in found.state_dict().items():
        close(value.full_tensor() if isinstance(value, DTensor) else value, values[name], 1e-9, name)


def saved(me: Member, folder: str) -> None:
    whole, source = Alone(), Trained(me, 2, 2)
    for each in (whole, source):
        each.step(0)
    osdp.save(source.model, source.optimizer, folder)
    whole.step(1)
    for name, target in {
        "one process": Alone(seed=3),
        "two stages": Trained(me, 1, 2, seed=3),
        "tensor parallelism": Trained(me, 2, 1, seed=3, dtensor_parameters=True),
        "the same": source,
    }.items():
        with naming(name):
            osdp.load(target.model, target.optimizer, folder)
            target.step(1)
            same(target.model, whole.model)
    with naming("into another model"):
        other = Trained(me, 1, 2)
        osdp.save(nn.Linear(2, 2), None, folder + "-other")
        try:
            osdp.load(other.model, other.optimizer, folder + "-other")
        except osdp.FormatError as error:
            assert "the checkpoint has no parameter" in str(error), error
            assert error.__notes__ == [f"This is rank {me.rank} (stage {me.rank // 2})."]
        else:
            raise AssertionError("loaded")
    # torch's own.
    source = Trained(me, 1, 2)
    source.step(0)
    flat = StateDictOptions(flatten_optimizer_state_dict=True)

    def states(of: Any) -> dict[str, Any]:
        return get_model_state_dict(of.model) | get_optimizer_state_dict(of.model, of.optimizer, options=flat)

    dcp.save(states(source), checkpoint_id=folder + "-dcp")
    with naming("settings of one stage"):
        nested = get_optimizer_state_dict(source.model, source.optimizer)
        dcp.save(nested, checkpoint_id=folder + "-nested")
        dcp.load(nested, checkpoint_id=folder + "-nested")
        before = source.optimizer.state_dict()["param_groups"]
        if any(nested["state"].keys() & set(group["params"]) for group in nested["param_groups"]):
            set_optimizer_state_dict(source.model, source.optimizer, nested)
        else:
            with pytest.raises(
                osdp.ShardingError, match=r"\(stage \d\): .* no settings .* of '[\w.]+'.*flatten"
            ):
                set_optimizer_state_dict(source.model, source.optimizer, nested)
        assert source.optimizer.state_dict()["param_groups"] == before
    if dist.get_rank() == 0:
        target = net(seed=3)
        dcp.load(target.state_dict(), checkpoint_id=folder + "-dcp", no_dist=True)
        fresh = Alone()
        fresh.step(0)
        same(target, fresh.model)


@pytest.mark.outcome(
    "optimizer states of several stages in one checkpoint of `torch.distributed.checkpoint`, not flattened",
    osdp.ShardingError,
)
def test_stages_are_saved_as_one_model(ranks, tmp_path):
    ranks(saved, str(tmp_path / "step"), world=4)
