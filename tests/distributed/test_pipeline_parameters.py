"""Parameters of modules that a cut divides (class tokens, positions, a scale): the stage that reads one trains it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import test_parallelize
import torch
from harness import Member
from support import plans
from support.pair import close, naming
from test_parallelize import SAMPLES, STYLES, WIDTH, WORDS, Block
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
)

import osdp

PATCHES, LENGTH = 4, 6


class Vit(nn.Module):
    """A class token behind patches, positions and a scale behind all blocks; a module inside has parameters, too."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))
        self.encoder = Encoder()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.positions
        x = x.transpose(1, 2).contiguous().transpose(1, 2)  # what passes is not contiguous
        return self.head(self.encoder(x)[:, 0] * self.scale)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))
        self.register_buffer("part", torch.tensor(0.5))
        self.layers = nn.Sequential(*(Block() for _ in range(4)))
        self.gain, self.norm = nn.Parameter(torch.randn(WIDTH)), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(x + self.part * self.shift) * self.gain)


class Gpt(nn.Module):
    """minGPT's positions, a scale between blocks, a table's weight behind them, a mask in a buffer, a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.pos_emb = nn.Parameter(torch.randn(1, LENGTH, WIDTH))
        self.between, self.temperature = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.unread, self.table = nn.Parameter(torch.ones(2)), nn.Embedding(LENGTH, WIDTH)
        self.register_buffer("even", (torch.arange(LENGTH) % 2 == 0).double()[:, None])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.pos_emb[:, : tokens.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, self.even[: tokens.shape[1]])
            x = x * self.between if i == 2 else x
        return self.head(self.norm(x + self.table.weight)).mean(1) * self.temperature


STYLES_OF: dict[type[nn.Module], dict[str, str]] = {
    Vit: {f"encoder.layers.*.{name}": STYLES[f"blocks.*.{name}"] for name in ("up", "down")},
    Gpt: STYLES,
}


def batch(kind: type[nn.Module], step: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100 + step)
    images, tokens = torch.randn(SAMPLES, 3, 8, 8).double(), torch.randint(0, WORDS, (SAMPLES, LENGTH))
    return (images if kind is Vit else tokens), torch.randint(0, WORDS, (SAMPLES,))


def plan_for(model: nn.Module, tensor: int, pipeline: int, ranks: int, **asked: Any) -> osdp.ParallelPlan:
    kind = Vit if isinstance(model, Vit) else Gpt
    asked = {"tp_plan": STYLES_OF[kind] if tensor > 1 else None, **asked}
    return test_parallelize.plan_for(model, tensor, pipeline, ranks, batch(kind, 0)[0][:2], **asked)


def trains(
    me: Member,
    kind: type[nn.Module],
    degrees: tuple[int, int],
    asked: dict[str, Any],
    frozen: tuple[str, ...] = (),
    of_stage: Any = None,
    **options: Any,
) -> None:
    models = []
    for seed in (me.rank, 0):
        torch.manual_seed(seed)
        models.append(kind().double())
        for name, parameter in models[-1].named_parameters():
            parameter.requires_grad_(name not in frozen)
    model, whole = models
    plan = me.once(lambda: plan_for(model, *degrees, me.world, **asked))
    assert osdp.verify(plan) == ""
    if of_stage is not None:
        stages = (dataclasses.replace(s, plan=of_stage(s.plan.description)) for s in plan.stages)
        plan = dataclasses.replace(plan, stages=tuple(stages))
    pipe = osdp.parallelize(model, plan, nn.functional.cross_entropy, **options)
    optimizers = [torch.optim.Adam(p, lr=0.01) for p in (pipe.parameters(), whole.parameters())]
    size, replica = SAMPLES // plan.data_parallel, pipe.mesh["dp"].get_local_rank()
    mine = slice(replica * size, (replica + 1) * size)
    for step in range(3):
        inputs, targets = batch(kind, step)
        found = pipe.step(inputs[mine], target=targets[mine])
        wanted = nn.functional.cross_entropy(whole(inputs), targets)
        wanted.backward()
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
        norms = pipe.clip_grad_norm_(0.3), nn.utils.clip_grad_norm_(whole.parameters(), 0.3)
        close(norms[0], norms[1], 1e-9, "norm")
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()
    own, all_of_it = pipe.module.state_dict(), whole.state_dict()
    for name, value in own.items():
        close(value.full_tensor() if isinstance(value, DTensor) else value, all_of_it[name], 1e-9, name)
    held: list[Any] = [None] * me.world
    torch.distributed.all_gather_object(held, [n for n, _ in pipe.module.named_parameters()])
    size = me.world // plan.pipeline_parallel
    assert sorted(n for names in held[::size] for n in names) == sorted(
        n for n, _ in whole.named_parameters()
    )


def several(me: Member, kind: type[nn.Module], schedule: str, *several_degrees: tuple[int, int]) -> None:
    for degrees in several_degrees:
        with naming(str(degrees)):
            trains(me, kind, degrees, {"schedule": schedule})


IN_CI = [(Vit, "gpipe", (1, 4)), (Vit, "1f1b", (2, 2)), (Gpt, "gpipe", (2, 2)), (Gpt, "1f1b", (1, 2))]
ALL = [(kind, schedule, (1, 2), (2, 2), (1, 4)) for kind in (Vit, Gpt) for schedule in ("gpipe", "1f1b")]


@pytest.mark.parametrize("case", [*IN_CI, *(pytest.param(case, marks=pytest.mark.extras) for case in ALL)])
def test_training_is_one_processs(ranks, case):
    ranks(several, *case, world=4)


MODELS_IN_CI = {"frozen": (Gpt,), "DTensors": (Vit,), "slices, offloaded": (Gpt,), "a mixture": (Vit,)}


def with_options(me: Member, all_of_them: bool) -> None:
    def regathered(description: Any) -> osdp.Plan:
        return plans.recomputed(osdp.Plan.uniform(description, "FULL_SHARD"), "regather")

    def hybrid(description: Any) -> osdp.Plan:
        return osdp.Plan.uniform(description, "HYBRID_SHARD")

    frozen = ("cls_token", "encoder.gain", "pos_emb", "temperature")
    for kind in (Vit, Gpt):
        cases: dict[str, tuple[tuple[int, int], Any, tuple[str, ...], dict[str, Any]]] = {
            "frozen": ((1, 2), None, frozen, {}),
            "DTensors": ((1, 2), regathered, (), {"dtensor_parameters": True}),
            "slices, offloaded": ((2, 2), lambda d: plans.in_slices(d, "in"), (), {"cpu_offload": True}),
            "a mixture": ((1, 2), lambda d: plans.mixture(d, 3), (), {}),
        }
        for name, (degrees, of_stage, fixed, options) in cases.items():
            if kind not in MODELS_IN_CI[name] and not all_of_them:
                continue
            with naming(f"{kind.__name__}: {name}"):
                trains(me, kind, degrees, {}, fixed, of_stage, **options)
    with naming("HYBRID_SHARD"):
        trains(me, Vit, (1, 1), {"hosts": 2}, (), hybrid)


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.extras)])
def test_frozen_parameters_modes_and_options_of_fully_shard(ranks, all_of_them):
    ranks(with_options, all_of_them, world=4)


def saved(me: Member, folder: str) -> None:
    """One checkpoint of all stages, which other degrees and a model on the meta device load."""

    def made(seed: int, *degrees: int, meta: bool = False) -> tuple[osdp.Pipeline, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        with torch.device("meta" if meta else "cpu"):
            model = Vit().double()
        plan = me.once(lambda: plan_for(Vit().double(), *degrees, me.world))
        options = {"initialise": False} if meta else {}
        pipe = osdp.parallelize(model, plan, nn.functional.cross_entropy, **options)
        return pipe, torch.optim.Adam(pipe.parameters(), lr=0.01)

    def step(pipe: osdp.Pipeline, optimizer: torch.optim.Optimizer, number: int) -> None:
        inputs, targets = batch(Vit, number)
        size, replica = SAMPLES // pipe.plan.data_parallel, pipe.mesh["dp"].get_local_rank()
        mine = slice(replica * size, (replica + 1) * size)
        pipe.step(inputs[mine], target=targets[mine])
        optimizer.step(), optimizer.zero_grad()

    source = made(0, 1, 2)
    step(*source, 0)
    osdp.save(source[0].module, source[1], folder)
    step(*source, 1)
    torch.manual_seed(0)
    whole = Vit().double()
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
    for number in (0, 1):
        inputs, targets = batch(Vit, number)
        nn.functional.cross_entropy(whole(inputs), targets).backward()
        optimizer.step(), optimizer.zero_grad()
    for name, target in {
        "the same": source,
        "four stages": made(3, 1, 4),
        "tensor parallelism": made(3, 2, 2),
        "without values": made(3, 1, 2, meta=True),
    }.items():
        with naming(name):
            osdp.load(target[0].module, target[1], folder)
            step(*target, 1)
            values = whole.state_dict()
            for n, value in target[0].module.state_dict().items():
                close(value.full_tensor() if isinstance(value, DTensor) else value, values[n], 1e-9, n)


def test_checkpoints(ranks, tmp_path):
    ranks(saved, str(tmp_path / "checkpoint"), world=4)


class Kept(Gpt):
    """What positions were made to is used again by another stage."""

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.tanh(self.pos_emb)
        x = self.token(tokens) + positions
        for block in self.blocks:
            x = block(x, self.even)
        return self.head(self.norm(x + torch.nan_to_num(positions))).mean(1) * self.temperature


class Twice(Gpt):
    """`between` is read before the first block and behind the last one."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) * self.between
        for block in self.blocks:
            x = block(x, self.even)
        return self.head(self.norm(x * self.between)).mean(1)


class Sequences(nn.Module):
    """Blocks pass on parts of the sequence, with which a scale of the model itself is used."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.scale = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x if self.scale is None else x * self.scale)


IN_SEQUENCES = {
    "token": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "blocks.*.norm": SequenceParallel(),
    "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
    "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


class BeginsAtZero(Sequences):
    """The scale of each block has no gradient in the first step, since `down` is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.scale = nn.ModuleList(Scaled() for _ in range(4)), None


class Scaled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return x + self.down(torch.tanh(self.up(x * self.scale)))


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def of_parts(me: Member) -> None:
    inputs, _ = batch(Gpt, 0)
    for stages in (1, 2):
        model = Sequences().double()
        plan = me.once(lambda m=model, n=stages: plan_for(m, 2, n, me.world, tp_plan=IN_SEQUENCES))
        pipe = osdp.parallelize(model, plan, loss_of, tp_plan=IN_SEQUENCES)
        mine = inputs[: SAMPLES // plan.data_parallel]
        with pytest.raises(
            osdp.ShardingError, match="gradient of 'scale' differs between ranks of a tensor-parallel"
        ):
            pipe.step(mine, target=mine)
    model = BeginsAtZero().double()
    plan = me.once(lambda: plan_for(model, 2, 2, me.world, tp_plan=IN_SEQUENCES))
    pipe = osdp.parallelize(model, plan, loss_of, tp_plan=IN_SEQUENCES)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    pipe.step(inputs, target=inputs)
    optimizer.step()
    with pytest.raises(osdp.ShardingError, match=r"gradient of 'blocks.\d.scale' differs"):
        pipe.step(inputs, target=inputs)

    model = Sequences().double()
    model.scale, styles = None, {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "colwise"}
    plan = me.once(lambda: plan_for(model, 2, 1, me.world, tp_plan=styles))
    pipe = osdp.parallelize(model, plan, loss_of)
    mine = inputs[: SAMPLES // plan.data_parallel]
    with pytest.raises(osdp.ShardingError, match=r"different losses of the same .* the output of 'head'"):
        pipe.step(mine, target=mine % (WORDS // 2))


def test_a_part_of_a_gradient_or_of_the_logits_is_noticed(ranks):
    ranks(of_parts, world=4)


def of_other_lengths(me: Member) -> None:
    model = Sequences().double()
    model.scale = None
    plan = me.once(lambda: plan_for(model, 2, 1, me.world, tp_plan=IN_SEQUENCES))
    pipe = osdp.parallelize(model, plan, loss_of, tp_plan=IN_SEQUENCES)
    inputs = batch(Gpt, 0)[0][: SAMPLES // plan.data_parallel]
    pipe.step(inputs, target=inputs)
    odd = inputs[:, :5]
    with pytest.raises(
        osdp.ShardingError, match=r"'token', \(1, 5, 8\), .* dimension 1 over 2 ranks .* multiple"
    ):
        pipe.step(odd, target=odd)


def test_sequences_that_ranks_do_not_divide(ranks):
    ranks(of_other_lengths, world=4)


def over_the_mesh(me: Member) -> None:
    """The loss of logits that ranks have a part of, each of the words."""
    styles = {**IN_SEQUENCES, "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)}
    models, inputs = [], batch(Gpt, 0)[0]
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Sequences().double())
        models[-1].scale = None
    model, whole = models
    plan = me.once(lambda: plan_for(model, 2, 1, me.world, tp_plan=styles))
    pipe = osdp.parallelize(model, plan, loss_of, tp_plan=styles)
    size, replica = SAMPLES // plan.data_parallel, pipe.mesh["dp"].get_local_rank()
    mine = inputs[replica * size : (replica + 1) * size]
    with loss_parallel():
        found = pipe.step(mine, target=mine)
    wanted = loss_of(whole(inputs), inputs)
    wanted.backward()
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
    close(pipe.clip_grad_norm_(1.0), nn.utils.clip_grad_norm_(whole.parameters(), 1.0), 1e-9, "norm")


def test_a_loss_over_the_mesh(ranks):
    ranks(over_the_mesh, world=4)


class Statistics(Gpt):
    """Blocks of both stages write to the statistics of one batch norm, without parameters."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(LENGTH, affine=False)
        for block in self.blocks:
            block.norm = norm


def refused(me: Member) -> None:
    torch.manual_seed(0)
    with pytest.raises(osdp.InvalidProblemError, match="into 3 parts, since between is read in several"):
        plan_for(Twice().double(), 1, 4, me.world)
    kept = Kept().double()
    pipe = osdp.parallelize(
        kept, me.once(lambda: plan_for(kept, 1, 2, me.world, known=False)), nn.functional.cross_entropy
    )
    inputs, targets = batch(Gpt, 0)
    with pytest.raises(osdp.ShardingError, match="depends on 'pos_emb', which is in another stage"):
        pipe.step(inputs[:4], target=targets[:4])
    shared = Statistics().double()
    pipe = osdp.parallelize(
        shared, me.once(lambda: plan_for(shared, 1, 2, me.world, known=False)), nn.functional.cross_entropy
    )
    with pytest.raises(osdp.ShardingError, match=r"buffer 'blocks.0.norm.running_mean' is in several stages"):
        pipe.step(inputs[:4], target=targets[:4])
    # A plan of a model that reads it once: the other stage notices in the first step.
    twice = Twice().double()
    pipe = osdp.parallelize(
        twice, me.once(lambda: plan_for(Gpt().double(), 1, 2, me.world)), nn.functional.cross_entropy
    )
    with pytest.raises(osdp.ShardingError, match="depends on 'between', which is in another stage"):
        pipe.step(inputs[:4], target=targets[:4])


def test_what_two_stages_read_is_refused_by_name(ranks):
    ranks(refused, world=4)
