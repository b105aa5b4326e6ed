"""export: a checkpoint's weights as safetensors, read back by safetensors and by transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import osdp
from osdp.checkpoint.export import export
from osdp.cli.main import main


def saved(path: Path) -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4).to(torch.bfloat16))
    osdp.save(model, None, path)
    return model


def same(found: dict[str, torch.Tensor], model: nn.Module) -> None:
    wanted = model.state_dict()
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def test_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path / "step")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    assert main(["export", str(tmp_path / "step"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'model.safetensors'}\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    same(load_file(tmp_path / "out" / "model.safetensors"), model)


def test_several_files_and_their_index(tmp_path: Path) -> None:
    model = saved(tmp_path / "step")
    files = export(tmp_path / "step", tmp_path / "out", max_shard=300)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    count = len(files) - 1
    assert count > 2 and files[0].name == f"model-00001-of-{count:05d}.safetensors"
    found = {}
    for file in files[:-1]:
        held = load_file(file)
        assert all(index["weight_map"][name] == file.name for name in held)
        found |= held
        assert len(held) == 1 or sum(t.nbytes for t in held.values()) <= 300
    same(found, model)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in model.state_dict().values())


def test_transformers_reads_it_also_where_weights_are_tied(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=99)
    model = transformers.GPT2LMHeadModel(config).eval()
    osdp.save(model, None, tmp_path / "step")
    config.save_pretrained(tmp_path / "out")
    export(tmp_path / "step", tmp_path / "out", max_shard="20KB")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    tokens = torch.arange(12).reshape(1, 12)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_what_is_refused_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "step")

    def fails(*argv: str) -> str:
        assert main(["export", *argv]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    step, out = str(tmp_path / "step"), tmp_path / "out"
    assert "no such directory" in fails(str(tmp_path / "nothing"), str(out))
    assert "is a file" in fails(step, str(tmp_path / "step" / "manifest.json"))
    assert "is not a size" in fails(step, str(out), "--max-shard", "5")
    assert not out.exists()
    (file,) = (tmp_path / "step").glob("*.distcp")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    assert "is damaged" in fails(step, str(out))
    assert not out.exists()
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    assert main(["export", step, str(out)]) == 0
    capsys.readouterr()
    assert "already holds weights" in fails(step, str(out))


def test_a_file_that_cannot_be_written_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "step")

    def full(_: object, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(osdp.OSDPError, match=r"model\.safetensors.*No space"):
        export(tmp_path / "step", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
