"""FullyShardedDataParallel: the class that existing scripts construct."""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import SEED, adamw, close, naming
from support.worlds import worlds
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of

TOLERANCE = 1e-9


def whole_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = blocks.workload().model(SEED, torch.float64)
    return model, adamw(model.parameters())


def wrapped_model(me: Member, **options) -> tuple[osdp.FullyShardedDataParallel, torch.optim.Optimizer]:
    model = blocks.workload().model(SEED + me.rank, torch.float64)
    wrapped = osdp.FullyShardedDataParallel(model, process_group=me.group, **options)
    return wrapped, adamw(wrapped.parameters())


def data(me: Member, step: int):
    (tokens,), target = blocks.workload().data(step, 2 * me.world, torch.float64)
    return tokens, target


def a_mixture() -> osdp.Plan:
    model = blocks.workload().model(SEED, torch.float64)
    return plans.mixture(osdp.describe(model, *blocks.workload().data(0, 2, torch.float64)[0]), 4)


def train(me: Member, planned: bool, norm_type: float) -> None:
    """Accumulation with no_sync, clipping, five steps; then the state dict under the unwrapped names."""
    whole, whole_optimizer = whole_model()
    wrapped, optimizer = wrapped_model(me, plan=a_mixture() if planned else None)
    for step in range(5):
        for micro in range(2):
            tokens, target = data(me, 10 * step + micro)
            loss = blocks.surprise(whole(tokens), target)
            loss.backward()
            with wrapped.no_sync() if micro == 0 else contextlib.nullcontext():
                mine = blocks.surprise(wrapped(me.part(tokens)), me.part(target))
                mine.backward()
            close(me.mean(mine), loss, TOLERANCE, f"loss at step {step}")
        wanted = nn.utils.clip_grad_norm_(whole.parameters(), 0.3, norm_type)
        close(torch.as_tensor(wrapped.clip_grad_norm_(0.3, norm_type)), wanted, TOLERANCE, "norm")
        for each in (whole_optimizer, optimizer):
            each.step()
            each.zero_grad()
    state = wrapped.state_dict()
    assert list(state) == list(whole.state_dict())
    for name, value in whole.state_dict().items():
        close(state[name], value, TOLERANCE, name)


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("world", worlds(1, 3, more=(2,)))
def test_a_script_with_the_class_trains_as_one_process(ranks, planned, norm_type, world):
    ranks(train, planned, norm_type, world=world)


def methods(me: Member) -> None:
    wrapped, _ = wrapped_model(me)
    whole, _ = whole_model()
    found = wrapped.state_dict()
    for name, value in whole.state_dict().items():
        close(found[name], value, TOLERANCE, name)
    assert wrapped.checkpointing is None  # an attribute of the wrapped module
    assert isinstance(wrapped.blocks[0], blocks.Block)
    assert isinstance(wrapped.module, blocks.Blocks)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = wrapped.nothing_of_the_kind
    with wrapped.summon_full_params(with_grads=False):
        assert wrapped.head.weight.shape == (blocks.VOCABULARY, blocks.HIDDEN)
        with torch.no_grad():
            wrapped.head.weight.fill_(2.0)
    assert torch.equal(wrapped.state_dict()["head.weight"], torch.full_like(whole.head.weight, 2.0))
    assert wrapped.head.weight.shape != (blocks.VOCABULARY, blocks.HIDDEN)
    wrapped.load_state_dict(whole.state_dict())
    found = wrapped.state_dict()
    for name, value in whole.state_dict().items():
        close(found[name], value, TOLERANCE, name)
    assert sum(p.numel() for p in wrapped.parameters()) < sum(p.numel() for p in whole.parameters())
    wrapped.eval()
    assert not wrapped.module.training and not wrapped.blocks[0].up.training
    tokens, _ = data(me, 0)
    close(wrapped(tokens), whole(tokens), TOLERANCE, "evaluation")
    wrapped.scale = nn.Buffer(torch.ones(2))
    assert torch.equal(wrapped.module.scale, torch.ones(2)) and "scale" in wrapped.state_dict()
    for recurse in (True, False):
        for call in ("named_parameters", "named_buffers"):
            found, wanted = (
                [name for name, _ in getattr(m.head, call)("head", recurse=recurse)] for m in (wrapped, whole)
            )
            assert found == wanted
            own = [name for name, _ in getattr(wrapped, call)(recurse=recurse)]
            # By itself it owns nothing, as torch's class: a walk over modules meets each parameter once.
            assert own == [name for name, _ in getattr(wrapped.module, call)()] * recurse
    for told, shown in (
        ({"mixed_precision": True}, True),
        ({"mixed_precision": False}, False),
        ({}, False),
        ({"mixed_precision": "bf16"}, osdp.MixedPrecision),
    ):
        found = osdp.FullyShardedDataParallel(nn.Linear(2, 2), me.group, **told).mixed_precision
        assert found is shown or isinstance(found, (str, shown)), (told, found)


def test_methods_and_attributes(ranks):
    ranks(methods, world=2)


def sequential(me: Member) -> None:
    """`wrapped[i]` is the wrapped module's; a plain container without a description works too."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    wrapped = osdp.FullyShardedDataParallel(layers, process_group=me.group)
    assert wrapped[2] is layers[2]
    x = torch.randn(2, 4)
    wrapped(x).sum().backward()
    assert wrapped[0].weight.grad.shape == wrapped[0].weight.shape


def test_indexing_goes_to_the_module(ranks):
    ranks(sequential, world=2)


class Custom(osdp.FullyShardedDataParallel):
    """Users subclass it."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs) * 2


def what_is_whole(me: Member) -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    by_hand = osdp.FullyShardedDataParallel(layers, process_group=me.group, whole="2.*")
    assert {name: c.mode for name, c in by_hand.plan.choices.items()} == {"0": "FULL_SHARD", "2": "NO_SHARD"}
    assert by_hand[2].weight.shape == (8, 8)
    options = {"memory": "1GiB", "sample": torch.randn(2, 8), "whole": ["0"]}
    options["search"] = {"modes": "FULL_SHARD"}
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    searched = osdp.FullyShardedDataParallel(layers, process_group=me.group, **options)
    assert searched.plan.choices["0"].mode == "NO_SHARD" and searched.plan.searched.whole == ("0",)


def test_what_is_whole_is_said_to_the_class(ranks):
    ranks(what_is_whole, world=2)


def subclass(me: Member) -> None:
    with naming("a subclass"):
        torch.manual_seed(0)
        whole = nn.Linear(4, 4)
        torch.manual_seed(0)
        wrapped = Custom(nn.Linear(4, 4), process_group=me.group)
        x = torch.randn(2, 4)
        close(wrapped(x), whole(x) * 2, 1e-6, "output")


def test_a_subclass_works(ranks):
    ranks(subclass, world=2)


def from_the_meta_device(me: Member) -> None:
    """FSDP1's arguments: rank 0 loads a model, the others build its shapes; or all initialise."""
    whole, _ = whole_model()
    model = blocks.workload().model(SEED, torch.float64)
    if me.rank > 0:
        model = model.to("meta")
    wrapped = osdp.FullyShardedDataParallel(
        model,
        process_group=me.group,
        sync_module_states=True,
        device_id=torch.device("cpu"),
        param_init_fn=lambda module: module.to_empty(device="cpu", recurse=False),
    )
    for name, value in wrapped.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name
    with torch.device("meta"):
        model = blocks.Blocks(1)
    wrapped = osdp.FullyShardedDataParallel(model, process_group=me.group, sync_module_states=False)
    tokens, target = data(me, 0)
    blocks.surprise(wrapped(me.part(tokens)), me.part(target)).backward()
    with pytest.raises(osdp.InvalidProblemError, match="no accelerator"):
        osdp.FullyShardedDataParallel(blocks.Blocks(1), process_group=me.group, device_id=0)


def test_models_from_the_meta_device(ranks):
    ranks(from_the_meta_device, world=2)


def inputs_cast(me: Member) -> None:
    seen = []
    linear = nn.Linear(4, 4)
    linear.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    wrapped = osdp.FullyShardedDataParallel(linear, me.group, force_input_to_fp32=True)
    wrapped(torch.randn(2, 4, dtype=torch.float16))
    assert seen == [torch.float32]


def test_inputs_are_cast_to_fp32(ranks):
    ranks(inputs_cast, world=2)


def most_gathered(me: Member, **options) -> int:
    """Bytes of full parameters at the calls of four layers."""
    layers = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4)))
    model = osdp.FullyShardedDataParallel(layers, me.group, **options)
    seen = []
    for layer in layers:
        layer.register_forward_hook(lambda *_: seen.append(runtime_of(model).gathered_bytes()))
    model(torch.randn(2, 300)).sum().backward()
    return max(seen)


def sampled(me: Member) -> None:
    layer = (300 * 300 + 300) * 4
    assert most_gathered(me) >= 4 * layer
    assert most_gathered(me, sample=torch.zeros(2, 300)) <= 2 * layer + 4096


def test_a_sample_tells_where_parameters_are_read(ranks):
    ranks(sampled, world=2)
