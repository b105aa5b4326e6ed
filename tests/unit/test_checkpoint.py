"""Checkpoints: what one layout wrote, every other layout reads, exactly; what does not match is refused unchanged."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

import osdp.checkpoint_state
from osdp import FormatError, ShardingError
from osdp.checkpoint import load, save
from osdp.checkpoint_state import State
from osdp.checkpoint_storage import ChunkLoadPlanner, ChunkReader, ChunkSavePlanner, read_metadata
from osdp.manifest import read_manifest
from osdp.pieces import WholePiece, chunks


@dataclasses.dataclass(frozen=True)
class Box:
    """A piece as rows [first, first + rows) and columns [left, left + columns) of the full tensor."""

    global_offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    replicated: bool
    local_row: int

    def view(self, local: Tensor) -> Tensor:
        return local.narrow(0, self.local_row, self.sizes[0])


@dataclasses.dataclass(frozen=True)
class Split:
    """A layout of a 2-D weight: `slices` along "out" (rows) or "in" (columns), of which the first `kept` are not sharded."""

    dim: str
    slices: int
    kept: int

    def pieces(self, shape: tuple[int, ...], rank: int, world: int) -> list[Box]:
        boxes, local_row = [], 0
        rows = shape[0] // self.slices if self.dim == "out" else shape[0]
        columns = shape[1] if self.dim == "out" else shape[1] // self.slices
        each = -(-rows // world)
        for i in range(self.slices):
            first, last = (
                (0, rows) if i < self.kept else (min(rank * each, rows), min((rank + 1) * each, rows))
            )
            corner = (i * rows + first, 0) if self.dim == "out" else (first, i * columns)
            boxes.append(Box(corner, (last - first, columns), i < self.kept, local_row))
            local_row += last - first
        return boxes


ROWS = Split("out", 1, 0)
LAYOUTS = {
    "whole": Split("out", 1, 1),
    "rows": ROWS,
    "out 4, 2 kept": Split("out", 4, 2),
    "in 2, 1 kept": Split("in", 2, 1),
    "in 4, all sharded": Split("in", 4, 0),
}


class FakeRank:
    """One simulated rank: a model whose `weight` is the local tensor of a Split, and its AdamW after real steps."""

    def __init__(
        self, full: nn.Linear, states: dict[str, Tensor], split: Split, rank: int, world: int
    ) -> None:
        self.shapes = {"weight": tuple(full.weight.shape), "bias": tuple(full.bias.shape)}
        self.boxes = split.pieces(self.shapes["weight"], rank, world)
        self.model = copy.deepcopy(full)
        self.model.weight.data = self.cut(full.weight.detach())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.25)
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(3.0),
                "exp_avg": self.cut(states[name]) if name == "weight" else states[name].clone(),
                "exp_avg_sq": (self.cut(states[name]) if name == "weight" else states[name].clone()) ** 2,
            }

    def cut(self, full: Tensor) -> Tensor:
        parts = [
            full[tuple(slice(o, o + n) for o, n in zip(b.global_offsets, b.sizes, strict=True))]
            for b in self.boxes
        ]
        return torch.cat(parts).contiguous()

    def names(self) -> list[str]:
        return list(self.shapes)

    def full_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def pieces(self, name: str) -> list[Box]:
        return self.boxes if name == "weight" else [Box((0,), self.shapes["bias"], True, 0)]

    def save_state(self) -> State:
        return State.of_save(self.model, self.optimizer, self)


def ranks(full: nn.Linear, states: dict[str, Tensor], split: Split, world: int) -> list[FakeRank]:
    return [FakeRank(full, states, split, rank, world) for rank in range(world)]


def write(directory: Path, group: list[FakeRank]) -> None:
    """What `save` does, rank by rank: DCP's own writer and metadata."""
    states = [r.save_state() for r in group]
    manifest = states[0].manifest
    planners = [ChunkSavePlanner(s.tensors(manifest)) for s in states]
    writers = [dcp.FileSystemWriter(directory) for _ in group]
    plans = []
    for rank, (planner, writer) in enumerate(zip(planners, writers, strict=True)):
        writer.set_up_storage_writer(rank == 0)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    plans = writers[0].prepare_global_plan(plans)
    results = [
        w.write_data(p, planner).wait() for w, p, planner in zip(writers, plans, planners, strict=True)
    ]
    writers[0].finish(metadata, results)


def read(directory: Path, group: list[FakeRank], manifest: object) -> None:
    metadata = read_metadata(directory)
    for rank in group:
        state = State.of_load(rank.model, rank.optimizer, manifest, rank)  # type: ignore[arg-type]
        planner = ChunkLoadPlanner(state.tensors(state.manifest))
        planner.set_up_planner({}, metadata)
        reader = ChunkReader(directory, metadata)
        reader.set_up_storage_reader(metadata, True)
        reader.read_data(planner.create_local_plan(), planner).wait()
        state.install()


def example(seed: int = 0) -> tuple[nn.Linear, dict[str, Tensor]]:
    torch.manual_seed(seed)
    return nn.Linear(8, 12), {"weight": torch.randn(12, 8), "bias": torch.randn(12)}


def assert_same(rank: FakeRank, expected: FakeRank) -> None:
    for (name, found), wanted in zip(rank.model.named_parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(found, wanted), name
        for key, value in expected.optimizer.state[wanted].items():
            assert torch.equal(rank.optimizer.state[found][key], value), (name, key)
    assert rank.optimizer.param_groups[0]["lr"] == 0.25
    assert rank.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


@pytest.mark.parametrize("reader_world", [1, 3])
@pytest.mark.parametrize("reader_layout", LAYOUTS)
@pytest.mark.parametrize("writer_layout", LAYOUTS)
def test_every_layout_reads_what_every_other_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer_layout: str, reader_layout: str, reader_world: int
) -> None:
    monkeypatch.setattr(osdp.checkpoint_state, "CHUNK_BYTES", 100)  # several boxes per piece
    full, states = example()
    group = ranks(full, states, LAYOUTS[writer_layout], 2)
    write(tmp_path, group)
    other, other_states = example(seed=1)
    readers = ranks(other, other_states, LAYOUTS[reader_layout], reader_world)
    for r in readers:
        r.optimizer.param_groups[0]["lr"] = 9.0
    read(tmp_path, readers, group[0].save_state().manifest)
    for found, wanted in zip(readers, ranks(full, states, LAYOUTS[reader_layout], reader_world), strict=True):
        assert_same(found, wanted)


def test_what_all_ranks_hold_is_written_once_and_spread() -> None:
    full, states = nn.Linear(64, 64), {"weight": torch.zeros(64, 64), "bias": torch.zeros(64)}
    group = ranks(full, states, LAYOUTS["whole"], 4)
    planners = [ChunkSavePlanner(s.tensors(s.manifest)) for s in (r.save_state() for r in group)]
    plans, _ = planners[0].create_global_plan([p.create_local_plan() for p in planners])
    written = [(i.index.fqn, i.index.offset) for plan in plans for i in plan.items]
    assert len(written) == len(set(written))
    assert sum(bool(plan.items) for plan in plans) > 1


def test_more_ranks_than_rows_leaves_some_without_a_box(tmp_path: Path) -> None:
    torch.manual_seed(0)
    full, states = nn.Linear(8, 2), {"weight": torch.randn(2, 8), "bias": torch.randn(2)}
    group = ranks(full, states, ROWS, 4)
    assert group[3].model.weight.numel() == 0
    write(tmp_path, group)
    readers = ranks(nn.Linear(8, 2), states, ROWS, 3)
    read(tmp_path, readers, group[0].save_state().manifest)
    for found, wanted in zip(readers, ranks(full, states, ROWS, 3), strict=True):
        assert_same(found, wanted)


def test_a_rank_that_lacks_a_piece_is_found_when_saving() -> None:
    full, states = example()
    group = ranks(full, states, ROWS, 2)
    planners = [ChunkSavePlanner(s.tensors(s.manifest)) for s in (r.save_state() for r in group)]
    with pytest.raises(FormatError, match=r"model\.weight hold 48 of 96"):
        planners[0].create_global_plan([planners[0].create_local_plan()])


@given(st.lists(st.integers(1, 9), min_size=0, max_size=3), st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_chunks_tile_the_tensor(shape: list[int], limit: int) -> None:
    tensor = torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.float64).reshape(shape)
    seen = torch.zeros_like(tensor)
    for chunk in chunks([WholePiece(tuple(tensor.shape))], tensor, limit):
        index = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.tensor.shape, strict=True))
        assert torch.equal(tensor[index], chunk.tensor)
        seen[index] += 1
    assert bool((seen == 1).all())


# ---- save and load, one process ----


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 2)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.norm(self.first(x))))


def trained(seed: int = 0, **options: object) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2 and p.requires_grad], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2 and p.requires_grad], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, **options)  # type: ignore[arg-type]
    for _ in range(3):
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[object, object]:
    return copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(same(x, y) for x, y in zip(a, b, strict=True))  # type: ignore[arg-type]
    return a == b


@pytest.mark.parametrize("fused", [False, True])
def test_training_continues_as_if_it_had_not_stopped(tmp_path: Path, fused: bool) -> None:
    model, optimizer = trained(fused=fused)
    save(model, optimizer, tmp_path / "step")
    again, again_optimizer = trained(seed=1, fused=fused)
    load(again, again_optimizer, tmp_path / "step")
    assert same(snapshot(model, optimizer), snapshot(again, again_optimizer))
    for net, opt in ((model, optimizer), (again, again_optimizer)):
        torch.manual_seed(7)
        net(torch.randn(5, 4)).square().sum().backward()
        opt.step()
    assert same(snapshot(model, optimizer), snapshot(again, again_optimizer))


def test_the_model_alone_and_an_optimizer_without_steps(tmp_path: Path) -> None:
    model = Net()
    save(model, torch.optim.SGD(model.parameters(), lr=1.0), tmp_path / "fresh")
    other, optimizer = Net(), None
    load(other, optimizer, tmp_path / "fresh")
    assert same(model.state_dict(), other.state_dict())
    stepped, _ = trained()
    sgd = torch.optim.SGD(stepped.parameters(), lr=2.0)
    load(stepped, sgd, tmp_path / "fresh")
    assert sgd.param_groups[0]["lr"] == 1.0 and not sgd.state


def test_a_newer_checkpoint_replaces_an_older_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(model, optimizer, tmp_path / "last")
    with torch.no_grad():
        model.first.weight.fill_(5.0)
    save(model, optimizer, tmp_path / "last")
    other, other_optimizer = trained(seed=2)
    load(other, other_optimizer, tmp_path / "last")
    assert torch.equal(other.first.weight, model.first.weight)
    assert [p.name for p in tmp_path.iterdir()] == ["last"]


def test_a_save_that_dies_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained()
    save(model, optimizer, tmp_path / "last")
    before = snapshot(model, optimizer)

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", full_disk)
    with torch.no_grad():
        model.first.weight.fill_(5.0)
    with pytest.raises(osdp.OSDPError, match="No space left"):
        save(model, optimizer, tmp_path / "last")
    load(model, optimizer, tmp_path / "last")
    assert same(before, snapshot(model, optimizer))
    assert [p.name for p in tmp_path.iterdir()] == ["last"]


def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    model, optimizer = trained()
    with pytest.raises(ShardingError, match="not a checkpoint"):
        save(model, optimizer, tmp_path / "notes")
    assert (tmp_path / "notes" / "diary.txt").read_text() == "mine"


def test_a_state_that_no_other_layout_could_hold_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained()
    optimizer.state[model.first.weight]["row"] = torch.zeros(6)
    with pytest.raises(ShardingError, match=r"'row' of first\.weight"):
        save(model, optimizer, tmp_path / "step")
    assert not list(tmp_path.iterdir())


def damage_truncate(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])


def damage_flip(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def edit(path: Path, **changes: object) -> None:
    document = json.loads((path / "manifest.json").read_text())
    for key, value in changes.items():
        *parents, last = key.split("__")
        at = document
        for parent in parents:
            at = at[parent]
        if value is None:
            del at[last]
        else:
            at[last] = value
    (path / "manifest.json").write_text(json.dumps(document))


DAMAGES = {
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "not a complete checkpoint"),
    "no table": (lambda p: (p / ".metadata").unlink(), "not a complete checkpoint"),
    "no data": (lambda p: next(p.glob("*.distcp")).unlink(), "cannot be read"),
    "truncated data": (damage_truncate, "is damaged"),
    "a flipped bit": (damage_flip, "is damaged"),
    "truncated table": (
        lambda p: (p / ".metadata").write_bytes((p / ".metadata").read_bytes()[:99]),
        "is damaged",
    ),
    "truncated manifest": (lambda p: (p / "manifest.json").write_text('{"format": "osdp'), "not valid JSON"),
    "not UTF-8": (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), "not UTF-8"),
    "newer version": (lambda p: edit(p, version=2), "version is 2"),
    "another format": (lambda p: edit(p, format="else"), "format should be"),
    "unknown field": (lambda p: edit(p, colour="red"), "colour is unknown"),
    "missing field": (lambda p: edit(p, buffers=None), "buffers is missing"),
    "wrong type": (lambda p: edit(p, parameters=[]), "parameters should be an object"),
    "huge number": (lambda p: edit(p, files={"a": {"bytes": 2**70, "crc32": 0}}), "files.a.bytes should be"),
    "a file elsewhere": (lambda p: edit(p, files={"../a": {"bytes": 1, "crc32": 0}}), "not"),
    "unknown dtype": (
        lambda p: edit(p, parameters__first_weight={"shape": [1], "dtype": "float33"}),
        "float33",
    ),
    "lists a tensor that is not there": (
        lambda p: edit(p, parameters__extra={"shape": [1], "dtype": "float32"}),
        r"no rank holds any part of model\.extra",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_nothing_changes(tmp_path: Path, kind: str) -> None:
    damage, message = DAMAGES[kind]
    save(*trained(), tmp_path / "step")
    damage(tmp_path / "step")
    model, optimizer = trained(seed=1)
    before = snapshot(model, optimizer)
    with pytest.raises(FormatError, match=message):
        load(model, optimizer, tmp_path / "step")
    assert same(before, snapshot(model, optimizer))


def test_a_table_that_would_run_code_is_refused(tmp_path: Path) -> None:
    save(*trained(), tmp_path / "step")

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    (tmp_path / "step" / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FormatError, match="has no use for"):
        load(*trained(), tmp_path / "step")
    assert not (tmp_path / "ran").exists()


def test_a_table_may_name_members_of_enumerations_by_getattr(tmp_path: Path) -> None:
    """Python 3.11.2 pickles them so; no other attribute may be taken that way."""
    encoding = _MEM_FORMAT_ENCODING

    class Attribute:
        def __init__(self, owner: object, name: str) -> None:
            self.call = (getattr, (owner, name))

        def __reduce__(self) -> tuple[object, ...]:
            return self.call

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute(encoding, "TORCH_CONTIGUOUS_FORMAT")))
    with pytest.raises(FormatError, match="not a table of tensors"):  # read, and found to be only that
        read_metadata(tmp_path)
    for owner, name in ((torch.Size, "count"), (encoding, "__class__"), (encoding, "mro")):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute(owner, name)))
        with pytest.raises(FormatError, match="not an enumeration's member"):
            read_metadata(tmp_path)


def other_shape() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = trained()
    model.last.weight.data = torch.zeros(2, 7)
    return model, optimizer


def other_dtype() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = trained()
    model.last.bias.data = model.last.bias.data.double()
    return model, optimizer


def other_groups() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, _ = trained()
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])


def other_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, _ = trained()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def frozen_too() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, _ = trained()
    return model, torch.optim.AdamW(model.parameters())


def another_parameter() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = trained()
    model.extra = nn.Parameter(torch.zeros(1))
    return model, optimizer


MISMATCHES = {
    "shape": (other_shape, "last.weight"),
    "dtype": (other_dtype, "last.bias"),
    "options of one group": (other_groups, "first.bias"),
    "optimizer's class": (other_optimizer, "optimizer.kind"),
    "what is optimized": (frozen_too, "frozen.bias"),
    "a parameter more": (another_parameter, "extra"),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_another_model_or_optimizer_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    make, where = MISMATCHES[kind]
    save(*trained(), tmp_path / "step")
    model, optimizer = make()
    before = snapshot(model, optimizer)
    with pytest.raises(FormatError) as caught:
        load(model, optimizer, tmp_path / "step")
    assert caught.value.field == where
    assert same(before, snapshot(model, optimizer))


def test_an_optimizer_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(model, None, tmp_path / "step")
    assert read_manifest(tmp_path / "step").optimizer is None
    with pytest.raises(FormatError, match="holds no optimizer"):
        load(model, optimizer, tmp_path / "step")
