"""Parts of a model that are sharded over other ranks than the whole: the experts of a mixture train as in one process."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.experts import (
    FSDP,
    WIDTH,
    Expert,
    Layer,
    Mixture,
    OneProcess,
    by_hand,
    mixture,
    new_mixture,
    own_group,
    same_state,
    step,
    train,
)
from support.pair import SEED, adamw, close, naming
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.utils.checkpoint import checkpoint

import osdp
from osdp.sharding.nested_models import with_parts
from osdp.sharding.sharded_model import runtime_of


def by_policy(me: Member):
    def wrap(model: Mixture, group) -> nn.Module:
        policy = CustomPolicy(
            lambda m: {"process_group": group} if isinstance(m, Expert) else isinstance(m, Layer)
        )
        return FSDP(model, me.group, auto_wrap_policy=policy)

    return wrap


def by_function(me: Member):
    mesh = DeviceMesh.from_group(me.group, "cpu")

    def wrap(model: Mixture, group) -> nn.Module:
        experts = DeviceMesh.from_group(group, "cpu")
        for layer in model.layers:
            osdp.fully_shard(layer.expert, mesh=experts)
            osdp.fully_shard(layer, mesh=mesh)
        osdp.fully_shard(model, mesh=mesh)
        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
        return model

    return wrap


def of_torch(model, norm):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), norm)


def trained(me: Member, wrap, clip) -> None:
    group = own_group(me)
    one, model = OneProcess(me), new_mixture(me, wrap(me), group)
    assert runtime_of(model.layers[0].expert).group is group and runtime_of(model).group is me.group
    train(me, one, model, clip)
    other = new_mixture(me, wrap(me), group)
    other.load_state_dict(model.state_dict())
    same_state(one, other)


@pytest.mark.parametrize(
    ("world", "wrap", "clip"),
    [
        (2, by_hand, of_torch),
        (4, by_hand, osdp.clip_grad_norm_),
        (4, by_policy, of_torch),
        (4, by_function, osdp.clip_grad_norm_),
    ],
)
@pytest.mark.outcome("a part of the model with a process group of its own (experts)", "equal")
def test_experts_are_sharded_and_averaged_over_their_own_ranks(ranks, world, wrap, clip):
    ranks(trained, wrap, clip, world=world)


class Recomputed(nn.Module):
    def __init__(self, module: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.module, self.reentrant = module, reentrant

    def forward(self, *args):
        return checkpoint(self.module, *args, use_reentrant=self.reentrant)


def recomputed(me: Member) -> None:
    """Around an expert's wrap, and around a layer that has one."""
    group = own_group(me)
    for what, reentrant in (("layer", False), ("layer", True), ("expert", False)):

        def wrap(model: Mixture, group, what=what, reentrant=reentrant) -> nn.Module:
            for i, layer in enumerate(model.layers):
                layer.expert = FSDP(layer.expert, process_group=group)
                if what == "expert":
                    layer.expert = Recomputed(layer.expert, reentrant)
                else:
                    model.layers[i] = Recomputed(FSDP(layer, me.group), reentrant)
            return FSDP(model, me.group)

        one, model = OneProcess(me), new_mixture(me, wrap, group)
        with naming(f"{what}, reentrant {reentrant}"):
            step(me, one, model)
            step(me, one, model, seed=6)
            assert not any(sharded.gathered_bytes() for _, sharded in with_parts(model))


def test_recomputation_of_experts_and_around_them(ranks):
    ranks(recomputed, world=4)


def planned(me: Member) -> None:
    """The plan of the whole knows nothing of the experts, whose forward it was traced through."""
    group = own_group(me)
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    for options in ({}, {"sample": (x,)}, {"memory": "1GiB"}, {"memory": "1GiB", "sample": (x,)}):
        with naming(str(options)):
            one = OneProcess(me)
            model = new_mixture(me, by_hand(me, **options), group)
            step(me, one, model)
            assert {o.name for o in model.plan.description.operators if o.parameters} == {
                "table",
                "head",
                *(f"layers.{i}.{n}" for i in range(2) for n in ("before", "after")),
            }
            assert not any("expert" in name for name in runtime_of(model).names())
            assert {"up", "down"} == {
                o.name for o in model.layers[0].expert.plan.description.operators if o.parameters
            }
            step(me, one, model, seed=6)
    # One plan for the whole, and one for each expert.
    one, model = OneProcess(me), new_mixture(me, lambda model, _: model, group)
    for layer in model.layers:
        osdp.fully_shard(layer.expert, osdp.Plan.uniform(layer.expert, "SHARD_GRAD_OP"), group)
    rest = mixture(0, 0)
    for layer in rest.layers:
        layer.expert = nn.Identity()
    osdp.fully_shard(model, osdp.Plan.uniform(rest), me.group)
    step(me, one, model)


def test_plans_of_a_model_around_experts(ranks):
    ranks(planned, world=2)


def limited(me: Member) -> None:
    """Of `memory` the rest has what the experts leave, on the rank where they hold most."""
    group, x = own_group(me), torch.randn(4, WIDTH, dtype=torch.float64)

    def under(memory: int) -> nn.Module:
        return new_mixture(me, by_hand(me, memory=memory, sample=(x,)), group)

    experts = [layer.expert for layer in new_mixture(me, by_hand(me), group).layers]
    rows = sum(p.nbytes for expert in experts for p in expert.parameters())
    buffers = sum(b.nbytes for expert in experts for b in expert.buffers())
    held = max(me.everywhere(4 * rows + buffers))  # with gradients, and AdamW's two states
    with pytest.raises(osdp.InfeasibleError, match="nothing is left"):
        under(held)
    with pytest.raises(osdp.InfeasibleError, match="figures are of the rest") as error:
        under(held + 1)
    least = me.everywhere(error.value.smallest_limit)[0]
    with pytest.raises(osdp.InfeasibleError):
        under(least - 1)
    assert held < held + under(least).plan.predicted.peak_memory_bytes <= least


@pytest.mark.outcome("`memory=` that parts over other ranks use up", osdp.InfeasibleError)
def test_memory_is_also_that_of_the_parts(ranks):
    ranks(limited, world=2)


def in_the_middle(me: Member) -> None:
    one, model = OneProcess(me), new_mixture(me, by_hand(me))

    def fails(*_: object) -> None:
        raise ValueError("on purpose")

    x = torch.randn(4, WIDTH, dtype=torch.float64)
    expert = model.layers[1].expert
    for broken in (expert.down, model.layers[1].after):
        handle = broken.register_forward_hook(fails)
        with pytest.raises(ValueError, match="on purpose"):
            model(x)
        handle.remove()
        handle = broken.register_full_backward_hook(fails)
        with pytest.raises(ValueError, match="on purpose"):
            model(x).sum().backward()
        handle.remove()
        assert not any(sharded.gathered_bytes() for _, sharded in with_parts(model))
    model.zero_grad()
    step(me, one, model)
    # Between its forward and its backward an expert keeps nothing in full.
    out = model(x)
    assert not any(runtime_of(layer.expert).gathered_bytes() for layer in model.layers)
    with osdp.no_sync(model):
        out.sum().backward()
    # Its gradients of no_sync wait for a backward that reaches it, if only with no tokens.
    optimizer = adamw(model.parameters())
    model(x, skip=True).sum().backward()
    with pytest.raises(osdp.ShardingError, match="no_sync kept"):
        optimizer.step()
    (model(x, skip=True).sum() + expert(x[:0]).sum() + model.layers[0].expert(x[:0]).sum()).backward()
    optimizer.step()
    one.mine.load_state_dict(model.state_dict())
    y = torch.randn(2, WIDTH, dtype=torch.float64)
    close(expert(y), one.mine.layers[1].expert(y), 1e-9, "an expert by itself")
    model.eval()
    with torch.no_grad():
        close(model(x), one.mine(x), 1e-9, "evaluated")


def test_exceptions_in_and_around_experts(ranks):
    ranks(in_the_middle, world=4)


def in_low_precision(me: Member) -> None:
    """The whole in bfloat16, its experts in float32, by casts of their own."""
    group = own_group(me)
    whole, model = (mixture(SEED, 100 + me.rank).float() for _ in range(2))
    keep = osdp.MixedPrecision(torch.float32, output_dtype=torch.bfloat16)
    for layer in model.layers:
        layer.expert = FSDP(layer.expert, group, mixed_precision=keep)
    model = FSDP(model, me.group, mixed_precision=osdp.MixedPrecision(torch.bfloat16, torch.float32))
    seen = set()
    for linear in (model.table, model.layers[0].expert.up):
        linear.register_forward_hook(
            lambda m, args, out: seen.add((m.in_features, m.out_features, out.dtype))
        )
    torch.manual_seed(me.rank)
    x = torch.randn(4, WIDTH)
    model(x).float().square().mean().backward()
    assert seen == {(WIDTH, WIDTH, torch.bfloat16), (WIDTH, 2 * WIDTH, torch.float32)}
    whole(x).square().mean().backward()
    wanted = dict(whole.named_parameters())
    with osdp.summon_full_params(model, with_grads=True, writeback=False):
        for name, p in model.named_parameters():
            own = ".expert." in name  # of a group of one rank
            close(p.grad, wanted[name].grad if own else me.mean(wanted[name].grad), 0.03, name)


def test_experts_in_another_precision(ranks):
    ranks(in_low_precision, world=2)
