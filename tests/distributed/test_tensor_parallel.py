"""Tensor parallelism by torch's parallelize_module, and OSDP over the other ranks: what trains is one process's model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.descriptions import describe_once
from support.pair import close, naming
from support.tensor_parallel import TensorPair, mesh_of, net, parallelized, tokens
from support.worlds import worlds
from torch.distributed.tensor import DTensor

import osdp

MODES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")


def pair_of(
    me: Member,
    plan: Any,
    tied: bool = False,
    sequence: bool = True,
    lines: tuple[int, int, int] | None = None,
    **options: Any,
) -> TensorPair:
    """`plan`: a mode, or a function of the description. `lines`: of HYBRID_SHARD, their number and size, and that of
    tensor parallelism."""
    over = ("replicate", "dp") if lines else ("dp",)
    sizes = lines or (me.world // 2, 2)
    mesh = mesh_of(me, *sizes, names=(*over, "tp"))
    model = parallelized(net(tied=tied, seed=7 + me.rank // sizes[-1]), mesh["tp"], sequence)
    described = describe_once(model, tokens(0, 2))
    chosen = osdp.Plan.uniform(described, plan) if isinstance(plan, str) else plan(described)
    osdp.fully_shard(model, chosen, device_mesh=mesh[over] if lines else mesh["dp"], **options)
    return TensorPair(model, net(tied=tied), me.rank // sizes[-1], me.world // sizes[-1])


def every_mode(me: Member, sequence: bool, tied: bool) -> None:
    for mode in MODES:
        with naming(mode):
            pair = pair_of(me, mode, tied, sequence)
            pair.train()
            pair.same_parameters()


@pytest.mark.outcome("`parallelize_module` over `mesh['tp']`, then `fully_shard` over `mesh['dp']`", "equal")
@pytest.mark.parametrize(
    ("world", "sequence", "tied"), [(4, True, False), (4, False, True), (2, True, False)]
)
def test_training_is_one_processs(ranks, world, sequence, tied):
    ranks(every_mode, sequence, tied, world=world)


def combined(me: Member) -> None:
    def recomputed(how: str) -> Any:
        return lambda d: plans.recomputed(osdp.Plan.uniform(d, "FULL_SHARD"), how)

    for name, plan in {
        "held": recomputed("hold"),
        "gathered again": recomputed("regather"),
        "a mixture": lambda d: plans.mixture(d, 3),
        "prefetched": lambda d: replace(osdp.Plan.uniform(d, "SHARD_GRAD_OP"), prefetch=3),
    }.items():
        no_sync = name in ("held", "prefetched")
        with naming(f"{name}, {'no_sync' if no_sync else 'accumulated'}"):
            pair = pair_of(me, plan)
            pair.train(steps=2, micros=2, no_sync=no_sync)
            pair.same_parameters()


def test_recomputation_mixtures_and_accumulation(ranks):
    ranks(combined, world=4)


def in_lines(me: Member) -> None:
    for lines in ((2, 1, 2), (1, 2, 2)):
        with naming(f"{lines}"):
            pair = pair_of(me, "HYBRID_SHARD", lines=lines)
            pair.train()
            pair.same_parameters()


def test_hybrid_shard_over_three_dimensions(ranks):
    ranks(in_lines, world=4)


def clipped(me: Member) -> None:
    for mode in MODES:
        pair = pair_of(me, mode)
        pair.backward(0)
        for norm_type in (2.0, 1.0, float("inf")):  # of what is left, half of it each time
            with naming(f"{mode}, norm of order {norm_type}"):
                found = []
                for clip in (torch.nn.utils.clip_grad_norm_, osdp.clip_grad_norm_):
                    model: Any = pair.sharded if clip is osdp.clip_grad_norm_ else pair.sharded.parameters()
                    found.append(clip(model, 1e9, norm_type))
                wanted = torch.nn.utils.clip_grad_norm_(pair.whole.parameters(), 1e9, norm_type)
                for each in (pair.whole, pair.sharded):
                    found.append(
                        torch.nn.utils.clip_grad_norm_(each.parameters(), wanted.item() / 2, norm_type)
                    )
                for norm in found:
                    close(norm, wanted, 1e-9, "norm")
                assert len({each.item() for each in me.everywhere(found[0])}) == 1, (
                    "ranks would scale differently"
                )
        with naming(mode):
            pair.update()
            pair.same_parameters()


def test_norms_count_each_element_once(ranks):
    ranks(clipped, world=4)


def summoned(me: Member) -> None:
    for mode in MODES:
        with naming(mode):
            pair = pair_of(me, mode)
            wanted = dict(pair.whole.named_parameters())
            pair.backward(0)
            own = list(pair.sharded.parameters())
            with osdp.summon_full_params(pair.sharded, with_grads=True):
                for name, parameter in pair.sharded.named_parameters():
                    value, grad = parameter.data, parameter.grad
                    if isinstance(parameter.data, DTensor):
                        value, grad = parameter.data.full_tensor(), parameter.grad.full_tensor()
                    close(value, wanted[name], 1e-9, name)
                    close(grad, wanted[name].grad, 1e-9, f"gradient of {name}")
                    with torch.no_grad():
                        parameter.add_(1.0), wanted[name].add_(1.0)
                with torch.no_grad():
                    close(pair.sharded(tokens(5, 2)), pair.whole(tokens(5, 2)), 1e-9, "output")
            assert all(a is b for a, b in zip(own, pair.sharded.parameters(), strict=True))
            pair.same_parameters()


def test_full_parameters_are_dtensors_over_the_mesh(ranks):
    ranks(summoned, world=4)


def in_slices(me: Member) -> None:
    def slices(split: str, sharded: int) -> Any:
        def plan(description: osdp.ModelDescription) -> osdp.Plan:
            of = [o for o in description.operators if o.split_shape and "blocks" in o.name]
            assert len(of) == 4 and all(math.prod(o.split_shape) == 64 for o in of)  # of this rank's part
            choice = osdp.Choice("FULL_SHARD", granularity=4, sharded_slices=sharded, split=split)
            return plans.apart(
                osdp.Plan.uniform(description, "FULL_SHARD").replace({o.name: choice for o in of})
            )

        return plan

    # On two ranks none of the slices is sharded: data parallelism has one.
    several = (("out", 4), ("in", 2), ("out", 2), ("in", 0)) if me.world == 4 else (("out", 2), ("in", 4))
    for split, sharded in several:
        with naming(f"split by {split}, {sharded} of 4 sharded"):
            pair = pair_of(me, slices(split, sharded), sequence=sharded != 2)
            pair.train(steps=2, micros=2, no_sync=sharded == 2)
            pair.same_parameters()
            state = pair.optimizer.state_dict()["state"]
            for value in (v for entry in state.values() for v in entry.values()):
                if isinstance(value, DTensor):
                    value.full_tensor()


@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_slices_of_the_part_that_a_rank_holds(ranks, world):
    ranks(in_slices, world=world)
