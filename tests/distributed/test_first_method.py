"""A wrap without a sample, trained through a registered method: its first call makes the plan, as a forward would."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from harness import Member
from support.nested import Net
from support.pair import SEED, adamw, close
from torch import Tensor, nn

import osdp
from osdp.sharding.sharded_model import runtime_of

FSDP = osdp.FullyShardedDataParallel


class Trainable(Net):
    """A method that trains through forward, one that trains through the modules, and a helper; each may call others."""

    def step(self, batch: dict[str, Tensor], scale: float) -> Tensor:
        return self.penalised(self(batch["tokens"]).square().mean() * scale)

    def by_modules(self, batch: dict[str, Tensor], scale: float) -> Tensor:
        x = self.table(batch["tokens"])
        for block in self.blocks:
            x = block(x)
        return self.penalised((self.inner(x) @ self.table.weight.T).square().mean() * scale)

    def penalised(self, loss: Tensor) -> Tensor:
        return loss + 0.01 * self.norm()

    def norm(self) -> Tensor:
        return self.table.weight.square().mean()

    def asks(self, batch: dict[str, Tensor], scale: float) -> Tensor:
        loss = self.step(batch, scale)
        return loss * 2 if loss.item() > 0 else loss


def trainable(seed: int) -> Trainable:
    torch.manual_seed(seed)
    return Trainable().double()


def places(model: nn.Module) -> dict[str, tuple[str, ...]]:
    return {o.name: o.gather_at for o in runtime_of(model).plan.description.operators if o.parameters}


def train(me: Member, whole: nn.Module, model: nn.Module, method: str, steps: int = 3) -> None:
    both = [(m, adamw(m.parameters())) for m in (whole, model)]
    torch.manual_seed(3)
    for step in range(steps):
        tokens = torch.randint(10, (2 * me.world, 4))
        losses = [
            getattr(m, method)({"tokens": d}, 2.0) for m, d in ((whole, tokens), (model, me.part(tokens)))
        ]
        close(me.mean(losses[1]), losses[0], 1e-9, f"loss of step {step}")
        for loss, (_, optimizer) in zip(losses, both, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    state = model.state_dict()
    for name, value in whole.named_parameters():
        close(state[name], value, 1e-9, name)


def regrouped(me: Member, method: str) -> None:
    whole, inner = trainable(SEED), trainable(SEED + me.rank)
    model = FSDP(inner, me.group)
    for name in (method, "penalised", "norm"):
        osdp.register_forward_method(model, name)
    before = places(model)
    close(model.norm(), whole.norm(), 1e-9, "a helper")
    model.eval(), model.step({"tokens": torch.zeros(1, 4, dtype=torch.long)}, 1.0), model.train()
    assert places(model) == before and before["inner.0.up"] == ("inner.0",)
    train(me, whole, model, method)
    assert places(model)["inner.0.up"] == ("inner.0.up",) and type(inner) is Trainable
    model.norm().backward()


@pytest.mark.parametrize("method", ["step", "by_modules"])
def test_parameters_are_gathered_where_the_first_call_reads_them(ranks, method):
    ranks(regrouped, method, world=2)


def searched(me: Member) -> None:
    model = FSDP(trainable(SEED + me.rank), me.group, memory="1GiB")
    for name in ("step", "norm", "asks"):
        osdp.register_forward_method(model, name)
    with pytest.warns(UserWarning, match=r"norm\(\) .*'blocks.0.up.weight'"):
        model.norm()
    with pytest.raises(osdp.DescribeError, match="depends on the values of tensors"):
        model.asks({"tokens": torch.zeros(2, 4, dtype=torch.long)}, 1.0)
    assert model.plan.searched is None
    train(me, trainable(SEED), model, "step")
    assert model.plan.searched is not None and model.plan.batch_size == 2
    described = {o.name: o for o in model.plan.description.operators}
    assert described["inner.0.up"].saved_bytes_per_sample > 0 and described["inner.0.up"].traced


def test_memory_searches_with_the_first_call(ranks):
    ranks(searched, world=2)


def of_a_part(me: Member) -> None:
    """A method that was registered when the part was the whole goes on gathering; and nothing keeps a model alive."""
    whole, part = trainable(SEED), trainable(SEED)
    FSDP(part, me.group)
    osdp.register_forward_method(part, "step")
    model = FSDP(nn.Sequential(part, nn.Linear(10, 10).double()), me.group)
    tokens = torch.randint(10, (2, 4), generator=torch.Generator().manual_seed(me.rank))
    close(part.step({"tokens": tokens}, 1.0), whole.step({"tokens": tokens}, 1.0), 1e-9, "a part's method")
    close(model(tokens), model[1](whole(tokens)), 1e-9, "output")
    gone = weakref.ref(part)
    del model, part
    gc.collect()
    assert gone() is None


def test_a_registered_method_of_a_part(ranks):
    ranks(of_a_part, world=2)
