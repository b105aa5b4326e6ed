"""Checkpoints: saved on some ranks under one plan, loaded on others under another, or in one process without any."""

from __future__ import annotations

import copy
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from harness import Member
from harness.doomed import run_doomed
from support import blocks, plans
from support.pair import SEED, Pair, adamw, close, naming
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

import osdp
from osdp.checkpoint import dcp_planners, places

PLANS: dict[str, Callable[[osdp.ModelDescription], osdp.Plan] | str] = {
    "NO_SHARD": "NO_SHARD",
    "FULL_SHARD": "FULL_SHARD",
    "slices along out": lambda d: plans.in_slices(d, "out"),
    "slices along in": lambda d: plans.in_slices(d, "in"),
    "mixture": lambda d: plans.mixture(d, 3),
}


def write(me: Member, plan: str, directory: Path) -> None:
    """Two steps, a checkpoint, and beside it what the checkpoint should hold."""
    pair = Pair(me, blocks.workload(), PLANS[plan])
    pair.train(steps=2)
    osdp.save(pair.sharded, pair.sharded_optimizer, directory, process_group=me.group)
    state = pair.sharded.state_dict()
    if me.rank == 0:
        torch.save(state, directory / "expected.pt")
        torch.save(pair.whole_optimizer.state_dict(), directory / "expected_optimizer.pt")


def read(me: Member, plan: str, directories: list[Path]) -> None:
    """Bit for bit what was saved; and then both models train on as one process does."""
    for directory in directories:
        with naming(f"{directory} read under {plan}"):
            read_one(me, plan, directory)


def read_one(me: Member, plan: str, directory: Path) -> None:
    pair = Pair(me, blocks.workload(), PLANS[plan])
    for model, optimizer in pair.both:
        osdp.load(model, optimizer, directory, process_group=me.group)
    expected = torch.load(directory / "expected.pt")
    for name, value in pair.sharded.state_dict().items():
        assert torch.equal(value, expected[name]), name
    pair.same_parameters()
    expected_state = torch.load(directory / "expected_optimizer.pt")["state"]
    for position, (name, parameter) in enumerate(pair.whole.named_parameters()):
        for key, value in pair.whole_optimizer.state[parameter].items():
            close(value, expected_state[position][key], 1e-9, f"{key} of {name}")
    pair.train(steps=2)


@pytest.fixture(scope="module")
def written(_pool, tmp_path_factory) -> dict[str, Path]:
    """A checkpoint of two ranks under each plan."""
    folder = tmp_path_factory.mktemp("written")
    for number, plan in enumerate(PLANS):
        _pool.run(write, plan, folder / str(number), world=2)
    return {plan: folder / str(number) for number, plan in enumerate(PLANS)}


@pytest.mark.parametrize("reader", PLANS)
def test_other_ranks_and_another_plan_go_on_where_it_stopped(ranks, written, reader):
    """The plan whose pieces are oddest reads them all, the others read what it wrote, or slices of columns."""
    wrote = {"mixture": list(PLANS), "FULL_SHARD": ["slices along in"], "NO_SHARD": ["slices along in"]}
    ranks(read, reader, [written[w] for w in wrote.get(reader, ["mixture"])], world=3)


@pytest.mark.parametrize("worlds", [(1, 4), (4, 1)])
def test_any_number_of_ranks(ranks, tmp_path, worlds):
    ranks(write, "mixture", tmp_path / "step", world=worlds[0])
    ranks(read, "slices along in", [tmp_path / "step"], world=worlds[1])


@pytest.mark.parametrize("plan", ["mixture"])
def test_one_process_without_a_process_group_reads_it(ranks, tmp_path, plan):
    ranks(write, plan, tmp_path / "step", world=3)
    model = blocks.workload().model(SEED + 1, torch.float64)
    optimizer = adamw(model.parameters())
    osdp.load(model, optimizer, tmp_path / "step")
    expected = torch.load(tmp_path / "step" / "expected.pt")
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert all(int(state["step"]) == 2 for state in optimizer.state.values())


def refuse(me: Member, directory: Path) -> None:
    """One damaged file, which one rank reads for its checksum: all ranks refuse, and none has changed anything."""
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    with pytest.raises(osdp.FormatError, match="is damaged"):
        osdp.load(pair.sharded, pair.sharded_optimizer, directory, process_group=me.group)
    assert not pair.sharded_optimizer.state
    pair.same_parameters()
    pair.train(steps=1)


def test_what_one_rank_refuses_all_refuse(ranks, tmp_path):
    ranks(write, "FULL_SHARD", tmp_path / "step", world=2)
    last = sorted((tmp_path / "step").glob("*.distcp"))[-1]
    data = bytearray(last.read_bytes())
    data[100] ^= 1
    last.write_bytes(bytes(data))
    ranks(refuse, tmp_path / "step", world=2)


def disagree(me: Member, directory: Path) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    pair.train(steps=1)
    pair.sharded_optimizer.param_groups[0]["lr"] = 0.1 * (1 + me.rank)
    with pytest.raises(osdp.ShardingError, match="options"):
        osdp.save(pair.sharded, pair.sharded_optimizer, directory, process_group=me.group)


def test_ranks_that_save_different_things_are_refused(ranks, tmp_path):
    ranks(disagree, tmp_path / "step", world=2)
    assert not (tmp_path / "step").exists()


def train_the_class(me: Member, directory: Path) -> None:
    """The drop-in class has the unwrapped names, so the plain model reads what it saved, and the other way."""
    wrapped = osdp.FullyShardedDataParallel(
        blocks.workload().model(SEED, torch.float64), process_group=me.group
    )
    optimizer = adamw(wrapped.parameters())
    (tokens,), target = blocks.workload().data(0, 2 * me.world, torch.float64)
    blocks.surprise(wrapped(me.part(tokens)), me.part(target)).backward()
    optimizer.step()
    osdp.save(wrapped, optimizer, directory, process_group=me.group)
    before = wrapped.state_dict()
    plain = blocks.workload().model(SEED + 1, torch.float64)
    osdp.load(plain, adamw(plain.parameters()), directory, process_group=me.group)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter.zero_()
    osdp.load(wrapped, optimizer, directory, process_group=me.group)
    for name, value in wrapped.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_drop_in_class(ranks, tmp_path):
    ranks(train_the_class, tmp_path / "step", world=2)


def filled(me: Member, value: float) -> torch.nn.Module:
    """A sharded model that holds `value` everywhere."""
    model = torch.nn.Linear(4, 4)
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 4)), "FULL_SHARD")
    model = osdp.fully_shard(model, plan, process_group=me.group)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def save_and_die(me: Member, target: Path, where: str) -> None:
    """A checkpoint; then another one, during which a rank is killed: the last writing, or rank 0 between renames."""
    osdp.save(filled(me, 1.0), None, target, process_group=me.group)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "writing" and me.rank == me.world - 1:
        dcp_planners.BoxWriter.boxes = die  # type: ignore[assignment]
    if where == "renaming" and me.rank == 0:
        rename = Path.rename
        Path.rename = lambda self, to: die() if to == target else rename(self, to)  # type: ignore[assignment,return-value]
    osdp.save(filled(me, 2.0), None, target, process_group=me.group)


def go_on(me: Member, target: Path, expected: float) -> None:
    """What the ranks of the next run find; then they save."""
    model = filled(me, 0.0)
    osdp.load(model, None, target, process_group=me.group)
    assert all(bool((value == expected).all()) for value in model.state_dict().values())
    osdp.save(filled(me, 3.0), None, target, process_group=me.group)
    osdp.load(model, None, target, process_group=me.group)
    assert all(bool((value == 3.0).all()) for value in model.state_dict().values())


@pytest.mark.parametrize(("where", "expected"), [("writing", 1.0), ("renaming", 2.0)])
def test_a_rank_that_is_killed_while_saving(ranks, tmp_path, where, expected):
    target = tmp_path / "last"
    endings = run_doomed(save_and_die, target, where, world=2, timeout_s=6.0, lost=1)
    assert [ending.signal for ending in endings].count("SIGKILL") == 1
    assert target.exists() == (where == "writing")
    assert list(tmp_path.glob("last.partial-*"))  # what a killed run leaves
    ranks(go_on, target, expected, world=2)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def see_different_ones(me: Member, here: Path) -> None:
    """As where every host has a disk of its own under the same name."""
    model = filled(me, 5.0)
    with pytest.raises(osdp.FormatError, match="rank 1 and rank 0 see"):
        osdp.load(model, None, here / str(me.rank), process_group=me.group)
    assert all(bool((value == 5.0).all()) for value in model.state_dict().values())
    if me.rank == 1:
        real = places.partial_path
        osdp.checkpoint.saving.partial_path = lambda target, token: real(here / "elsewhere" / "new", token)  # type: ignore[attr-defined]
    try:
        with pytest.raises(osdp.OSDPError, match="file system that all ranks share"):
            osdp.save(model, None, here / "new", process_group=me.group)
    finally:
        if me.rank == 1:
            osdp.checkpoint.saving.partial_path = real  # type: ignore[attr-defined]


@pytest.mark.outcome(
    "`osdp.save` or `load` where ranks see different disks under the same path", osdp.FormatError
)
def test_ranks_that_see_different_directories(ranks, tmp_path):
    ranks(go_on_saving, tmp_path, world=2)
    ranks(see_different_ones, tmp_path, world=2)
    shutil.rmtree(tmp_path / "elsewhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def go_on_saving(me: Member, here: Path) -> None:
    for name in ("0", "1"):
        osdp.save(filled(me, float(name)), None, here / name, process_group=me.group)


class Counting(torch.optim.Optimizer):
    """Keeps numbers and lists, not tensors alone."""

    def __init__(self, parameters: Iterable[Tensor], lr: float | Tensor = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["sum"] = state.get("sum", torch.zeros_like(p)) + p.grad
                state["steps"] = state.get("steps", 0) + 1
                state["log"] = [0.5, state["steps"]]
                p.sub_(state["sum"] * float(group["lr"]) / state["steps"])


def numbers(me: Member, directory: Path) -> None:
    rate = torch.tensor(0.05)
    pair, other = (
        Pair(me, blocks.workload(), PLANS[plan], optimizer=lambda ps: Counting(ps, rate.clone()))
        for plan in ("FULL_SHARD", "mixture")
    )
    pair.train(steps=2)
    osdp.save(pair.sharded, pair.sharded_optimizer, directory / "step-00000007")
    other.sharded_optimizer.param_groups[0]["lr"].fill_(0.5)
    assert osdp.Checkpoints(directory).load(other.sharded, other.sharded_optimizer) == 7
    state = next(iter(other.sharded_optimizer.state.values()))
    assert state["steps"] == 2 and state["log"] == [0.5, 2]
    other.whole, other.whole_optimizer = pair.whole, pair.whole_optimizer
    other.both = ((pair.whole, pair.whole_optimizer), other.both[1])
    other.train(steps=2)


def test_states_that_are_numbers_and_a_rate_that_is_a_tensor(ranks, tmp_path):
    ranks(numbers, tmp_path, world=2)


class Scaled(nn.Module):
    """A buffer, and no parameter."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([value, 2 * value]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.sum()


def low_precision(me: Member, directory: Path) -> None:
    """Buffers that mixed precision casts are saved in their own dtype, and loaded into the cast ones, also of a module that
    was wrapped since."""
    policy = osdp.MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)

    def build(value: float) -> nn.Module:
        model = nn.Sequential(Scaled(value), nn.Linear(4, 4))
        plan = osdp.Plan.uniform(osdp.describe(model, torch.ones(2, 4)))
        return osdp.fully_shard(model, plan, me.group, mixed_precision=policy)

    saved, loaded = build(0.25), build(1 / 3)
    apply_activation_checkpointing(saved, check_fn=lambda module: isinstance(module, Scaled))
    saved(torch.ones(2, 4))
    assert copy.deepcopy(saved).state_dict()["0.scale"].dtype == torch.float32
    osdp.save(saved, None, directory)
    osdp.load(loaded, None, directory)
    assert loaded[0].scale.dtype == torch.bfloat16 and loaded[0].scale.tolist() == [0.25, 0.5]
    assert loaded.state_dict()["0.scale"].dtype == torch.float32


def test_buffers_in_low_precision(ranks, tmp_path):
    ranks(low_precision, tmp_path, world=2)
