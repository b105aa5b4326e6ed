"""osdp.parallelize carries out a ParallelPlan: losses and weights are one process's."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.descriptions import describe_once
from support.pair import close, naming
from support.tensor_parallel import mesh_of
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import osdp
from osdp.ranks.process_groups import group_of_ranks

WIDTH, INNER, WORDS, LENGTH, LAYERS, SAMPLES = 8, 16, 24, 6, 4, 8
STYLES = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self.down(torch.tanh(self.up(self.norm(x))))
        return x + y if bias is None else x + y * bias


class Net(nn.Module):
    """Two embeddings that are added, a parameter of its own, a mask made of its inputs, blocks, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedded(tokens)
        even = (tokens % 2 == 0).unsqueeze(-1).to(x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x * (1 + i / 8), even)
        return self.head(self.norm(x))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100 + step)
    data = torch.randint(0, WORDS, (SAMPLES, LENGTH + 1))
    return data[:, :-1], data[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plan_for(
    model: nn.Module,
    tensor: int,
    pipeline: int,
    ranks: int,
    sample: Tensor | None = None,
    known: bool = True,
    **asked: Any,
) -> osdp.ParallelPlan:
    """`known`: whether the search knows where stages may begin; else it is the first step that notices."""
    inputs = (batch(0)[0][:2] if sample is None else sample,)
    plan = osdp.search(
        *(model, inputs) if known else (dataclasses.replace(osdp.describe(model, *inputs), begins=()),),
        **{
            "memory": "8GiB",
            "world_size": ranks,
            "hardware": "a100-8",
            "global_batch_size": SAMPLES,
            "batch_size": 1,
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "tp_plan": STYLES if tensor > 1 else None,
            "gap": 0.5,
            **asked,
        },
    )
    assert isinstance(plan, osdp.ParallelPlan)
    return plan


def trains(
    me: Member,
    tensor: int,
    pipeline: int,
    asked: dict[str, Any],
    of_stage: Any = None,
    frozen: tuple[str, ...] = (),
    **options: Any,
) -> None:
    """`of_stage`: from a stage's description to another plan for it. `frozen`: how names of frozen parameters begin.
    `options`: osdp.fully_shard's."""
    model, whole = net(seed=me.rank), net()  # rank 0's values count
    for each in (model, whole):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
    plan = me.once(lambda: plan_for(model, tensor, pipeline, me.world, **asked))
    if of_stage is not None:
        stages = (dataclasses.replace(s, plan=of_stage(s.plan.description)) for s in plan.stages)
        plan = dataclasses.replace(plan, stages=tuple(stages))
    early = torch.optim.SGD(model.parameters(), lr=0.5)
    pipe = osdp.parallelize(model, plan, loss_of, **options)
    if tensor > 1:
        with pytest.raises(
            osdp.ShardingError, match=r"SGD was made before osdp\.parallelize .* 'blocks\.\d.*after"
        ):
            early.step()
    optimizers = [torch.optim.SGD(p, lr=0.5) for p in (pipe.parameters(), whole.parameters())]
    size, replica = SAMPLES // plan.data_parallel, pipe.mesh["dp"].get_local_rank()
    clips = (
        pipe.clip_grad_norm_,
        lambda most: nn.utils.clip_grad_norm_(pipe.parameters(), most),
        lambda most: osdp.clip_grad_norm_(pipe.module, most),
    )
    for steps, clip in zip(((0,), (1,), (2, 3)), clips, strict=True):  # the last two accumulate
        for step in steps:
            tokens, targets = batch(step)
            mine = slice(replica * size, (replica + 1) * size)
            found = pipe.step(tokens[mine], target=targets[mine])
            assert not pipe.schedule._stage.output_chunks  # logits of a whole step
            wanted = loss_of(whole(tokens), targets)
            wanted.backward()
            torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
        with_gradients = [p for p in pipe.parameters() if p.grad is not None]
        if pipeline > 1 and len(with_gradients) > 1:
            with pytest.raises(
                osdp.ShardingError, match=r"stage \d\): clip_grad_norm_ was given some .*, without '"
            ):
                nn.utils.clip_grad_norm_(with_gradients[1:], 0.3)
        norm, wanted_norm = clip(0.3), nn.utils.clip_grad_norm_(whole.parameters(), 0.3)
        close(norm.full_tensor() if isinstance(norm, DTensor) else norm, wanted_norm, 1e-9, "norm")
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()
    own, all_of_it = pipe.module.state_dict(), whole.state_dict()
    assert set(own) < set(all_of_it) or pipeline == 1
    for name, value in own.items():
        close(value.full_tensor() if isinstance(value, DTensor) else value, all_of_it[name], 1e-9, name)


@pytest.mark.outcome(
    "`torch.nn.utils.clip_grad_norm_(pipeline.parameters(), ...)`: the norm over all stages", "equal"
)
@pytest.mark.outcome(
    "`torch.nn.utils.clip_grad_norm_` of some parameters of a stage that `osdp.parallelize` made",
    osdp.ShardingError,
)
@pytest.mark.parametrize(
    ("tensor", "pipeline", "asked"),
    [
        (1, 2, {"modes": ["FULL_SHARD"], "schedule": "1f1b"}),
        (2, 2, {"schedule": "gpipe"}),
        (2, 1, {}),
    ],
)
def test_training_is_one_processs(ranks, tensor, pipeline, asked):
    ranks(trains, tensor, pipeline, asked, world=4)


def with_options(me: Member) -> None:
    cases: dict[str, tuple[Any, ...]] = {
        "DTensors": (2, 1, None, {"dtensor_parameters": True}),
        "slices, offloaded": (2, 2, lambda d: plans.in_slices(d, "in"), {"cpu_offload": True}),
        # Recomputed stages and mixtures: test_pipeline_parameters.py.
        "a stage without gradients": (1, 2, None, {"frozen": ("token", "position", "blocks", "norm")}),
    }
    for name, (tensor, pipeline, of_stage, options) in cases.items():
        with naming(name):
            trains(me, tensor, pipeline, {}, of_stage, **options)


def test_modes_and_options_of_fully_shard(ranks):
    ranks(with_options, world=4)


def in_bf16(me: Member) -> None:
    """Stages do what one process does with the same micro-batches, so nothing is rounded otherwise."""
    torch.manual_seed(0)
    model = Net()
    whole, alone = copy.deepcopy(model), group_of_ranks([me.rank])
    plan = me.once(lambda: plan_for(model, 1, 4, me.world, precision="bf16", batch_size=2))
    uniform = osdp.Plan.uniform(describe_once(whole, batch(0)[0]), "NO_SHARD")
    osdp.fully_shard(whole, dataclasses.replace(uniform, precision="bf16"), alone)
    pipe = osdp.parallelize(model, plan, loss_of)
    optimizers = [torch.optim.SGD(p, lr=0.5) for p in (pipe.parameters(), whole.parameters())]
    for step in range(2):
        tokens, targets = batch(step)
        losses = []
        for some, wanted in zip(tokens.split(2), targets.split(2), strict=True):
            losses.append(loss_of(whole(some), wanted))
            (losses[-1] / 4).backward()
        found = pipe.step(tokens, target=targets)
        assert losses[0].dtype == torch.bfloat16 and found == torch.stack(losses).float().mean()
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()
    all_of_it = whole.state_dict()
    for name, value in pipe.module.state_dict().items():
        assert value.dtype == torch.float32 and torch.equal(value, all_of_it[name]), name


def test_mixed_precision_is_one_processs_bit_for_bit(ranks):
    ranks(in_bf16, world=4)


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.token.weight


class Kept(Net):
    """The first block's input goes into every block."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = first = self.embedded(tokens)
        for block in self.blocks:
            x = block(x, first)
        return self.head(self.norm(x))


class Made(Net):
    """A first block would make a bias for all others; None means none."""

    def forward(self, tokens: Tensor) -> Tensor:
        x, bias = self.embedded(tokens), None
        for block in self.blocks:
            x = block(x, bias)
            bias = torch.tanh(x) if isinstance(block, Block) else None
        return self.head(self.norm(x))


def parameters_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def refusals(me: Member) -> None:
    plan = me.once(lambda: plan_for(net(), 1, 2, me.world))
    divided = parallelize_module(net(), mesh_of(me, 2, 2)["tp"], {"blocks.0.up": ColwiseParallel()})
    cases: list[tuple[nn.Module, Any, type[Exception], str]] = [
        (
            net(),
            plan.stages[0].plan,
            osdp.InvalidProblemError,
            "not a Plan",
        ),
        (net(), dataclasses.replace(plan, world_size=8), osdp.PlanMismatchError, "for 8 ranks"),
        (net(), dataclasses.replace(plan, micro_batches=0), osdp.InvalidProblemError, "0 micro-batches of 1"),
        (
            nn.Sequential(net()),
            plan,
            osdp.PlanMismatchError,
            "another model: blocks.0.down.bias, .* 0.blocks.0.down.bias",
        ),
        (Tied().double(), plan, osdp.InvalidProblemError, "'head.weight' is tied to one of stage 0"),
        (divided, plan, osdp.InvalidProblemError, "'blocks.0.up.weight' is a DTensor"),
        (
            net(),
            without_first(plan),
            osdp.InvalidProblemError,
            "stage 1 begins at 'blocks', which is no module of it",
        ),
    ]
    for model, given, kind, message in cases:
        before = parameters_of(model)
        with pytest.raises(kind, match=message):
            osdp.parallelize(model, given, loss_of)
        assert parameters_of(model) == before and "forward" not in vars(model)
    with torch.device("meta"):
        shapes = Net().double()
    double = osdp.MixedPrecision(param_dtype=torch.float64)
    for model, options, kind, message in (
        (net(), {"memory": 1}, osdp.InvalidProblemError, "no option memory="),
        (net(), {"device_mesh": None}, osdp.InvalidProblemError, "no option device_mesh="),
        (shapes, {}, osdp.InvalidProblemError, "on the meta device, and 2 stages"),
        (
            net() if me.rank else shapes,
            {},
            osdp.InvalidProblemError,
            "meta device on rank 0, and not on rank 1",
        ),
        # Found after the model was cut.
        (net(), {"mixed_precision": double}, osdp.PlanMismatchError, "differs from the plan's precision"),
    ):
        before, forward = parameters_of(model), model.blocks[0].forward
        with pytest.raises(kind, match=message):
            osdp.parallelize(model, plan, loss_of, **options)
        assert parameters_of(model) == before and "forward" not in vars(model)
        assert model.blocks[0].forward == forward
    if me.rank == 1:  # on this rank alone
        plan = dataclasses.replace(plan, step_time_s=2 * plan.step_time_s)
    with pytest.raises(osdp.DisagreementError, match="different plans"):
        osdp.parallelize(net(), plan, loss_of)


def called_by_some(me: Member) -> None:
    """The other ranks of the job never come: waiting for them would last until the process group's timeout."""
    model = net()
    of_stages = me.once(lambda: plan_for(model, 1, 2, me.world))
    with pytest.raises(osdp.PlanMismatchError, match=r"\(1 x 2 x 1\)"):
        osdp.parallelize(model, of_stages, loss_of)
    plan = osdp.Plan.uniform(describe_once(model, batch(0)[0]), "NO_SHARD")
    plan = dataclasses.replace(plan, world_size=2)
    with pytest.raises(osdp.PlanMismatchError, match=r"2 ranks, .* group has 4"):
        osdp.fully_shard(model, plan)
    osdp.fully_shard(model, plan, me.group)


@pytest.mark.outcome(
    "`parallelize` or `fully_shard` on the plan's ranks alone, in a larger job", osdp.PlanMismatchError
)
def test_a_plan_for_fewer_ranks_than_there_are(ranks):
    ranks(called_by_some, world=2, timeout_s=30)


def without_first(plan: osdp.ParallelPlan) -> osdp.ParallelPlan:
    last = dataclasses.replace(plan.stages[1], modules=("blocks", *plan.stages[1].modules[1:]))
    return dataclasses.replace(plan, stages=(plan.stages[0], last))


@pytest.mark.outcome(
    "ranks of one replica of a pipeline that are given different samples", osdp.ShardingError
)
def test_what_cannot_be_is_refused_before_anything_changes(ranks):
    ranks(refusals, world=4)


def crossings(me: Member) -> None:
    """What passes a cut beside one tensor is named by both sides, in the first step."""
    tokens, targets = batch(0)
    for kind in (Kept, Made):
        model = kind().double()
        plan = me.once(lambda m=model: plan_for(m, 1, 2, me.world, known=False))
        pipe = osdp.parallelize(model, plan, loss_of)
        with pytest.raises(osdp.ShardingError, match=r"'blocks.[23]'"):
            pipe.step(tokens[:4], target=targets[:4])
    model = Of(Gated)
    plan = me.once(lambda: plan_for(model, 2, 2, me.world))
    with pytest.raises(osdp.InvalidProblemError, match=r"'blocks.0.up'"):
        osdp.parallelize(model, plan, loss_of)
    unseen = (
        dataclasses.replace(o, output_cut=False) for o in plan.description.operators
    )  # by description alone
    described = dataclasses.replace(plan.description, operators=tuple(unseen))
    pipe = osdp.parallelize(model, dataclasses.replace(plan, description=described), loss_of)
    with pytest.raises(osdp.ShardingError, match=r"'blocks.0.up'"):
        pipe.step(tokens, target=targets)
    with pytest.raises(osdp.InvalidProblemError, match="tensor_parallel=4"):
        plan_for(Of(Headed), 4, 1, me.world)
    for block in (Headed, OfTwoPlaces):
        headed = Of(block)
        pipe = osdp.parallelize(headed, me.once(lambda m=headed: plan_for(m, 2, 1, me.world)), loss_of)
        with pytest.raises(osdp.ShardingError, match=r"'blocks.0.up'.* in as many groups"):
            pipe.step(tokens[:4], target=targets[:4])
    pipe = osdp.parallelize(net(), me.once(lambda: plan_for(net(), 1, 2, me.world)), loss_of)
    with pytest.raises(osdp.InvalidProblemError, match=r"step was given no tensor: on all ranks"):
        pipe.step()
    with pytest.raises(osdp.InvalidProblemError, match=r"4 samples a step.*with 6"):
        pipe.step(tokens[:6], target=targets[:6])
    mine = slice(me.rank, me.rank + 4)  # as a sampler that goes by the rank in the job
    with pytest.raises(
        osdp.ShardingError, match=r"rank 0 \(stage 0\) and rank 2 \(stage 1\) .* different inputs"
    ):
        pipe.step(tokens[mine], target=targets[mine])


class Gated(Block):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * INNER)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        gate, value = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(torch.tanh(gate) * value)


class Dropped(Block):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return nn.functional.dropout(super().forward(x, bias), 0.5, self.training)


def drawn(me: Member) -> None:
    """Dropout of what all ranks of tensor parallelism hold."""
    plan = me.once(lambda: plan_for(Of(Dropped), 2, 1, me.world))
    tokens, targets = batch(0)
    for apart in (False, True):
        pipe = osdp.parallelize(Of(Dropped), plan, loss_of)
        torch.manual_seed(7 + (me.rank if apart else 0))
        with pytest.raises(osdp.ShardingError, match="drew others") if apart else contextlib.nullcontext():
            pipe.step(tokens[:4], target=targets[:4])


def test_ranks_that_share_operators_draw_the_same(ranks):
    ranks(drawn, world=4)


class Headed(Block):
    """Means over two heads, which are halves of what a rank has."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        heads = self.up(self.norm(x)).unflatten(-1, (2, -1))
        return x + self.down((heads - heads.mean(-1, keepdim=True)).flatten(-2))


class OfTwoPlaces(Headed):
    """OPT's view, in which a rank's heads are those of two places of the sequence."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        heads = self.up(self.norm(x)).view(len(x), -1, 2, INNER // 2)
        return x + self.down((heads - heads.mean(-1, keepdim=True)).reshape(*x.shape[:2], -1))


class Of(Net):
    def __init__(self, block: type[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.double()


def test_what_passes_a_cut_beside_one_tensor_is_named(ranks):
    ranks(crossings, world=4)
