"""What a package says of itself, and which torch a build takes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "wheel" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(folder: Path, version: str) -> Path:
    """A folder of packages with that torch."""
    info = folder / f"torch-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return folder


@pytest.mark.parametrize(
    ("installed", "taken", "told"),
    [
        ("2.12.1+cu130", "torch==2.12.*", "torch 2.12.1+cu130 is installed: osdp is built for it"),
        ("2.9.0", "torch>=2.11,<2.16", "which osdp does not support"),
        (None, "torch>=2.11,<2.16", "no torch is installed"),
    ],
)
def test_an_isolated_build_takes_the_torch_that_is_installed_and_says_so(
    installed: str | None,
    taken: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = environment(tmp_path, installed) if installed else tmp_path
    monkeypatch.setattr(sysconfig, "get_path", lambda *_, **__: str(folder))
    assert tool("torch_requirement").to_build_with() == taken
    assert told in capsys.readouterr().out


def test_the_torch_of_this_environment_is_found() -> None:
    own = ".".join(torch.__version__.split(".")[:2])
    requirement = tool("torch_requirement")
    assert requirement.to_build_with() == f"torch=={own}.*"
    assert requirement.dynamic_metadata({"others": ["rich"]}, {})["dependencies"] == [
        f"torch=={own}.*",
        "rich",
    ]


def test_a_source_distribution_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("torch" in requirement for requirement in PROJECT["build-system"]["requires"])
    monkeypatch.setitem(sys.modules, "torch", None)  # its import fails
    requirement = tool("torch_requirement")
    assert requirement.dynamic_metadata({"others": []}, {})["dependencies"] == [requirement.SUPPORTED]


def test_the_readme_of_an_index_has_no_links_into_the_clone() -> None:
    text = tool("index_readme").without_links((ROOT / "README.md").read_text())
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == [] and "tutorial" in text and "![" not in text


def test_the_package_names_its_versions_of_python_and_its_addresses() -> None:
    project = PROJECT["project"]
    least = int(project["requires-python"].removeprefix(">=3."))
    named = [int(c.rpartition(".")[2]) for c in project["classifiers"] if re.search(r"3\.\d+$", c)]
    assert named == list(range(least, least + len(named))) and len(named) >= 4
    assert all(url.startswith("https://") for url in project["urls"].values()) and project["urls"]


def test_a_wheel_without_its_extension_or_with_tests_is_refused(tmp_path: Path) -> None:
    contents = tool("contents")
    names = [str(f.relative_to(ROOT)) for f in (ROOT / "osdp").rglob("*.py*") if f.suffix in (".py", ".pyi")]
    names += [str(f.relative_to(ROOT)) for f in (ROOT / "osdp").rglob("*.json")] + ["osdp/py.typed"]
    whole = [*names, "osdp/_C.x.so", "osdp/_search.x.so", "osdp-1.dist-info/licenses/LICENSE"]

    def found(files: list[str]) -> list[str]:
        with zipfile.ZipFile(tmp_path / "osdp.whl", "w") as archive:
            for name in files:
                archive.writestr(name, "")
            archive.writestr("osdp-1.dist-info/METADATA", "Requires-Dist: torch==2.13.*\n\ntext\n")
        return list(contents.problems(tmp_path / "osdp.whl", ROOT))

    assert found(whole) == []
    assert found([n for n in whole if "_C.x" not in n]) == ["there is not one osdp/_C.*.so"]
    assert found([*whole, "tests/test_x.py"]) == ["tests/test_x.py does not belong there"]
    assert found([n for n in whole if n != "osdp/py.typed"]) == ["osdp/py.typed is missing"]


def test_installing_is_said_before_anything_is_run() -> None:
    for name in ("README.md", "docs/first-hour.md", "docs/tutorial.md", "docs/recipes.md"):
        page = (ROOT / name).read_text()
        first = min(page.index(what) for what in ("torchrun", "make demo") if what in page)
        assert "pip install --no-build-isolation ." in page[:first] and "pip install ." in page[:first], name


def test_the_demo_installs_and_builds_only_what_it_uses() -> None:
    """In a clone in which nothing was made yet: no packages of tests and linters, no C++ tests."""
    commands = {}
    for target in ("demo", "build"):
        commands[target] = subprocess.run(
            ["make", "--dry-run", "--assume-new=pyproject.toml", target],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
    assert "examples/demo.sh" in commands["demo"] and "building the extension" in commands["demo"]
    assert "what the tests and linters need" not in commands["demo"] and "OSDP_TESTS" not in commands["demo"]
    assert "what the tests and linters need" in commands["build"]
