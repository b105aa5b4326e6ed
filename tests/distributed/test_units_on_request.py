"""What a script asks of units by FSDP2's methods: how often they are gathered, what stays in memory, and the numbers."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.nested import Net, net, train
from support.pair import SEED, close
from test_fsdp_module import full_gradients, sharded_by
from torch import distributed as dist
from torch import nn
from torch.distributed import fsdp as torchs
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

import osdp
from osdp.fsdp.fsdp_module import as_fsdp_module
from osdp.sharding.parameter_settings import SYNC, change_setting
from osdp.sharding.sharded_model import runtime_of

WIDTH = 8
BLOCK_BYTES = 8 * (WIDTH * WIDTH + WIDTH)


def layers(me: Member, library=osdp, reshard: bool | None = None) -> nn.Sequential:
    """Three linear layers, a unit each."""
    torch.manual_seed(0)
    mesh = DeviceMesh.from_group(me.group, "cpu")
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    for layer in model:
        library.fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    library.fully_shard(model, mesh=mesh)
    return model


class Counted:
    """Gathers and reductions since the last look, and bytes that stay gathered."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.before = self._now()

    def _now(self) -> tuple[int, int]:
        counts = runtime_of(self.model).runtime.statistics()
        return counts["gathers"], counts["reductions"]

    def since(self) -> tuple[int, int]:
        now, before = self._now(), self.before
        self.before = now
        return now[0] - before[0], now[1] - before[1]

    def layers_held(self) -> float:
        return runtime_of(self.model).gathered_bytes() / BLOCK_BYTES


def inputs(me: Member, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return me.part(torch.randn(2 * me.world, WIDTH, dtype=torch.float64))


def micro_batch(model: nn.Module, data: torch.Tensor) -> None:
    model(data).square().mean().backward()


def after_backward(me: Member) -> None:
    """Gathered units live over micro-batches, in FSDP2's numbers, until the optimizer has stepped."""
    ours, theirs = layers(me), layers(me, torchs)
    made = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (ours, theirs)]
    micro_batch(ours, inputs(me, 9)), ours.zero_grad()  # the first forward looks where parameters are read
    count = Counted(ours)
    for model, _ in made:
        model.set_reshard_after_backward(False)
    for step, gathered in enumerate(((5, 2, 2), (5, 2, 2))):
        for micro in range(3):
            for model, _ in made:
                model.set_requires_gradient_sync(micro == 2)
                micro_batch(model, inputs(me, 10 * step + micro))
            assert count.since() == (gathered[micro], 3 if micro == 2 else 0)
            assert count.layers_held() == 3
        found = full_gradients(ours)
        for name, want in full_gradients(theirs).items():
            close(found[name], want, 1e-12, name)
        for model, optimizer in made:
            if model is theirs:
                for part in [*model, model]:
                    part.reshard()  # FSDP2 would go on with the old values
            optimizer.step(), optimizer.zero_grad()
        assert count.layers_held() == 0
    ours.set_reshard_after_backward(True)
    micro_batch(ours, inputs(me, 5))
    assert count.layers_held() == 0


def test_units_stay_after_backward(ranks):
    ranks(after_backward, world=2)


def after_forward(me: Member) -> None:
    """One gather for many forwards of an evaluation; what is written in between is gathered again."""
    model = layers(me)
    torch.manual_seed(0)
    whole = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    micro_batch(model, inputs(me, 9))
    model.zero_grad()
    with pytest.raises(osdp.InvalidProblemError, match="must be a bool"):
        model.set_reshard_after_forward(2)
    count = Counted(model)

    def same(seed: int) -> None:
        with torch.no_grad():
            close(model(inputs(me, seed)), whole(inputs(me, seed)), 1e-12, f"output {seed}")

    model.set_reshard_after_forward(False)
    for seed in range(3):
        same(seed)
    assert count.since() == (3, 0) and count.layers_held() == 3
    with torch.no_grad():
        model[1].weight.mul_(2), whole[1].weight.mul_(2)
    same(3)
    assert count.since() == (1, 0)
    third = {name: value / 3 for name, value in whole.state_dict().items()}
    for each in (model, whole):
        each.load_state_dict(third)
    same(4)
    assert count.since() == (3, 0)
    with osdp.summon_full_params(model):
        assert count.layers_held() == 0
        model[0].weight.data.mul_(5)
    whole[0].weight.data.mul_(5)
    same(5)
    assert count.since() == (3, 0)
    model.set_reshard_after_forward(True)
    same(6)
    assert count.since() == (0, 0) and count.layers_held() == 0
    micro_batch(model, inputs(me, 7))
    assert count.since() == (6, 3)  # the last one too is resharded after forward: so the script wants it


def test_units_stay_after_forward(ranks):
    ranks(after_forward, world=2)


def kept_over_forwards(me: Member) -> None:
    """reshard_after_forward=False: one gather for the forwards of all micro-batches, as FSDP2."""
    model = layers(me, reshard=False)
    micro_batch(model, inputs(me, 9))
    model.zero_grad()
    count = Counted(model)
    losses = [model(inputs(me, seed)).square().mean() for seed in range(4)]
    assert count.since() == (3, 0)
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_backward(False)
    for loss in losses[:-1]:
        loss.backward()
    model.set_requires_gradient_sync(True)
    model.set_reshard_after_backward(True)
    losses[-1].backward()
    assert count.since() == (0, 3) and count.layers_held() == 0
    theirs = layers(me, torchs)
    for seed in range(4):
        micro_batch(theirs, inputs(me, seed))
    found = full_gradients(model)
    for name, want in full_gradients(theirs).items():
        close(found[name], want, 1e-12, name)


def test_one_gather_for_the_forwards_of_micro_batches(ranks):
    ranks(kept_over_forwards, world=2)


def by_hand(me: Member) -> None:
    model = layers(me)
    micro_batch(model, inputs(me, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step(), optimizer.zero_grad()
    count = Counted(model)
    handle = model[1].unshard(async_op=True)
    handle.wait(), handle.wait()
    assert count.since() == (1, 0) and count.layers_held() == 1
    assert model[1].weight.numel() == WIDTH * WIDTH  # test_unsharded_reads.py
    micro_batch(model, inputs(me, 1))
    assert count.since() == (4, 3) and count.layers_held() == 0
    assert model.unshard() is None and count.since() == (0, 0)  # the model itself has no unit
    for layer in model:
        assert layer.unshard() is None
        layer.unshard(async_op=True)
    assert count.since() == (3, 0) and count.layers_held() == 3
    optimizer.step()
    assert count.layers_held() == 0
    model[0].unshard(async_op=True), model[0].reshard()
    assert count.since() == (1, 0) and count.layers_held() == 0
    loss = model(inputs(me, 2)).square().mean()
    for layer in model:
        layer.reshard()  # between forward and backward: backward gathers what it reads
    assert count.layers_held() == 0
    loss.backward()
    assert count.since() == (6, 3)
    with osdp.summon_full_params(model), pytest.raises(osdp.ShardingError, match="full already"):
        model[0].unshard()
    model.double()  # gives the same tensors; what was gathered could be stale
    model[2].unshard(async_op=True)
    model.to("cpu")
    assert count.layers_held() == 0


def test_units_are_gathered_and_resharded_by_hand(ranks):
    ranks(by_hand, world=2)


def frozen(me: Member) -> None:
    """A frozen unit stays gathered over steps; its new values are gathered."""
    model = layers(me)
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    micro_batch(model, inputs(me, 9))
    optimizer.step(), optimizer.zero_grad()
    model[1].set_reshard_after_backward(False)
    model[1].set_reshard_after_forward(False)
    count = Counted(model)
    micro_batch(model, inputs(me, 1))
    optimizer.step()
    assert count.layers_held() == 1 and count.since()[0] == 4
    micro_batch(model, inputs(me, 2))
    assert count.since()[0] == 3
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    micro_batch(model, inputs(me, 3))
    assert count.since()[0] == 4


def test_a_frozen_unit_stays_over_steps(ranks):
    ranks(frozen, world=2)


def in_backward(me: Member) -> None:
    """An embedding's backward does not read its table; a linear layer's backward does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).double()
    mesh = DeviceMesh.from_group(me.group, "cpu")
    for layer in model:
        osdp.fully_shard(layer, mesh=mesh)
    osdp.fully_shard(model, mesh=mesh)
    tokens = torch.arange(4) + me.rank
    micro_batch(model, tokens)
    wanted = full_gradients(model)
    model.zero_grad()
    model[0].set_unshard_in_backward(False)
    micro_batch(model, tokens)  # its order of gathers is recorded
    model.zero_grad()
    count = Counted(model)
    micro_batch(model, tokens)
    assert count.since() == (4, 3)
    for name, gradient in full_gradients(model).items():
        close(gradient, wanted[name], 1e-12, name)
    model.zero_grad()
    model[1].set_unshard_in_backward(False)
    for _ in range(2):
        with pytest.raises(Exception, match=r"1\.weight"):
            micro_batch(model, tokens)
    model[1].set_unshard_in_backward(True)
    model.zero_grad()
    micro_batch(model, tokens)
    for name, gradient in full_gradients(model).items():
        close(gradient, wanted[name], 1e-12, name)


def test_what_backward_does_not_gather(ranks):
    ranks(in_backward, world=2)


def recomputed(model: Net) -> Net:
    plain = model.blocks[2].forward
    model.blocks[2].forward = lambda x: checkpoint(plain, x, use_reentrant=True)
    return model


EVERY = list(itertools.product((None, True, False), (True, False), ("all", "some")))
# Each two settings together once.
PAIRS = [
    (None, True, "some"), (None, False, "all"), (True, True, "all"), (True, False, "some"), (False, True, "all"),
    (False, False, "some"),
]  # fmt: skip


def trains(me: Member, settings: list[tuple[bool | None, bool, str]]) -> None:
    """Nested, tied, frozen, skipped and recomputed parts, with these settings: one process's numbers."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    for forward, backward, of in settings:
        model = recomputed(sharded_by(osdp, net(SEED), mesh, True))
        for part in model.modules() if of == "all" else (model, model.blocks[1], model.inner[1]):
            if isinstance(part, osdp.FSDPModule):
                part.set_reshard_after_backward(backward, recurse=False)
                if forward is not None:
                    part.set_reshard_after_forward(forward, recurse=False)
        train(me, recomputed(net(SEED)), model)
        with pytest.raises(ZeroDivisionError):
            model.inner[1].forward = lambda x: 1 / 0
            model(torch.zeros(2, 4, dtype=torch.int64))
        assert runtime_of(model).gathered_bytes() == 0


@pytest.mark.parametrize("settings", [PAIRS, pytest.param(EVERY, marks=pytest.mark.extras)])
def test_every_combination_trains_as_one_process(ranks, settings):
    ranks(trains, settings, world=2)


def sync_of_a_part(me: Member) -> None:
    """A part keeps its gradients while the others reduce, in FSDP2's numbers."""
    ours, theirs = layers(me), layers(me, torchs)
    micro_batch(ours, inputs(me, 9)), ours.zero_grad()
    count = Counted(ours)
    for syncs in ((False, True), (False, False, True), (True, False, True)):
        for micro, sync in enumerate(syncs):
            for model in (ours, theirs):
                model[2].set_requires_gradient_sync(sync)
                micro_batch(model, inputs(me, micro))
            assert count.since()[1] == (3 if sync else 2)
            here = full_gradients(ours)
            for name, want in full_gradients(theirs).items():
                if sync or not name.startswith("2."):
                    close(here[name], want, 1e-12, f"{syncs} {micro} {name}")
        ours.zero_grad(), theirs.zero_grad()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    ours.set_requires_gradient_sync(False)
    ours[0].set_requires_gradient_sync(True)
    micro_batch(ours, inputs(me, 1))
    assert count.since()[1] == 1
    torch.optim.SGD(ours[0].parameters(), lr=0.0).step()  # all its gradients are averaged
    with pytest.raises(osdp.ShardingError, match=r"set_requires_gradient_sync\(False\)"):
        optimizer.step()
    optimizer.zero_grad()
    ours.set_requires_gradient_sync(True)
    with osdp.no_sync(ours):
        ours[1].set_requires_gradient_sync(True)  # no_sync is for all
        micro_batch(ours, inputs(me, 1))
    assert count.since()[1] == 0


def test_a_part_keeps_its_gradients(ranks):
    ranks(sync_of_a_part, world=2)


def sync_in_every_mode(me: Member, mode: str) -> None:
    """Buckets, copies in low precision and slices: what is kept is averaged once, with the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    whole = copy.deepcopy(model)
    plan = osdp.Plan.uniform(
        describe_once(model, torch.zeros(2, 4)), "FULL_SHARD" if mode == "slices" else mode.partition(" ")[0]
    )
    if mode == "slices":
        plan = plan.replace({"0": osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=1, split="out")})
    low = "low precision" in mode
    precision = osdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else None
    osdp.fully_shard(model, plan, process_group=me.group, mixed_precision=precision)
    for round_ in range(2):
        for micro in range(3):
            change_setting([model[0].weight], SYNC, micro == 2)
            torch.manual_seed(10 * round_ + micro)
            data = torch.randn(2 * me.world, 4)
            model(me.part(data)).square().mean().backward()
            whole(data).square().mean().backward()
        found = full_gradients(model)
        for name, p in whole.named_parameters():
            tolerance = {"rtol": 0.05, "atol": 0.05} if low else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(
                found[name], p.grad, msg=lambda m, n=(round_, name): f"{n}: {m}", **tolerance
            )
            p.grad = None
        model.zero_grad()


@pytest.mark.parametrize("mode", ["NO_SHARD", "SHARD_GRAD_OP", "slices", "NO_SHARD in low precision"])
def test_a_parameter_keeps_its_gradient_in_every_mode(ranks, mode):
    ranks(sync_in_every_mode, mode, world=2)


def copied_in_no_sync(me: Member) -> None:
    """A copy made within no_sync accumulates until that ends; a part's setting is copied."""
    model = layers(me)
    micro_batch(model, inputs(me, 9)), model.zero_grad()
    with osdp.no_sync(model):
        micro_batch(model, inputs(me, 1))
        made = copy.deepcopy(model)
        again = copy.deepcopy(made)
        count = Counted(made)
        micro_batch(made, inputs(me, 1)), micro_batch(again, inputs(me, 1))
        assert count.since()[1] == 0
    for each in (model, made, again):
        micro_batch(each, inputs(me, 2))
    assert count.since()[1] == 3
    found = full_gradients(made), full_gradients(again)
    for name, want in full_gradients(model).items():
        for each in found:
            close(each[name], want, 1e-12, name)
    model[2].set_requires_gradient_sync(False)
    made = copy.deepcopy(model)
    count = Counted(made)
    micro_batch(made, inputs(me, 1))
    assert count.since()[1] == 2
    assert dist.get_rank(me.group) == me.rank


def test_a_copy_within_no_sync(ranks):
    ranks(copied_in_no_sync, world=2)


def test_the_models_class_has_the_original_where_torch_looks():
    """torch.compile saves the guards of a class by `__mro__[2]`; FSDP2 has the original class there."""
    model = net(SEED)
    as_fsdp_module(model)
    kind = type(model)
    assert kind.__mro__[torchs.FSDPModule._orig_cls_mro_index] is Net and issubclass(kind, torchs.FSDPModule)
    assert issubclass(kind, osdp.FSDPModule) and kind._apply is osdp.FSDPModule._apply
