"""What a user says and sees of mixed precision: arguments of every library, dtypes, state dicts, buffers, refusals."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import SEED, Pair, naming
from torch import nn
from torch.distributed import fsdp

import osdp
from osdp.sharding.sharded_model import runtime_of

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((6,), 1.001))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.seen: list[torch.dtype] = []

    def forward(self, pair: dict[str, torch.Tensor], *, shift: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        self.seen = [pair["x"].dtype, pair["i"].dtype, shift.dtype, self.fc.weight.dtype, self.scale.dtype]
        return {"y": [self.fc(pair["x"] * self.scale + shift)], "i": [pair["i"]]}


def arguments():
    return {"x": torch.ones(2, 6), "i": torch.ones(2, dtype=torch.long)}, {"shift": torch.ones(6)}


def dtypes_seen(
    me: Member, wanted: object, options: dict
) -> tuple[list[torch.dtype], torch.dtype, torch.dtype]:
    """Dtypes inside; of the output; of the reduction."""
    model = osdp.FullyShardedDataParallel(Buffered(), me.group, mixed_precision=wanted, **options)
    pair, rest = arguments()
    runtime = runtime_of(model).runtime
    runtime.reset_statistics()
    output = model(pair, **rest)
    output["y"][0].sum().backward()
    elements = sum(p.numel() for p in Buffered().parameters())
    width = runtime.statistics()["reduced_bytes"] / elements
    assert output["i"][0].dtype == torch.long
    assert all(p.dtype == p.grad.dtype == FP32 for p in model.parameters() if p.numel())
    state = model.state_dict()
    assert state["scale"].dtype == state["fc.weight"].dtype == FP32 and state["count"].dtype == torch.long
    model.load_state_dict({**state, "scale": state["scale"] * 2})
    assert abs(float(model.state_dict()["scale"][0]) - 2.0) < 0.1
    return model.module.seen, output["y"][0].dtype, width


CASES = {
    "ours": (osdp.MixedPrecision(BF16), {}, [BF16, torch.long, BF16, BF16, FP32], BF16, 2),
    "sums and buffers": (
        osdp.MixedPrecision(BF16, FP32, BF16, output_dtype=FP32), {}, [BF16, torch.long, BF16, BF16, BF16], FP32, 4,
    ),
    "FSDP1": (
        fsdp.MixedPrecision(param_dtype=FP16, reduce_dtype=FP32, buffer_dtype=FP16),
        {}, [FP16, torch.long, FP16, FP16, FP16], FP16, 4,
    ),
    "FSDP2": (
        fsdp.MixedPrecisionPolicy(param_dtype=BF16, output_dtype=FP32), {},
        [BF16, torch.long, BF16, BF16, FP32], FP32, 2,
    ),
    "FairScale": (True, {}, [FP16, torch.long, FP16, FP16, FP16], FP16, 2),
    "FairScale with all arguments": (
        True, {"compute_dtype": BF16, "buffer_dtype": FP32, "fp32_reduce_scatter": True},
        [BF16, torch.long, BF16, BF16, FP32], FP32 and BF16, 4,
    ),
    "FairScale without": (False, {}, [FP32, torch.long, FP32, FP32, FP32], FP32, 4),
    "a name": ("bf16-reduce-fp32", {}, [BF16, torch.long, BF16, BF16, FP32], BF16, 4),
    "none": (None, {}, [FP32, torch.long, FP32, FP32, FP32], FP32, 4),
}  # fmt: skip


def every_argument(me: Member) -> None:
    for name, (wanted, options, inside, output, width) in CASES.items():
        with naming(name):
            if inside[3] is BF16 and inside[4] is FP32:  # bf16 * fp32 is fp32, which the layer does not take
                with pytest.raises(RuntimeError, match="dtype"):
                    dtypes_seen(me, wanted, options)
                continue
            assert dtypes_seen(me, wanted, options) == (inside, output, width)


def test_arguments_of_every_library(ranks):
    ranks(every_argument, world=2)


def full_precision_outside(me: Member) -> None:
    """summon_full_params, state dicts and parameters show the fp32 values that the optimizer made."""
    for mode in plans.MODES:
        with naming(mode):
            options = {"mixed_precision": osdp.MixedPrecision(BF16, output_dtype=FP32)}
            pair = Pair(me, blocks.workload(count=1), mode, dtype=FP32, tolerance=0.1, **options)
            pair.train(2)
            state = {n: v.clone() for n, v in pair.sharded.state_dict().items()}
            fine = sum(int((v != v.bfloat16().float()).sum()) for v in state.values())
            assert fine > 0.9 * sum(v.numel() for v in state.values()), "rounded"
            pair.backward(pair.data(3))
            with osdp.summon_full_params(pair.sharded, with_grads=True):
                for name, parameter in pair.sharded.named_parameters():
                    assert torch.equal(parameter, state[name]), name
                    assert parameter.grad.dtype == FP32 and parameter.grad.shape == parameter.shape
                    with torch.no_grad():
                        parameter.add_(2.0**-12)
            after = pair.sharded.state_dict()
            for name, value in state.items():
                assert torch.equal(after[name], value + 2.0**-12), name
            with torch.no_grad():
                for parameter in pair.whole.parameters():
                    parameter.add_(2.0**-12)
            pair.same_gradients()
            pair.update()
            pair.train(1)


def test_outside_of_a_step_everything_is_in_the_models_dtype(ranks):
    ranks(full_precision_outside, world=2)


def saved(me: Member, directory: str) -> None:
    """Saved under mixed precision, loaded without, and the other way."""
    load = blocks.workload(count=1)
    states = []
    for i, (policy, mode) in enumerate(
        [(osdp.MixedPrecision(BF16, buffer_dtype=BF16), "FULL_SHARD"), (None, "NO_SHARD")]
    ):
        model = load.model(SEED + i, FP32)
        model.register_buffer("extra", torch.full((3,), 1.5 + i))
        plan = osdp.Plan.uniform(osdp.describe(model, *load.data(0, 2, FP32)[0]), mode)
        osdp.fully_shard(model, plan, me.group, mixed_precision=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        if i == 0:
            (tokens,), target = load.data(1, 2, FP32)
            blocks.surprise(model(tokens), target).backward()
            optimizer.step()
            osdp.save(model, optimizer, directory)
        else:
            osdp.load(model, optimizer, directory)
            osdp.save(model, optimizer, directory + "2")
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]) and value.dtype == FP32, name
    again = load.model(SEED + 5, FP32)
    again.register_buffer("extra", torch.zeros(3))
    plan = osdp.Plan.uniform(osdp.describe(again, *load.data(0, 2, FP32)[0]), "SHARD_GRAD_OP")
    osdp.fully_shard(again, plan, me.group, mixed_precision="fp16")
    osdp.load(again, torch.optim.AdamW(again.parameters()), directory + "2")
    found = again.state_dict()
    for name, value in states[0].items():
        assert torch.equal(value, found[name]), name


def test_checkpoints_do_not_know_of_precision(ranks, tmp_path: Path):
    ranks(saved, str(tmp_path / "saved"), world=2)


def obeyed_and_refused(me: Member) -> None:
    load = blocks.workload(count=1)
    data = load.data(0, 2, FP32)[0]
    model = load.model(SEED, FP32)
    plan = osdp.search(model, data, memory="1GiB", world_size=me.world, batch_size=2, precision="bf16")
    assert plan.precision == "bf16" and osdp.Plan.loads(plan.dumps()) == plan
    with pytest.raises(osdp.PlanMismatchError, match="precision='bf16'"):
        osdp.fully_shard(model, plan, me.group, mixed_precision=osdp.MixedPrecision(FP16))
    osdp.fully_shard(model, plan, me.group)
    seen = []
    model.head.register_forward_hook(lambda m, a, o: seen.append(o.dtype))
    model(*data)
    assert seen == [BF16]
    wrapped = osdp.FullyShardedDataParallel(
        load.model(SEED, FP32),
        me.group,
        memory="1GiB",
        sample=data,
        search={"batch_size": 2},
        mixed_precision="fp16-reduce-fp32",
    )
    assert runtime_of(wrapped).plan.precision == "fp16-reduce-fp32"
    plain = osdp.Plan.uniform(load.model(SEED, FP32), "FULL_SHARD")
    for wanted, match in (
        (3, "mixed_precision must be .*, got a int"),
        ("fp8", "precision must be .*, got 'fp8'"),
    ):
        with pytest.raises(osdp.InvalidProblemError, match=match):
            osdp.fully_shard(load.model(SEED, FP32), plain, me.group, mixed_precision=wanted)
    with pytest.raises(osdp.InvalidProblemError, match=r"param_dtype.*torch\.int8"):
        osdp.MixedPrecision(torch.int8)
    with pytest.raises(osdp.DisagreementError, match="mixed precision"):
        wanted = osdp.MixedPrecision(BF16 if me.rank else FP16)
        osdp.fully_shard(load.model(SEED, FP32), plain, me.group, mixed_precision=wanted)
    bad = dataclasses.replace(plain, precision="fp7")
    with pytest.raises(osdp.InvalidProblemError, match="fp7"):
        osdp.fully_shard(load.model(SEED, FP32), bad, me.group)


def test_a_plans_precision_is_obeyed_and_others_are_refused(ranks):
    ranks(obeyed_and_refused, world=2)


def autocast(me: Member) -> None:
    load = blocks.workload(count=1)
    description = osdp.describe(load.model(SEED, FP32), *load.data(0, 2, FP32)[0])
    for name, plan in plans.everything(description, 1).items():
        with naming(name), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pair = Pair(me, load, plan, dtype=FP32, tolerance=2e-2)
            for step in range(2):
                with torch.autocast("cpu", BF16):
                    (arguments, target) = pair.data(step)
                    whole = load.loss(pair.whole(*arguments), target)
                    mine, my_target = pair._part((arguments, target))
                    loss = load.loss(pair.sharded(*mine), my_target)
                whole.backward(), loss.backward()
                pair.same_gradients()
                pair.update()
        told = [w for w in caught if "torch.autocast" in str(w.message)]
        assert len(told) == 1 and "mixed_precision" in str(told[0].message), name
    with warnings.catch_warnings(), torch.autocast("cpu", BF16):
        warnings.simplefilter("error")
        pair = Pair(me, load, "FULL_SHARD", dtype=FP32, mixed_precision="bf16", tolerance=2e-2)
        load.loss(pair.sharded(*pair.data(0)[0]), pair.data(0)[1]).backward()


def test_autocast_warns_once_and_gradients_are_right(ranks):
    ranks(autocast, world=2)
