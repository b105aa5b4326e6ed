"""torch's pipeline schedules over stages that OSDP has sharded: one process's gradients, and how often is sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.descriptions import describe_once
from support.pair import close, naming
from support.tensor_parallel import mesh_of
from test_fsdp_module import full_gradients
from torch import distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh

import osdp
from osdp.plan.searched import Searched, Stage
from osdp.sharding.sharded_model import runtime_of

WIDTH, LAYERS, MICRO_BATCHES = 6, 8, 4


def whole() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))).double()


def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (out - target).square().mean()


def parts_of(me: Member, number: int, reshard: bool) -> tuple[dict[int, nn.Module], dist.ProcessGroup]:
    """This rank's stages of `number`, each sharded over the two ranks that have it, and the group of its pipeline."""
    ranks = dist.get_process_group_ranks(me.group)
    lines = [dist.new_group([ranks[2 * i], ranks[2 * i + 1]]) for i in range(2)]
    columns = [dist.new_group([ranks[i], ranks[2 + i]]) for i in range(2)]
    mesh = DeviceMesh.from_group(columns[me.rank % 2], "cpu")
    made = {}
    for stage in range(me.rank % 2, number, 2):
        size = LAYERS // number
        part = nn.Sequential(*list(whole())[stage * size : (stage + 1) * size])
        for layer in part:
            osdp.fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        made[stage] = osdp.fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    return made, lines[me.rank // 2]


def schedule_of(kind: str, parts: dict[int, nn.Module], number: int, line: dist.ProcessGroup):
    stages = [
        pipelining.PipelineStage(part, index, number, torch.device("cpu"), group=line)
        for index, part in parts.items()
    ]
    made = getattr(pipelining, f"Schedule{kind}")
    several = issubclass(made, pipelining.schedules.PipelineScheduleMulti)
    return made(stages if several else stages[0], MICRO_BATCHES, loss_fn=loss)


def trains(me: Member, kind: str, number: int, reshard: bool, gathered: int) -> None:
    """`gathered`: gathers of a stage in a step, at most."""
    parts, line = parts_of(me, number, reshard)
    schedule = schedule_of(kind, parts, number, line)
    model = whole()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, *parts.values())]
    size = LAYERS // number
    for step in range(3):
        torch.manual_seed(step)
        data, target = (torch.randn(2 * 2 * MICRO_BATCHES, WIDTH, dtype=torch.float64) for _ in range(2))
        mine = slice(me.rank // 2 * 2 * MICRO_BATCHES, (me.rank // 2 + 1) * 2 * MICRO_BATCHES)
        before = [runtime_of(part).runtime.statistics() for part in parts.values()]
        first, last = (data[mine],) if 0 in parts else (), target[mine] if number - 1 in parts else None
        schedule.step(*first, target=last)
        after = [runtime_of(part).runtime.statistics() for part in parts.values()]
        if step == 2:  # torch's stages learn anew what passes, and gradients stay
            schedule.scale_grads = False  # else it divides them in evaluations, too
            schedule.eval(*first, target=last)
        loss(model(data), target).backward()
        wanted = dict(model.named_parameters())
        for (stage, part), was, now in zip(parts.items(), before, after, strict=True):
            assert runtime_of(part).gathered_bytes() == 0
            assert all(p.grad is not None for p in part.parameters())
            if step:  # the first step runs a micro-batch more, to learn shapes
                assert now["reductions"] - was["reductions"] == size
                assert now["gathers"] - was["gathers"] <= gathered
            for name, gradient in full_gradients(part).items():
                layer, _, rest = name.partition(".")
                close(gradient, wanted[f"{stage * size + int(layer)}.{rest}"].grad, 1e-9, f"{stage} {name}")
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()


# A stage has LAYERS / number layers. Without resharding after forward each is gathered once a step. With it, for each
# forward and for backwards that do not find it gathered: FSDP2 gathers 20 times under GPipe.
@pytest.mark.parametrize(
    ("kind", "number", "reshard", "gathered"),
    [
        ("GPipe", 2, True, 19),
        ("GPipe", 2, False, 4),
        ("1F1B", 2, True, 17),
        ("1F1B", 2, False, 4),
        ("Interleaved1F1B", 4, True, 6),
        ("Interleaved1F1B", 4, False, 2),
    ],
)
def test_schedules_train_as_one_process(ranks, kind, number, reshard, gathered):
    ranks(trains, kind, number, reshard, gathered, world=4)


def refused(me: Member, kind: str) -> None:
    parts, line = parts_of(me, 4, True)
    schedule = schedule_of(kind, parts, 4, line)
    data = torch.randn(2 * MICRO_BATCHES, WIDTH, dtype=torch.float64)
    with pytest.raises(osdp.ShardingError, match=f"Schedule{kind} splits backward"):
        schedule.step(*(data,) if 0 in parts else (), target=data if 3 in parts else None)


@pytest.mark.parametrize("kind", ["InterleavedZeroBubble"])
def test_schedules_that_split_backward_are_refused_by_name(ranks, kind):
    ranks(refused, kind, world=4)


def of_stage(plan: osdp.Plan) -> osdp.Plan:
    """The plan as if it was searched for a stage: its modes decide what stays over micro-batches."""
    stage = Stage(0, 2, MICRO_BATCHES, MICRO_BATCHES, 1, {})
    searched = Searched(modes=plans.MODES, granularity=(), checkpoint=(), stage=stage)
    return dataclasses.replace(plan, searched=searched)


def uniform(mode: str) -> Callable[[osdp.ModelDescription], osdp.Plan]:
    return lambda description: plans.apart(osdp.Plan.uniform(description, mode))


PLANS: dict[str, Callable[[osdp.ModelDescription], osdp.Plan]] = {
    **{mode: uniform(mode) for mode in plans.MODES},
    "a stage's FULL_SHARD": lambda d: of_stage(uniform("FULL_SHARD")(d)),
    "slices": lambda d: plans.mixture(d, 2),
    "a stage's slices": lambda d: of_stage(plans.mixture(d, 2)),
    "recomputed": lambda d: plans.recomputed(uniform("FULL_SHARD")(d), "regather"),
}


def sent_in_a_step(name: str, size: int, now: dict[str, int]) -> None:
    """`now`: of a stage with `size` layers of one unit each, sharded over two ranks by PLANS[name]."""
    if name == "NO_SHARD":
        bytes_of_gradients = size * 8 * (WIDTH * WIDTH + WIDTH)
        assert bytes_of_gradients <= now["sent_bytes"] < 1.5 * bytes_of_gradients
    elif name == "SHARD_GRAD_OP":
        assert (now["gathers"], now["reductions"]) == (size, size)
    elif name == "FULL_SHARD":
        assert size < now["gathers"] < 2 * MICRO_BATCHES * size and now["reductions"] == size
    elif name == "a stage's FULL_SHARD":
        assert now["reductions"] == MICRO_BATCHES * size
        assert MICRO_BATCHES * size < now["gathers"] < 2 * MICRO_BATCHES * size


def planned(me: Member, kind: str, number: int, lines: int, names: Sequence[str]) -> None:
    """Stages that are sharded over `lines` ranks by plans, which keep their class until a schedule has them."""
    mesh = mesh_of(me, lines, 2, names=("dp", "pp"))
    size, columns = LAYERS // number, 2 * MICRO_BATCHES
    for name in names:
        parts = {}
        for stage in range(me.rank % 2, number, 2):
            part = nn.Sequential(*list(whole())[stage * size : (stage + 1) * size])
            plan = PLANS[name](describe_once(part, torch.zeros(2, WIDTH, dtype=torch.float64)))
            parts[stage] = osdp.fully_shard(part, plan, device_mesh=mesh["dp"])
            assert type(part) is nn.Sequential
        model, schedule = whole(), schedule_of(kind, parts, number, mesh["pp"].get_group())
        for step in range(2):
            with naming(f"{kind}, {name}, step {step}"):
                torch.manual_seed(step)
                data, target = (torch.randn(lines * columns, WIDTH, dtype=torch.float64) for _ in range(2))
                mine = slice(me.rank // 2 * columns, (me.rank // 2 + 1) * columns)
                for part in parts.values():
                    runtime_of(part).runtime.reset_statistics()
                first, last = (
                    (data[mine],) if 0 in parts else (),
                    target[mine] if number - 1 in parts else None,
                )
                schedule.step(*first, target=last)
                loss(model(data), target).backward()
                wanted = dict(model.named_parameters())
                for stage, part in parts.items():
                    assert runtime_of(part).gathered_bytes() == 0
                    if step and lines == 2:  # the first step runs a micro-batch more, to learn shapes
                        sent_in_a_step(name, size, runtime_of(part).runtime.statistics())
                    for own, gradient in full_gradients(part).items():
                        layer, _, rest = own.partition(".")
                        close(gradient, wanted[f"{stage * size + int(layer)}.{rest}"].grad, 1e-9, own)
                for each in (model, *parts.values()):
                    torch.optim.SGD(each.parameters(), lr=0.1).step(), each.zero_grad()


@pytest.mark.parametrize(("kind", "number"), [("GPipe", 2), ("1F1B", 2), ("Interleaved1F1B", 4)])
def test_plans_of_stages(ranks, kind, number):
    ranks(planned, kind, number, 2, list(PLANS), world=4)


def test_plans_of_stages_on_one_rank_each(ranks):
    ranks(planned, "1F1B", 2, 1, ["FULL_SHARD", "a stage's slices"], world=2)


def reduced_early(me: Member, scheduled_before: bool) -> None:
    """The last backward of a step reduces; nothing is left for the schedule's own reduction behind it. Also where the
    schedule and its stage were made before the model was sharded."""
    mesh = mesh_of(me, 2, 2, names=("dp", "pp"))
    part = nn.Sequential(*list(whole())[me.rank % 2 * 4 :][:4])
    plan = uniform("FULL_SHARD")(describe_once(part, torch.zeros(2, WIDTH).double()))
    parts, line = {me.rank % 2: part}, mesh["pp"].get_group()
    schedule = schedule_of("1F1B", parts, 2, line) if scheduled_before else None
    osdp.fully_shard(part, plan, device_mesh=mesh["dp"])
    schedule = schedule or schedule_of("1F1B", parts, 2, line)
    stage = schedule._stage
    data = torch.randn(2 * MICRO_BATCHES, WIDTH, dtype=torch.float64)
    seen, reduce = [], stage.perform_reduce_grad

    def looked(*args: Any) -> None:
        seen.append(runtime_of(part).runtime.statistics()["reductions"])
        reduce(*args)
        seen.append(runtime_of(part).runtime.statistics()["reductions"])

    stage.perform_reduce_grad = looked
    for _ in range(2):
        runtime_of(part).runtime.reset_statistics()
        schedule.step(*(data,) if stage.is_first else (), target=data if stage.is_last else None)
        part.zero_grad()
    assert seen == [4, 4, 4, 4], seen


@pytest.mark.parametrize("scheduled_before", [False, True])
def test_the_last_backward_reduces(ranks, scheduled_before):
    ranks(reduced_early, scheduled_before, world=4)


class Counted(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return super().forward(x)


class Chunked(nn.Module):
    """Its loss runs a backward of its own, as torchtitan's does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Counted(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def loss(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hidden = out.detach().requires_grad_()
        loss(self.head(hidden), target).backward()
        return (out * hidden.grad).sum()


def counts(me: Member) -> None:
    mesh = mesh_of(me, 1, 2, names=("dp", "pp"))
    part = osdp.fully_shard(Chunked().double(), mesh=mesh["dp"])
    schedule = schedule_of("1F1B", {me.rank: part}, 2, mesh["pp"].get_group())
    schedule._loss_fn = part.loss
    data, gradients = torch.randn(2 * MICRO_BATCHES, WIDTH, dtype=torch.float64), []
    for _ in range(2):
        schedule.step(*() if me.rank else (data,), target=data if me.rank else None)
        gradients.append(full_gradients(part))
        part.zero_grad()
    assert part.inner.calls == 2 * MICRO_BATCHES
    for name, gradient in gradients[1].items():
        close(gradients[0][name], gradient, 1e-9, name)


def test_what_passes_is_learned_without_the_buffers(ranks):
    ranks(counts, world=2)
