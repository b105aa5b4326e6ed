"""Checkpoints: what one layout wrote, every other layout reads, exactly; what does not match is refused unchanged."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import resource
import shutil
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import osdp.checkpoint.model_state
import osdp.checkpoint.places
import osdp.checkpoint.save_load
from osdp import FormatError, ShardingError
from osdp.base import file_versions
from osdp.checkpoint.boxes import WholePiece, chunks
from osdp.checkpoint.dcp_planners import BoxWriter, ChunkSavePlanner
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.manifest import Manifest, read_manifest
from osdp.checkpoint.model_state import State
from osdp.checkpoint.places import Partial
from osdp.checkpoint.reading import check, fill, readings
from osdp.checkpoint.save_load import load, save
from tests.unit.checkpoint.killing import Killed, end, kill_at


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


def write(directory: Path, group: list[FakeRank]) -> Manifest:
    """What `save` does, rank by rank."""
    states = [r.save_state() for r in group]
    manifest = states[0].manifest
    planners = [ChunkSavePlanner(s.tensors(manifest)) for s in states]
    writers = [BoxWriter(directory) for _ in group]
    plans = []
    for rank, (planner, writer) in enumerate(zip(planners, writers, strict=True)):
        writer.set_up_storage_writer(rank == 0)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
    plans, _ = planners[0].create_global_plan(plans)
    plans = writers[0].prepare_global_plan(plans)
    boxes: dict[str, tuple[object, ...]] = {}
    for writer, plan, planner in zip(writers, plans, planners, strict=True):
        writer.write_data(plan, planner).wait()
        for key, found in writer.boxes(Folder(directory)).items():
            boxes[key] = (*boxes.get(key, ()), *found)
    return dataclasses.replace(manifest, boxes=boxes)  # type: ignore[arg-type]


def read(directory: Path, group: list[FakeRank], manifest: Manifest) -> None:
    folder = Folder(directory)
    for rank in group:
        state = State.of_load(rank.model, rank.optimizer, manifest, rank)
        wanted = readings(state.tensors(manifest, 1 << 62), manifest)
        fill(folder, wanted, check(folder, wanted))
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
    monkeypatch.setattr(osdp.checkpoint.model_state, "CHUNK_BYTES", 100)  # several boxes per piece
    full, states = example()
    group = ranks(full, states, LAYOUTS[writer_layout], 2)
    manifest = write(tmp_path, group)
    other, other_states = example(seed=1)
    readers = ranks(other, other_states, LAYOUTS[reader_layout], reader_world)
    for r in readers:
        r.optimizer.param_groups[0]["lr"] = 9.0
    read(tmp_path, readers, manifest)
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
    manifest = write(tmp_path, group)
    readers = ranks(nn.Linear(8, 2), states, ROWS, 3)
    read(tmp_path, readers, manifest)
    for found, wanted in zip(readers, ranks(full, states, ROWS, 3), strict=True):
        assert_same(found, wanted)


def test_a_rank_that_lacks_a_piece_is_found_when_saving() -> None:
    full, states = example()
    group = ranks(full, states, ROWS, 2)
    planners = [ChunkSavePlanner(s.tensors(s.manifest)) for s in (r.save_state() for r in group)]
    with pytest.raises(FormatError, match=r"model\.weight do not cover \[12, 8\]"):
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


@pytest.mark.outcome("`osdp.save` on a full disk", osdp.OSDPError)
def test_a_disk_that_is_full_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    """The system refuses to make files larger than so many bytes: in the data, in .metadata, in the manifest."""
    save(filled(1.0), None, tmp_path / "last")
    sizes = {p.name: p.stat().st_size for p in (tmp_path / "last").iterdir()}
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in sorted({0, 1, *(size - 1 for size in sizes.values())}):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
            with pytest.raises(osdp.OSDPError, match="failed"):
                save(filled(2.0), None, tmp_path / "last")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert loaded(tmp_path / "last") == 1.0
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


def test_a_state_that_is_not_what_it_shows_is_refused(tmp_path: Path) -> None:
    """As the moments in 8 bits of torchao's optimizers are."""
    model, optimizer = trained()
    state = optimizer.state[model.first.weight]
    state["exp_avg"] = TwoTensor(state["exp_avg"], state["exp_avg"].clone())
    with pytest.raises(ShardingError, match=r"'exp_avg' of first\.weight is a TwoTensor"):
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


def signed(document: object) -> bytes:
    """A manifest's text with the checksum that belongs to it."""
    body = json.dumps(document, indent=1).removesuffix("\n}").encode()
    return body + b',\n "checksum": "crc32:%08x"\n}\n' % zlib.crc32(body)


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Changes the manifest's document, and signs it: what remains to be noticed is what it says."""
    document = json.loads((path / "manifest.json").read_text())
    del document["checksum"]
    change(document)
    (path / "manifest.json").write_bytes(signed(document))


def edits(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    return lambda path: edit(path, change)


def rows(document: object, key: str = "model.first.weight") -> list[list[object]]:
    return document["boxes"][key]  # type: ignore[index,no-any-return]


def deep() -> list[object]:
    nest: list[object] = []
    for _ in range(40):
        nest = [nest]
    return nest


def put(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something else in place of the data file."""

    def damage(path: Path) -> None:
        file = next(path.glob("*.distcp"))
        file.rename(path.parent / "data")
        make(file)

    return damage


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path may have 107 bytes only
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


def a_file_for_a_directory(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("mine")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "not a complete checkpoint"),
    "no directory": (shutil.rmtree, "no such directory"),
    "a file for a directory": (a_file_for_a_directory, "Not a directory"),
    "no .metadata": (lambda p: (p / ".metadata").unlink(), "cannot be read"),
    "no data": (lambda p: next(p.glob("*.distcp")).unlink(), "cannot be read"),
    "truncated data": (damage_truncate, "is damaged"),
    "a flipped bit": (damage_flip, "is damaged"),
    "truncated .metadata": (
        lambda p: (p / ".metadata").write_bytes((p / ".metadata").read_bytes()[:99]),
        "is damaged",
    ),
    "a data file that is a pipe": (put(os.mkfifo), "it is a pipe"),
    "a data file that is a socket": (put(a_socket), "it is a socket"),
    "a data file that is a link": (
        put(lambda f: f.symlink_to(f.parent.parent / "data")),
        "it is a symbolic link",
    ),
    "a data file that is a directory": (put(Path.mkdir), "it is a directory"),
    "a manifest that is a pipe": (
        lambda p: ((p / "manifest.json").unlink(), os.mkfifo(p / "manifest.json")),
        "not a complete checkpoint|it is a pipe",
    ),
    "truncated manifest": (lambda p: (p / "manifest.json").write_text('{"osdp": "checkp'), "ends"),
    "empty manifest": (lambda p: (p / "manifest.json").write_text(""), "line 1"),
    "not UTF-8": (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), "not UTF-8"),
    "a manifest without its checksum": (
        lambda p: (p / "manifest.json").write_bytes(
            signed({"osdp": "checkpoint", "version": 1})[:-40] + b"}"
        ),
        "checksum|line",
    ),
    "newer version": (edits(lambda d: d.update(version=2)), "use a newer osdp"),
    "another kind of file": (edits(lambda d: d.update(osdp="plan")), "not an osdp 'checkpoint' file"),
    "unknown field": (edits(lambda d: d.update(colour="red")), "colour: unknown field"),
    "missing field": (edits(lambda d: d.pop("buffers")), "buffers: missing field"),
    "wrong type": (edits(lambda d: d.update(parameters=[])), "parameters: expected an object"),
    "huge number": (edits(lambda d: d["files"]["__0_0.distcp"].update(bytes=2**70)), "does not fit 64 bits"),
    "a size that overflows": (
        edits(lambda d: d["parameters"]["first.weight"].update(shape=[2**62, 2**62])),
        "boxes of model.first.weight do not cover",
    ),
    "NaN": (edits(lambda d: d["optimizer"]["groups"][0]["options"].update(lr=math.nan)), "line"),
    "an option that is an object": (
        edits(lambda d: d["optimizer"]["groups"][0]["options"].update(lr={"float": 1})),
        "does not encode a number",
    ),
    "deep nesting": (
        edits(lambda d: d["optimizer"]["groups"][0]["options"].update(lr=deep())),
        "deep|levels",
    ),
    "an option of another type": (
        edits(lambda d: [g["options"].update(weight_decay="a lot") for g in d["optimizer"]["groups"]]),
        "'weight_decay' cannot be",
    ),
    "a field twice": (
        lambda p: (p / "manifest.json").write_bytes(
            (
                text := (p / "manifest.json")
                .read_bytes()
                .replace(b'"buffers"', b'"parameters"')
                .rpartition(b",\n")[0]
            )
            + b',\n "checksum": "crc32:%08x"\n}\n' % zlib.crc32(text)
        ),
        "more than once",
    ),
    "a file elsewhere": (
        edits(lambda d: d["files"].update({"../a": {"bytes": 1, "crc32": 0}})),
        "not the name",
    ),
    "a null character in a name": (
        edits(lambda d: d["files"].update({"a\0b": {"bytes": 1, "crc32": 0}})),
        "not the name",
    ),
    "a very long name": (
        edits(lambda d: d["files"].update({"a" * 300: {"bytes": 1, "crc32": 0}})),
        "not the name",
    ),
    "the manifest as a data file": (
        edits(lambda d: d["files"].update({"manifest.json": {"bytes": 1, "crc32": 0}})),
        "not the name",
    ),
    "a box in no file": (edits(lambda d: rows(d)[0].__setitem__(2, "other")), "does not list"),
    "a box behind its file's end": (edits(lambda d: rows(d)[0].__setitem__(3, 10**9)), "does not list"),
    "a box too short for its tensor": (edits(lambda d: rows(d)[0].__setitem__(4, 3)), "cannot hold"),
    "a box of another tensor's bytes": (
        edits(
            lambda d: rows(d).__setitem__(
                0, [*rows(d)[0][:2], *rows(d, "optimizer.first.weight.exp_avg")[0][2:]]
            )
        ),
        "two boxes overlap",
    ),
    "boxes of two tensors exchanged": (
        edits(
            lambda d: d["boxes"].update(
                {"model.first.weight": rows(d, "model.last.bias"), "model.last.bias": rows(d)}
            )
        ),
        "do not cover",
    ),
    "a box twice": (edits(lambda d: rows(d).append(rows(d)[0])), "exactly once"),
    "a box missing": (edits(lambda d: rows(d).clear()), "do not cover"),
    "a box moved": (edits(lambda d: rows(d)[0].__setitem__(0, [1, 0])), "do not cover"),
    "a box with a negative offset": (edits(lambda d: rows(d)[0].__setitem__(0, [-1, 0])), "not be negative"),
    "boxes of no tensor": (
        edits(lambda d: d["boxes"].update({"model.extra": rows(d)})),
        "there is no tensor",
    ),
    "unknown dtype": (
        edits(lambda d: d["parameters"]["first.weight"].update(dtype="float33")),
        "float33",
    ),
    "a state of another shape": (
        edits(
            lambda d: (
                d["optimizer"]["tensors"]["first.weight"].update(
                    exp_avg=d["optimizer"]["tensors"]["first.bias"]["exp_avg"]
                )
                or d["boxes"].update(
                    {
                        "optimizer.first.weight.exp_avg": rows(d, "optimizer.first.bias.exp_avg"),
                        "optimizer.first.bias.exp_avg": [],
                    }
                )
                or (
                    d["optimizer"]["tensors"]["first.bias"].pop("exp_avg")
                    and d["boxes"].pop("optimizer.first.bias.exp_avg")
                )
            )
        ),
        "neither the parameter's",
    ),
    "lists a tensor that is not there": (
        edits(lambda d: d["parameters"].update(extra={"shape": [1], "dtype": "float32"})),
        r"boxes of model\.extra do not cover",
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `trained()`, to copy."""
    folder = tmp_path_factory.mktemp("written") / "step"
    save(*trained(), folder)
    return folder


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_nothing_changes(
    tmp_path: Path, written: Path, kind: str
) -> None:
    damage, message = DAMAGES[kind]
    shutil.copytree(written, tmp_path / "step")
    damage(tmp_path / "step")
    model, optimizer = trained(seed=1)
    before = snapshot(model, optimizer)
    with pytest.raises(FormatError, match=message):
        load(model, optimizer, tmp_path / "step")
    assert same(before, snapshot(model, optimizer))


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
    assert read_manifest(Folder(tmp_path / "step")).optimizer is None
    with pytest.raises(FormatError, match="holds no optimizer"):
        load(model, optimizer, tmp_path / "step")


# ---- damage at random ----


def mutated(data: bytes, random: Random) -> bytes | None:
    """`data` with something done to it; None: the file is gone."""
    at = random.randrange(len(data))
    match random.randrange(6):
        case 0 | 1 | 2:
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 3:
            return data[:at]
        case 4:
            other = random.randrange(len(data))
            return data[:at] + data[other : other + random.randrange(1, 64)] + data[at:]
        case _:
            return None if random.randrange(8) == 0 else data[:at] + data[at + random.randrange(1, 64) :]


MUTATIONS = int(os.environ.get("OSDP_MUTATIONS", "150"))


@pytest.mark.outcome(
    "a flipped bit, a truncation or a repeated piece in any file of a checkpoint", FormatError
)
def test_any_damage_of_any_file_is_noticed_before_anything_changes(tmp_path: Path) -> None:
    """Each is refused with model and optimizer as they were, or, where what was damaged says nothing, loads all values."""
    saved = trained()
    save(*saved, tmp_path / "step")
    model, optimizer = trained(seed=1)
    before, wanted = snapshot(model, optimizer), snapshot(*saved)
    files = sorted(p for p in (tmp_path / "step").iterdir())
    assert [p.name for p in files] == [".metadata", "__0_0.distcp", "manifest.json"]
    random, refused = Random(13), 0
    for number in range(MUTATIONS):
        file = files[number % len(files)]
        data = file.read_bytes()
        damaged = mutated(data, random)
        file.unlink() if damaged is None else file.write_bytes(damaged)
        try:
            load(model, optimizer, tmp_path / "step")
        except FormatError:
            refused += 1
            assert same(before, snapshot(model, optimizer)), (number, file.name)
        else:
            assert damaged == data, (number, file.name)  # a piece that was cut where the same follows
            assert same(wanted, snapshot(model, optimizer))
            model, optimizer = trained(seed=1)
        file.write_bytes(data)
    assert refused > MUTATIONS * 0.95
    load(model, optimizer, tmp_path / "step")
    assert same(wanted, snapshot(model, optimizer))


# ---- files of every version ----

FILES = Path(__file__).parents[2] / "data" / "files"  # of two ranks, one weight split


@pytest.mark.parametrize("version", range(1, file_versions.newest("checkpoint") + 1))
def test_a_checkpoint_of_every_version_loads(version: int) -> None:
    model, optimizer = trained(seed=3)
    load(model, optimizer, FILES / f"checkpoint-{version}")
    expected = torch.load(FILES / f"checkpoint-{version}.pt")
    assert same(dict(model.state_dict()), dict(expected["model"]))
    names = {p: name for name, p in model.named_parameters()}
    assert same({names[p]: state for p, state in optimizer.state.items()}, expected["optimizer"])
    assert [g["lr"] for g in optimizer.param_groups] == [0.01, 0.01]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]


def test_torch_reads_the_files_too(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(model, optimizer, tmp_path / "step")
    state = {"model.first.weight": torch.zeros(6, 4), "optimizer.first.weight.exp_avg": torch.zeros(6, 4)}
    dcp.load(state, checkpoint_id=tmp_path / "step")
    assert torch.equal(state["model.first.weight"], model.first.weight)
    assert torch.equal(
        state["optimizer.first.weight.exp_avg"], optimizer.state[model.first.weight]["exp_avg"]
    )


def test_options_that_json_cannot_hold_come_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    odd = {
        "a": math.inf,
        "b": -math.inf,
        "c": 2**80,
        "d": [1, -(2**70), [math.inf]],
        "e": "\u00e9\n",
        "f": -0.0,
    }
    for group in optimizer.param_groups:
        group.update(odd)
    save(model, optimizer, tmp_path / "step")
    for group in optimizer.param_groups:
        group.update(dict.fromkeys(odd))
    load(model, optimizer, tmp_path / "step")
    for group in optimizer.param_groups:
        assert repr({**group, "d": list(group["d"])}) == repr({**group, **odd})
    optimizer.param_groups[0]["e"] = "\ud800"  # half a character
    with pytest.raises(osdp.OSDPError):
        save(model, optimizer, tmp_path / "step")
    load(model, optimizer, tmp_path / "step")


# ---- where it lies ----


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("step-1")
    for value in (1.0, 2.0):
        model, optimizer = trained()
        model.first.weight.data.fill_(value)
        save(model, optimizer, tmp_path / "latest")
        other, other_optimizer = trained(seed=1)
        load(other, other_optimizer, tmp_path / "latest")
        assert torch.equal(other.first.weight, model.first.weight)
    assert (tmp_path / "latest").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-1"]


def test_names_that_no_directory_can_have_are_refused(tmp_path: Path) -> None:
    model, optimizer = trained()
    for name in ("a\0b", "a" * 240, "a" * 300):
        with pytest.raises(ShardingError, match="is not a valid"):
            save(model, optimizer, tmp_path / name)
        with pytest.raises(FormatError):
            load(model, optimizer, tmp_path / name)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ShardingError, match="not a checkpoint"):
        save(model, optimizer, tmp_path / "file")
    with pytest.raises(osdp.OSDPError, match="Not a directory"):
        save(model, optimizer, tmp_path / "file" / "step")
    with pytest.raises(osdp.OSDPError, match="rank 0"):
        save(model, optimizer, "/proc/step")  # where nothing can be made
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


CHANGES = ((Path, "rename"), (Path, "unlink"), (shutil, "rmtree"))  # of directories, in one save


def filled(value: float) -> nn.Module:
    model = nn.Linear(2, 1)
    model.weight.data.fill_(value)
    return model


def loaded(path: Path) -> float:
    model = filled(0.0)
    load(model, None, path)
    first, second = model.weight.flatten().tolist()
    assert first == second
    return float(first)


@pytest.mark.outcome("a save killed at any point, also between the two renames", "equal")
def test_killed_anywhere_while_saving_a_checkpoint_is_found_and_the_next_save_clears_up(
    tmp_path: Path,
) -> None:
    seen = set()
    for step in range(100):
        path = tmp_path / str(step) / "last"
        path.parent.mkdir()
        save(filled(1.0), None, path)
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls, living = kill_at(monkeypatch, step, CHANGES)
            try:
                save(filled(2.0), None, path)
                finished = True
            except Killed:
                finished = False
        end(living)
        assert loaded(path) in (1.0, 2.0), calls
        seen.add((loaded(path), path.exists()))
        if finished:
            break
        assert path.exists() or loaded(path) == 2.0  # between the renames: both are beside it
        save(filled(3.0), None, path)
        assert loaded(path) == 3.0
        assert [p.name for p in path.parent.iterdir()] == ["last"], calls
    assert finished and step == 5  # two renames, a file and two directories removed
    assert {(1.0, True), (2.0, False), (2.0, True)} <= seen


def test_only_the_replaced_one_is_left(tmp_path: Path) -> None:
    """As an OSDP that died between the renames left it, and then the new one was lost or is incomplete."""
    save(filled(1.0), None, tmp_path / "last")
    (tmp_path / "last").rename(tmp_path / "last.partial-0123abcd-replaced")
    (tmp_path / "last.partial-0123abcd").mkdir()
    (tmp_path / "last.partial-0123abcd" / "__0_0.distcp").write_bytes(b"cut")
    (tmp_path / "last.partial-mine").mkdir()  # not a name that OSDP gives
    assert loaded(tmp_path / "last") == 1.0
    with pytest.MonkeyPatch.context() as monkeypatch:  # a save that fails leaves one, now under its name
        monkeypatch.setattr(dcp.FileSystemWriter, "write_data", lambda *_: 1 / 0)
        with pytest.raises(osdp.OSDPError, match="ZeroDivisionError"):
            save(filled(2.0), None, tmp_path / "last")
    assert loaded(tmp_path / "last") == 1.0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "last.partial-mine"]


@pytest.mark.outcome("two runs that save to one directory at once", "equal")
def test_two_saves_at_once_leave_one_of_the_two(tmp_path: Path) -> None:
    """The second save runs at every step of the first one: it neither clears away nor is cleared away."""
    save(filled(1.0), None, tmp_path / "last")
    for step in range(40):
        with pytest.MonkeyPatch.context() as monkeypatch:
            done = []
            rename = Path.rename

            def other_first(self: Path, target: Path) -> Path:
                if len(done) == step:  # noqa: B023
                    done.append(None)  # noqa: B023
                    save(filled(3.0), None, tmp_path / "last")
                else:
                    done.append(None)  # noqa: B023
                return rename(self, target)  # noqa: B023

            monkeypatch.setattr(Path, "rename", other_first)
            save(filled(2.0), None, tmp_path / "last")
        assert loaded(tmp_path / "last") == 2.0
        assert [p.name for p in tmp_path.iterdir()] == ["last"]
        if len(done) <= step:
            break
    assert step >= 2


def test_a_run_that_is_saving_is_left_alone(tmp_path: Path) -> None:
    living = Partial(tmp_path / "last", "0123abcd")
    save(filled(1.0), None, tmp_path / "last")
    assert living.path.is_dir()
    living.abandon()
    assert [p.name for p in tmp_path.iterdir()] == ["last"]


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(filled(1.0), None, tmp_path / "last")
    real = osdp.checkpoint.save_load.fill

    def late(*args: object) -> None:
        save(filled(2.0), None, tmp_path / "last")
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(osdp.checkpoint.save_load, "fill", late)
    assert loaded(tmp_path / "last") == 1.0
    monkeypatch.undo()
    assert loaded(tmp_path / "last") == 2.0
