"""Shards in host memory. Where the device is the host nothing need move; the copies are tested by making them anyway."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import SEED, Pair, close, naming
from torch import nn
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, OffloadPolicy

import osdp
from osdp.ranks.rank_group import Together
from osdp.sharding import cpu_offload as offload
from osdp.sharding.materialize import survey
from osdp.sharding.sharded_model import runtime_of


def hybrid_too(description: osdp.ModelDescription) -> osdp.Plan:
    plan = plans.mixture(description, 2)
    return plans.apart(plan.replace({"blocks.0.down": osdp.Choice("HYBRID_SHARD")}))


def some(description: osdp.ModelDescription) -> osdp.Plan:
    """Offloads some operators, over all ranks and inside hosts, beside others that stay on the device."""
    choices = {
        "embed": "FULL_SHARD_OFFLOAD",
        "blocks.0.up": "HYBRID_SHARD_OFFLOAD",
        "head": "FULL_SHARD_OFFLOAD",
    }
    plan = plans.mixture(description, 2).replace({name: osdp.Choice(mode) for name, mode in choices.items()})
    return plans.apart(plan.replace(recompute={"blocks.0": "regather"}))


def in_slices(description: osdp.ModelDescription) -> osdp.Plan:
    """Each slice comes and goes by itself."""
    sliced = plans.in_slices(description, "out").replace(recompute={"blocks.0": "hold"})
    choices = {
        name: osdp.Choice(
            "FULL_SHARD_OFFLOAD", c.granularity, split="in" if name.endswith("down") else c.split
        )
        if c.granularity > 1
        else osdp.Choice("FULL_SHARD_OFFLOAD")
        for name, c in sliced.choices.items()
    }
    return plans.apart(sliced.replace(choices))


def chosen(description: osdp.ModelDescription) -> dict[str, tuple[osdp.Plan, bool]]:
    """Plans, and whether everything is offloaded; else what the plan says."""
    return {
        "FULL_SHARD": (plans.apart(osdp.Plan.uniform(description, "FULL_SHARD")), True),
        "few units": (osdp.Plan.uniform(description, "SHARD_GRAD_OP"), True),
        "mixture": (hybrid_too(description), True),
        "some": (some(description), False),
        "slices of the plan": (in_slices(description), False),
        "few units of the plan": (osdp.Plan.uniform(description, "FULL_SHARD_OFFLOAD"), False),
    }


def pairs(me: Member, **options):
    described = describe_once(
        blocks.workload(count=1).model(SEED, torch.float64), *blocks.workload().data(0, 2, torch.float64)[0]
    )
    for name, (plan, everything) in chosen(described).items():
        with naming(name):
            yield Pair(
                me, blocks.workload(count=1), plan, ranks_per_host=2, cpu_offload=everything, **options
            )


def test_what_rests_in_host_memory():
    """Beside an accelerator; on a CPU nothing, since it has no other memory."""
    tokens = blocks.workload().data(0, 2, torch.float64)[0]
    description = describe_once(blocks.workload(count=1).model(SEED, torch.float64), *tokens)
    plan, names = some(description), [p.name for o in description.operators for p in o.parameters]
    wanted = {n for n in names if n.split(".w")[0].split(".b")[0] in ("embed", "head") or ".up." in n}
    gpu = torch.device("cuda", 0)
    assert offload.offloads(plan) and not offload.offloads(osdp.Plan.uniform(description))
    assert offload.offloaded_names(plan, names, False, gpu) == wanted
    assert offload.offloaded_names(plan, names, True, gpu) == set(names)
    assert offload.offloaded_names(plan, names, True, offload.HOST) == set()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, False),
        (False, False),
        (True, True),
        (CPUOffload(), False),
        (CPUOffload(offload_params=True), True),
        (OffloadPolicy(), False),
        (CPUOffloadPolicy(), True),
    ],
)
def test_what_says_offload(given, wanted):
    assert offload.wants_offload(given) is wanted


def test_what_does_not_say_offload():
    with pytest.raises(osdp.InvalidProblemError, match="'params'"):
        offload.wants_offload("params")


def on_the_host(me: Member) -> None:
    """Accepted; the parameters stay what they are, in memory that nothing is copied from."""
    model = blocks.workload(count=1).model(SEED, torch.float64)
    before = list(model.parameters())
    wrapped = osdp.FullyShardedDataParallel(
        model, process_group=me.group, cpu_offload=CPUOffload(offload_params=True)
    )
    assert all(a is b for a, b in zip(before, wrapped.parameters(), strict=True))
    assert runtime_of(model).device == torch.device("cpu")
    with pytest.raises(osdp.InvalidProblemError, match="cpu_offload"):
        osdp.FullyShardedDataParallel(blocks.Blocks(1), process_group=me.group, cpu_offload=3)
    with pytest.raises(osdp.DisagreementError, match="cpu_offload=True on rank 1"):
        osdp.FullyShardedDataParallel(blocks.Blocks(1), process_group=me.group, cpu_offload=me.rank == 1)


def test_on_the_host_offloading_changes_nothing(ranks):
    ranks(on_the_host, world=2)


def moving(me: Member, case: str, *args) -> None:
    """Runs a case with host memory taken for another memory than the device's: what rests there is copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload, "rests_apart", lambda wanted, device: wanted)
        globals()[case](me, *args)


def train(me: Member, micros: int, no_sync: bool) -> None:
    for pair in pairs(me):
        pair.train(steps=3, micros=micros, no_sync=no_sync)
        pair.evaluate()
        assert runtime_of(pair.sharded).gathered_bytes() == 0


@pytest.mark.parametrize(("world", "micros", "no_sync"), [(2, 1, False), (2, 3, True), (4, 3, False)])
def test_training_is_that_of_one_process(ranks, world, micros, no_sync):
    ranks(moving, "train", micros, no_sync, world=world)


def memory_stays(me: Member) -> None:
    """A parameter and its gradient rest in the same host memory over steps, whatever was gathered in between."""
    for pair in pairs(me):
        parameter = pair.sharded.head.weight
        at = parameter.data_ptr()
        pair.backward(pair.data(0))
        gradient = parameter.grad
        gradient_at = gradient.data_ptr()
        pair.backward(pair.data(1))  # added to what is at home
        assert parameter.data_ptr() == at
        assert parameter.grad is gradient and gradient.data_ptr() == gradient_at
        pair.same_gradients()


def test_shards_and_gradients_stay_where_they_are(ranks):
    ranks(moving, "memory_stays", world=2)


def gradients_of_their_own(me: Member, apart: bool) -> None:
    """The small gradients of a unit are reduced in one memory, and stay views of it unless they are sent home."""
    plan = lambda d: osdp.Plan.uniform(d, "FULL_SHARD")  # noqa: E731
    pair = Pair(me, blocks.workload(count=1), plan, cpu_offload=True)
    pair.backward(pair.data(0))
    own = [p.grad.untyped_storage().nbytes() == p.grad.nbytes for p in pair.sharded.parameters()]
    assert all(own) == apart


def test_gradients_are_copied_home_where_that_is_another_memory(ranks):
    ranks(moving, "gradients_of_their_own", True, world=2)
    ranks(gradients_of_their_own, False, world=2)


def whole_ones(me: Member, directory: Path) -> None:
    """Clipping, summoning, state dicts and checkpoints."""
    for number, pair in enumerate(pairs(me)):
        pair.backward(pair.data(0))
        wanted = nn.utils.clip_grad_norm_(pair.whole.parameters(), 0.1, math.inf)
        close(osdp.clip_grad_norm_(pair.sharded, 0.1, math.inf), wanted, 1e-9, "norm")
        pair.same_gradients()
        pair.update()
        whole = dict(pair.whole.named_parameters())
        with osdp.summon_full_params(pair.sharded), torch.no_grad():
            for name, parameter in pair.sharded.named_parameters():
                close(parameter, whole[name], 1e-9, name)
                parameter.mul_(2)
                whole[name].mul_(2)
        pair.same_parameters()
        osdp.save(pair.sharded, pair.sharded_optimizer, directory / str(number), process_group=me.group)
        with torch.no_grad():
            for parameter in pair.sharded.parameters():
                parameter.zero_()
        osdp.load(pair.sharded, pair.sharded_optimizer, directory / str(number), process_group=me.group)
        pair.train(steps=1)


def test_what_needs_whole_parameters(ranks, tmp_path):
    ranks(moving, "whole_ones", tmp_path, world=2)


def from_meta(me: Member) -> None:
    with torch.device("meta"):
        model = blocks.Blocks(1)
    plan = osdp.Plan.uniform(describe_once(model, torch.zeros(2, 3, dtype=torch.long)))
    torch.manual_seed(3)
    osdp.fully_shard(model, plan, me.group, cpu_offload=True)
    torch.manual_seed(3)
    found = model.state_dict()
    for name, value in blocks.Blocks(1).state_dict().items():
        assert torch.equal(found[name], value), name
    tokens = torch.zeros(2, 3, dtype=torch.long)
    model(tokens).sum().backward()


def test_from_the_meta_device(ranks):
    ranks(moving, "from_meta", world=2)


def on_a_gpu(me: Member) -> None:
    """Shards in pinned memory, the rest on the GPU; over gloo, two ranks on one GPU."""
    torch.manual_seed(SEED)
    whole = blocks.Blocks(1).double().cuda()
    torch.manual_seed(SEED)
    model = blocks.Blocks(1).double()
    tokens = torch.randint(blocks.VOCABULARY, (4, 4), device="cuda")
    plan = osdp.Plan.uniform(describe_once(model, tokens[:, :-1].cpu()))
    osdp.fully_shard(model, plan, me.group, device_id="cuda", cpu_offload=True)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (whole, model)]
    for _ in range(3):
        blocks.surprise(whole(tokens[:, :-1]), tokens[:, 1:]).backward()
        mine = me.part(tokens)
        for _ in range(2):  # accumulated: what is at home is added to
            (blocks.surprise(model(mine[:, :-1]), mine[:, 1:]) / 2).backward()
        for parameter in model.parameters():
            assert parameter.is_pinned() and parameter.grad.device.type == "cpu"
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for name, value in model.state_dict().items():
        close(value.cuda(), whole.state_dict()[name], 1e-9, name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_shards_rest_in_pinned_memory(ranks):
    ranks(on_a_gpu, world=2)


def where_models_go(me: Member) -> None:
    """The device that is chosen where an accelerator is there, told without touching one."""
    meta, host = nn.Linear(4, 4, device="meta"), nn.Linear(4, 4)
    gpu, together = torch.device("cuda", 1), Together(me.group)
    wanted = {
        "from the meta device to the accelerator": (survey(together, meta, me.group), gpu, True),
        "a model on the host stays": (survey(together, host, me.group), offload.HOST, False),
        "unless it is offloaded": (survey(together, host, me.group, offload=True), gpu, True),
        "or sent elsewhere": (survey(together, host, me.group, "cuda:0"), torch.device("cuda", 0), True),
        "or kept": (survey(together, host, me.group, "cpu", offload=True), offload.HOST, False),
        "the current one of a kind": (survey(together, meta, me.group, "cuda"), gpu, True),
        "by number": (survey(together, meta, me.group, 0), torch.device("cuda", 0), True),
    }
    for what, (found, device, elsewhere) in wanted.items():
        assert (found.device, found.elsewhere) == (device, elsewhere), what
    with pytest.raises(osdp.InvalidProblemError, match="meta device"):
        survey(together, host, me.group, "meta")


def with_an_accelerator(me: Member) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")
        )
        patch.setattr(torch.accelerator, "current_device_index", lambda: 1)
        where_models_go(me)


def test_which_device_a_model_goes_to(ranks):
    ranks(with_an_accelerator, world=1)


def in_low_precision(me: Member) -> None:
    """What rests at home is in the parameters' own dtype, bit for bit what it is without offloading."""
    (tokens,), target = blocks.workload().data(1, 2 * me.world, torch.float32)
    description = describe_once(Tied(), tokens)
    policies = (None, osdp.MixedPrecision(torch.bfloat16, torch.float32), osdp.MixedPrecision(torch.bfloat16))
    for granularity, policy in itertools.product((1, 2), policies):
        gradients = []
        for cpu_offload in (False, True):
            torch.manual_seed(SEED)
            model = Tied()
            plan = osdp.Plan.uniform(description, "FULL_SHARD", granularity)
            osdp.fully_shard(model, plan, me.group, cpu_offload=cpu_offload, mixed_precision=policy)
            for _ in range(2):
                blocks.surprise(model(me.part(tokens)), me.part(target)).backward()
            gradients.append([p.grad for p in model.parameters()])
        for kept, home in zip(*gradients, strict=True):
            assert home.dtype == torch.float32
            assert torch.equal(kept, home), f"{granularity}, {policy}"


def test_mixed_precision(ranks):
    ranks(moving, "in_low_precision", world=2)


class Tied(blocks.Blocks):
    """Its head reads the embedding; so half of its parameters are held over the whole pass."""

    def __init__(self) -> None:
        super().__init__(2)
        self.head.weight = self.embed.weight


def everything_mixed(description: osdp.ModelDescription) -> osdp.Plan:
    """Two levels, replicas, slices both ways, a recomputed block: what each part of offloading has to know of."""
    plan = plans.mixture(description, 2).replace(
        {
            "embed": osdp.Choice("HYBRID_SHARD"),
            "blocks.0.up": osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=1, split="out"),
            "blocks.0.down": osdp.Choice("FULL_SHARD", granularity=3, split="in"),
            "blocks.1.up": osdp.Choice("HYBRID_SHARD"),
            "blocks.1.down": osdp.Choice("SHARD_GRAD_OP"),
            "norm": osdp.Choice("NO_SHARD"),
        }
    )
    return plans.apart(plan.replace(recompute={"blocks.1": "hold"}))


def low_steps(me: Member, model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> None:
    """Two steps of three micro-batches, of which two are not synchronised, clipped."""
    for step in range(first, first + 2):
        for micro in range(3):
            (tokens,), target = blocks.workload().data(10 * step + micro, 2 * me.world, torch.float32)
            with contextlib.nullcontext() if micro == 2 else osdp.no_sync(model):
                (blocks.surprise(model(me.part(tokens)), me.part(target)) / 3).backward()
        osdp.clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()


def everything_together(me: Member, directory: Path) -> None:
    """From the meta device, offloaded, in low precision: bit for bit what a model is that was none of the first two; and
    so is one without values that a checkpoint fills."""
    options = {
        "mixed_precision": osdp.MixedPrecision(torch.bfloat16, torch.float32),
        "ranks_per_host": 2,
        "process_group": me.group,
    }
    plan = everything_mixed(describe_once(Tied(), torch.zeros(2, 3, dtype=torch.long)))

    def meta(**more) -> tuple[nn.Module, torch.optim.Optimizer]:
        with torch.device("meta"):
            model = Tied()
        osdp.fully_shard(model, plan, cpu_offload=True, **options, **more)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = meta()
    there = Tied()
    there.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    osdp.fully_shard(there, plan, **options)
    others = torch.optim.AdamW(there.parameters(), lr=1e-2)
    low_steps(me, model, optimizer, 0)
    low_steps(me, there, others, 0)
    osdp.save(model, optimizer, directory, process_group=me.group)
    filled, its_optimizer = meta(initialise=False)
    osdp.load(filled, its_optimizer, directory, process_group=me.group)
    for each, with_optimizer in ((model, optimizer), (there, others), (filled, its_optimizer)):
        low_steps(me, each, with_optimizer, 5)
        assert runtime_of(each).gathered_bytes() == 0
        assert each.head.weight is each.embed.weight
    wanted = there.state_dict()
    for what, each in (("offloaded", model), ("from a checkpoint", filled)):
        for name, value in each.state_dict().items():
            assert value.dtype == torch.float32 and torch.equal(value, wanted[name]), f"{what}: {name}"


def test_meta_device_offloading_and_low_precision_together(ranks, tmp_path):
    ranks(moving, "everything_together", tmp_path / "step", world=4)
