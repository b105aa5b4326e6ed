"""What is public: osdp.__all__, each name with one home, and every dotted name that docs and examples give."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import osdp

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]
# What stands for something else: files of a user, values of a timeline, the script itself.
OTHERS = {"osdp.json", "osdp.md", "osdp.git"}


def resolved(dotted: str) -> object:
    """What the name stands for, as `import osdp` and attributes give it, or the module of that name."""
    found: object = osdp
    path = "osdp"
    for part in dotted.split(".")[1:]:
        path += f".{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(path)
    return found


def named_in(page: Path) -> set[str]:
    text = page.read_text()
    names = set(re.findall(r"(?<![\w./-])osdp(?:\.[A-Za-z_]\w*)+", text)) - OTHERS
    for module, imported in re.findall(r"from (osdp[\w.]*) import ([\w, ]+)", text):
        names |= {f"{module}.{name.split(' as ')[0].strip()}" for name in imported.split(",")}
    return names


def defined(integration: str) -> set[str]:
    """The classes of a module that only who has its framework can import."""
    source = ROOT / f"{integration.replace('.', '/')}.py"
    return {node.name for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_name_is_there(page: Path) -> None:
    for name in named_in(page):
        if name.startswith("osdp.integrations."):
            integration, *classes = re.findall(r"^osdp\.integrations\.[a-z_]+|(?<=\.)[A-Z]\w*", name)
            assert set(classes) <= defined(integration), name
        else:
            resolved(name)


def test_the_pages_name_something() -> None:
    assert len(set().union(*map(named_in, PAGES))) > 30
    with pytest.raises(ImportError):
        resolved("osdp.plan.no_such_name")


@pytest.mark.parametrize("name", osdp.__all__)
def test_public_names_have_one_home(name: str) -> None:
    found = getattr(osdp, name)
    assert (
        found.__module__.startswith("osdp.")
        and getattr(importlib.import_module(found.__module__), name) is found
    )


def test_type_checkers_are_asked_about_every_public_name() -> None:
    script = (ROOT / "tests" / "typing" / "users_script.py").read_text()
    assert set(osdp.__all__) <= set(re.findall(r"\bosdp\.(\w+)", script))


def methods(owner: type) -> dict[str, Callable[..., Any]]:
    """The public methods and properties that the class itself defines."""
    plain = {
        name: getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        for name, value in vars(owner).items()
        if not name.startswith("_")
    }
    return {name: value for name, value in plain.items() if inspect.isfunction(value)}


def raised_in(function: Callable[..., Any]) -> set[str]:
    """The osdp errors that its own body raises."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = {node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc}
    names = {ast.unparse(call.func) for call in calls if isinstance(call, ast.Call)}
    return names & set(osdp.__all__)


def undocumented(owner: Any) -> list[str]:
    """What the docstrings of a public function, or of a class and its methods, leave out."""
    written = owner.__doc__ or ""
    an_error = inspect.isclass(owner) and issubclass(owner, Exception)
    missing = [f"{owner.__name__}: an example"] if ">>>" not in written and not an_error else []
    members = methods(owner) if inspect.isclass(owner) else {owner.__name__: owner}
    for name, function in members.items():
        told = function.__doc__ or ""
        missing += [] if told.strip() else [f"{name}: a docstring"]
        missing += [f"{name}: {error}" for error in raised_in(function) if error not in told]
    return missing


@pytest.mark.parametrize("name", osdp.__all__)
def test_public_docstrings_have_errors_and_an_example(name: str) -> None:
    assert undocumented(getattr(osdp, name)) == []


@pytest.mark.parametrize(
    "name",
    [
        "osdp.errors.OSDPError",
        "osdp.plan.group_units",
        "osdp.plan.Choice",
        "osdp.hardware.Hardware",
        "osdp.description.ModelDescription",
        "osdp.fsdp.FullyShardedDataParallel",
        "osdp.checkpoint.save",
    ],
)
def test_packages_show_what_they_are_for(name: str) -> None:
    resolved(name)


def test_the_version_is_that_of_the_package() -> None:
    assert osdp.__version__ == importlib.metadata.version("osdp")


def test_importing_osdp_loads_neither_torch_nor_the_runtime() -> None:
    script = "import sys, osdp; print([m for m in ('torch', 'numpy', 'rich', 'osdp._C', 'osdp.plan') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(shown) == []


def test_searching_a_description_loads_no_torch() -> None:
    script = "import sys, osdp.planning.search, osdp.show.terminal; print('torch' in sys.modules, 'osdp._C' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "False"]
