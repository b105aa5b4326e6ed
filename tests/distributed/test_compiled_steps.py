"""torch.compile of an optimizer's step, whose checks run outside of the graph; compiled autograd, which is refused."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks
from support.pair import Pair

import osdp

LOAD = blocks.workload(count=1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.5)


def steps(me: Member) -> None:
    torch._dynamo.reset()
    pair = Pair(me, LOAD, "FULL_SHARD", optimizer=sgd)
    pair.sharded_optimizer.step = torch.compile(pair.sharded_optimizer.step, backend="eager")
    pair.train(2)
    pair.backward(pair.data(5), context=osdp.no_sync(pair.sharded))
    with pytest.raises(osdp.ShardingError, match="no backward has averaged"):
        pair.sharded_optimizer.step()


def test_a_compiled_step_is_the_steps_and_has_its_checks(ranks):
    ranks(steps, world=2)


def of_dtensors(me: Member) -> None:
    torch._dynamo.reset()
    model = osdp.fully_shard(torch.nn.Linear(3, 4), process_group=me.group)
    model(torch.ones(2, 3)).sum().backward()
    before = [p.detach().clone().full_tensor() for p in model.parameters()]
    optimizer = sgd(model.parameters())
    with pytest.raises(osdp.ShardingError, match=r"SGD.step\(\) is compiled"):
        torch.compile(optimizer.step, backend="eager")()
    assert all(torch.equal(p.full_tensor(), b) for p, b in zip(model.parameters(), before, strict=True))
    optimizer.step()
    assert not torch.equal(model.weight.full_tensor(), before[0])


def test_a_compiled_step_of_dtensors_is_refused(ranks):
    ranks(of_dtensors, world=2)


def compiled_backwards(me: Member) -> None:
    for mode in ("NO_SHARD", "FULL_SHARD"):
        torch._dynamo.reset()
        pair = Pair(me, LOAD, mode)
        _, loss = pair.forward(pair.data(0))
        compiled = torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager"))
        with compiled, pytest.raises(osdp.ShardingError, match=r"compiled autograd cannot.*Leave it off"):
            loss.backward()
        pair.sharded.zero_grad()
        pair.train(1)


@pytest.mark.outcome("compiled autograd", osdp.ShardingError)
def test_compiled_autograd_is_refused(ranks):
    ranks(compiled_backwards, world=2)
