"""osdp.Checkpoints in one process: directories, `latest`, what is kept, what a copy takes, and being killed anywhere."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import osdp
from osdp.checkpoint import background, places
from osdp.checkpoint.dcp_planners import BoxWriter
from tests.unit.checkpoint.killing import end, kill_at


def trained(value: float, width: int = 4) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model full of `value`, and an optimizer that has taken a step."""
    model = nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model, optimizer


def value_of(model: nn.Module) -> float:
    (value,) = {v for p in model.parameters() for v in p.flatten().tolist()}
    return float(value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_directory_per_step_latest_and_the_last_ones(tmp_path: Path) -> None:
    run = osdp.Checkpoints(tmp_path / "run", keep=2)
    model, optimizer = trained(0.0)
    assert run.load(model, optimizer) == 0 and run.steps() == []
    for step in (1, 2, 3, 4):
        run.save(*trained(float(step)), step, extra={"sampler": {"position": step}})
    run.wait()
    assert names(tmp_path / "run") == ["latest", "step-00000003", "step-00000004"]
    assert os.readlink(tmp_path / "run" / "latest") == "step-00000004" and run.steps() == [3, 4]
    assert run.load(model, optimizer) == 4
    assert value_of(model) == 4.0 and run.extra == {"sampler": {"position": 4}}
    osdp.load(model, optimizer, tmp_path / "run" / "step-00000003")  # each is a checkpoint as any other
    assert value_of(model) == 3.0


def test_who_moves_latest_back_goes_on_from_there(tmp_path: Path) -> None:
    run = osdp.Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        run.save(*trained(float(step)), step)
    run.wait()
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("step-00000001")
    model, optimizer = trained(0.0)
    again = osdp.Checkpoints(tmp_path, keep=2)
    assert again.load(model, optimizer) == 1 and value_of(model) == 1.0
    again.save(*trained(1.5), 2)  # another step 2
    again.save(*trained(1.75), 3)
    again.wait()
    assert again.load(model, optimizer) == 3 and again.steps() == [2, 3]
    osdp.load(model, None, tmp_path / "step-00000002")
    assert value_of(model) == 1.5


def test_training_goes_on_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer stands still until the model, its buffers and its optimizer have become others."""
    go_on, real = threading.Event(), BoxWriter.write_data

    def late(*args: object) -> object:
        assert go_on.wait(20)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(BoxWriter, "write_data", late)
    model, optimizer = trained(1.0)
    model.register_buffer("seen", torch.ones(3))
    before = {k: v.clone() for k, v in optimizer.state[model.weight].items()}
    run = osdp.Checkpoints(tmp_path)
    run.save(model, optimizer, 1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers(), *optimizer.state[model.weight].values()):
            tensor.fill_(9.0)
    assert names(tmp_path) != ["latest", "step-00000001"]
    go_on.set()
    run.wait()
    assert run.load(model, optimizer) == 1
    assert value_of(model) == 1.0 and model.seen.tolist() == [1.0, 1.0, 1.0]
    for key, value in before.items():
        assert torch.equal(optimizer.state[model.weight][key], value), key


@pytest.mark.parametrize("limit", [0, 100, 300, 4096, None])
def test_the_copy_keeps_to_its_limit(tmp_path: Path, limit: int | None) -> None:
    """80 bytes of parameters, twice that of state, and the 8 bytes of two step counts: 248."""
    run = osdp.Checkpoints(tmp_path, copy_limit=limit)
    model, optimizer = trained(2.0)
    run.save(model, optimizer, 7)
    assert run.share_bytes == 248
    assert run.copied_bytes == 248 if limit is None else 0 <= run.copied_bytes <= limit
    if limit == 100:
        assert run.copied_bytes > 0, "what fits is copied"
    run.wait()
    other, other_optimizer = trained(0.0)
    assert run.load(other, other_optimizer) == 7 and value_of(other) == 2.0
    for a, b in zip(optimizer.state.values(), other_optimizer.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_save_that_fails_is_told_by_the_next_call_and_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = osdp.Checkpoints(tmp_path)
    run.save(*trained(1.0), 1)
    run.wait()
    for error in (OSError(28, "No space left on device"), RuntimeError("the writer failed")):
        with monkeypatch.context() as patch:
            patch.setattr(BoxWriter, "write_data", lambda *_, e=error: (_ for _ in ()).throw(e))
            run.save(*trained(2.0), 2)
            run._background[0]._thread.join()  # type: ignore[index]
        with pytest.raises(osdp.OSDPError, match=str(error.args[-1])):
            run.save(*trained(3.0), 3)
    assert "was not saved" in caplog.text
    assert names(tmp_path) == ["latest", "step-00000001"]
    run.save(*trained(4.0), 4)
    run.wait()
    assert run.steps() == [1, 4]


def test_what_cannot_be_saved_is_refused_before_anything_changes(tmp_path: Path) -> None:
    run = osdp.Checkpoints(tmp_path / "run")
    model, optimizer = trained(1.0)
    for step in (-1, 1.5, True, "7", 10**18):
        with pytest.raises(osdp.InvalidProblemError, match="step must be"):
            run.save(model, optimizer, step)  # type: ignore[arg-type]
    for extra in ({"loss": float("nan")}, {"model": model}, {"t": torch.zeros(2)}):
        with pytest.raises(osdp.ShardingError, match="extra cannot be saved"):
            run.save(model, optimizer, 1, extra=extra)
    for keep in (0, -1, True, 1.5):
        with pytest.raises(osdp.InvalidProblemError, match="keep must be"):
            osdp.Checkpoints(tmp_path, keep=keep)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_latest_is_never_another_thing(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    run = osdp.Checkpoints(tmp_path)
    run.save(*trained(1.0), 1)
    with pytest.raises(osdp.ShardingError, match="latest cannot be moved"):
        run.wait()
    model, optimizer = trained(0.0)
    assert run.load(model, optimizer) == 1 and names(tmp_path) == ["latest", "step-00000001"]


def test_a_flipped_bit_in_extra_is_found(tmp_path: Path) -> None:
    run = osdp.Checkpoints(tmp_path)
    run.save(*trained(1.0), 1, extra={"position": 7})
    run.wait()
    extra = tmp_path / "step-00000001" / "extra.json"
    extra.write_text(extra.read_text().replace("7", "8"))
    with pytest.raises(osdp.FormatError, match=r"extra\.json is damaged"):
        run.load(*trained(0.0))


CHANGES = (
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "symlink_to"),
    (os, "rename"),
    (os, "replace"),
    (shutil, "rmtree"),
)


def test_killed_at_any_moment_the_last_good_one_is_found(tmp_path: Path) -> None:
    """Also between the renames, while `latest` moves, and while old ones are removed."""
    found = set()
    for moment in range(100):
        folder = tmp_path / str(moment)
        run = osdp.Checkpoints(folder, keep=1)
        run.save(*trained(1.0), 1)
        run.wait()
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(threading, "excepthook", lambda args: None)
            calls, living = kill_at(monkeypatch, moment, CHANGES)
            run.save(*trained(2.0), 2)
            run._background[0]._thread.join()  # type: ignore[index]
            finished = len(calls) < moment
        end(living)
        again = osdp.Checkpoints(folder, keep=1)
        model, optimizer = trained(0.0)
        step = again.load(model, optimizer)
        assert step in (1, 2) and value_of(model) == float(step), calls
        found.add(step)
        again.save(*trained(3.0), 3)
        again.wait()
        assert again.load(model, optimizer) == 3 and value_of(model) == 3.0
        assert names(folder) == ["latest", "step-00000003"], calls
        if finished:
            break
    assert finished and found == {1, 2}


def test_rank_0_gives_up_on_a_rank_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each host has a disk of its own under the name: the other rank wrote, elsewhere."""
    monkeypatch.setattr(background, "_PATIENCE_S", 0.1)
    run = osdp.Checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(background.Background, "_tell", lambda *_: None)
        run.save(*trained(1.0), 1)
        with pytest.raises(osdp.OSDPError, match="file system that all ranks share"):
            run.wait()
    assert names(tmp_path) == []


def test_an_exception_in_the_script_does_not_wait_for_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background.Background, "_tell", lambda *_: None)
    with pytest.raises(KeyError), osdp.Checkpoints(tmp_path) as run:
        run.save(*trained(1.0), 1)
        raise KeyError("of the script")
    assert names(tmp_path) == []


def test_what_is_saved_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "osdp"), osdp.Checkpoints(tmp_path) as run:
        run.save(*trained(1.0), 1)
    assert any(r.name == "osdp" and "step-00000001 saved in" in r.message for r in caplog.records)


def test_manifests_list_the_extra_file(tmp_path: Path) -> None:
    with osdp.Checkpoints(tmp_path) as run:
        run.save(*trained(1.0), 1, extra={"a": [1, "b", None]})
    manifest = json.loads((tmp_path / "latest" / "manifest.json").read_text())
    assert "extra.json" in manifest["files"]
    assert places.is_complete(tmp_path / "latest")
