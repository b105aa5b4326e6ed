"""What a forward on tensors without data leaves in caches is taken out again: torch's caches, and those of the user's code.

Note [Caches that a trace fills]
A forward may keep what it computed for the next one: a mask in a dict of its module, a table in a class attribute,
positions under functools.lru_cache, a weight in torch.nn.utils.parametrize.cached(). A trace would leave tensors without
data there, and the next real forward would read them. Attributes of the model's modules are those of a copy, which is
dropped; places outside of it are remembered before a trace, and those in which it has put a fake tensor get back what
they had: globals, class attributes, functions' defaults, attributes and closures, and dicts, lists and sets in any of
them. functools' caches are emptied, since they cannot be read. Modules of Python, of torch and of what it imports are not
looked at. Real tensors that a trace leaves are kept: they are what the real forward would have left.
  torch's own caches are set aside, in a trace on real tensors too: what they hold belongs to a graph. That of
parametrize.cached() is keyed by ids of modules, which are given to others once the traced copy is dropped; that of
autocast by the parameter.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import parametrize

# With what torch and OSDP import (sympy: most of a process's modules), what draws, what transformers fetches models with
# and what runs tests, which keep no tensors of a forward.
_LIBRARIES = sys.stdlib_module_names | {
    *("torch", "torchgen", "functorch", "numpy", "osdp", "sympy", "mpmath", "rich"),
    *("networkx", "jinja2", "markupsafe"),
    *("typing_extensions", "filelock", "fsspec", "psutil", "tqdm", "yaml", "_distutils_hack", "setuptools"),
    *("matplotlib", "mpl_toolkits", "PIL", "pyparsing", "dateutil", "fontTools", "kiwisolver", "cycler"),
    *("huggingface_hub", "tokenizers", "safetensors", "regex", "packaging"),
    *("httpx2", "httpcore2", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "truststore"),
    *("pytest", "_pytest", "pluggy", "pygments", "iniconfig", "xdist", "execnet"),
    *("hypothesis", "sortedcontainers"),
    *("attr", "attrs", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "platformdirs"),
}
_CACHE: type = functools._lru_cache_wrapper
# Most of what is there, passed over before anything else is asked: this runs for every name of every module.
_PLAIN = {
    *(str, int, float, bool, type(None), tuple, frozenset, property, ModuleType, ModuleSpec),
    *(GetSetDescriptorType, MemberDescriptorType, BuiltinFunctionType, WrapperDescriptorType),
}
_IMPORTED = (ModuleType, FunctionType, type)


@contextmanager
def caches_restored() -> Iterator[Places]:
    """Context around a trace: afterwards no cache outside of the traced model holds a fake tensor."""
    places = Places()
    cached, parametrize._cache = parametrize._cache, {}
    torch.clear_autocast_cache()
    try:
        yield places
    finally:
        parametrize._cache = cached
        torch.clear_autocast_cache()
        places.restore()


class Places:
    """Where the code of this process, other than Python's and torch's, can keep something."""

    def __init__(self) -> None:
        self._dicts: list[tuple[Any, dict[Any, Any]]] = []  # a module, class or function, or a dict
        self._lists: list[tuple[Any, list[Any]]] = []  # or sets
        self._bare: list[FunctionType] = []  # functions without attributes
        self._cells: list[tuple[CellType, Any]] = []
        self._caches: list[tuple[Any, int]] = []  # of functools, and how many results they hold
        self._seen: set[int] = set()
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in _LIBRARIES and isinstance(module, ModuleType):
                self._remember_attributes(module, name)

    def _remember_attributes(self, owner: Any, module: str) -> None:
        attributes = dict(vars(owner))
        self._dicts.append((owner, attributes))
        self._remember_all(attributes.values(), module)

    def _remember_all(self, values: Iterable[Any], module: str) -> None:
        for value in values:
            if type(value) not in _PLAIN:
                self._remember(value, module)

    def _remember(self, value: Any, module: str) -> None:
        kind = type(value)
        if (kind is FunctionType and value.__module__ != module) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if kind is FunctionType:
            self._remember_function(value, module)
        elif kind is dict:
            self._dicts.append((value, dict(value)))
        elif kind in (list, set):
            self._lists.append((value, list(value)))
        elif kind is _CACHE:
            self._caches.append((value, value.cache_info().currsize))
        elif isinstance(value, type) and value.__module__ == module:
            self._remember_attributes(value, module)
        elif kind in (staticmethod, classmethod):
            self._remember(value.__func__, module)

    def _remember_function(self, function: FunctionType, module: str) -> None:
        if function.__dict__:
            self._remember_attributes(function, module)
        else:
            self._bare.append(function)
        self._remember_all(function.__defaults__ or (), module)
        self._remember_all((function.__kwdefaults__ or {}).values(), module)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # empty
                continue
            self._cells.append((cell, content))
            self._remember_all((content,), module)

    def _all_dicts(self) -> list[tuple[Any, dict[Any, Any]]]:
        return [*self._dicts, *((function, {}) for function in self._bare if function.__dict__)]

    def restore(self) -> None:
        """Put back what holds a fake tensor."""
        self._put_back(fakes_only=True)

    def rewind(self) -> None:
        """Put everything back but what was imported, for another trace from the same state."""
        self._put_back(fakes_only=False)

    def _put_back(self, fakes_only: bool) -> None:
        def wrong(value: Any) -> bool:
            return _holds_fake(value) if fakes_only else not isinstance(value, _IMPORTED)

        for place, was in self._all_dicts():
            now = place if isinstance(place, dict) else vars(place)
            if _same(now.values(), was.values()):
                continue
            for key in [k for k, v in list(now.items()) if v is not was.get(k, now) and wrong(v)]:
                _put(place, key, was)
            for key in [k for k in was if k not in now and not fakes_only]:
                _put(place, key, was)
        for items, before in self._lists:
            if not _same(items, before) and wrong(items):
                items.clear()
                (items.extend if isinstance(items, list) else items.update)(before)
        for cell, content in self._cells:
            if cell.cell_contents is not content and (not fakes_only or _holds_fake(cell.cell_contents)):
                cell.cell_contents = content
        for cache, size in self._caches:
            if cache.cache_info().currsize != size:
                cache.cache_clear()


def _same(now: Collection[Any], was: Collection[Any]) -> bool:
    return len(now) == len(was) and all(map(operator.is_, now, was))


def _put(place: Any, key: Any, was: dict[Any, Any]) -> None:
    if isinstance(place, dict):
        if key in was:
            place[key] = was[key]
        else:
            del place[key]
    elif key in was:
        setattr(place, key, was[key])
    else:
        delattr(place, key)


def _holds_fake(value: Any, depth: int = 4) -> bool:
    """Whether a fake tensor is found in plain containers and attributes of objects. No code of the user's runs."""
    if isinstance(value, FakeTensor):
        return True
    if depth == 0 or isinstance(value, (type, ModuleType, FunctionType, torch.Tensor)):
        return False
    if isinstance(value, dict):
        inside = list(dict.values(value))
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = list(value)
    else:
        inside = list(getattr(value, "__dict__", {}).values())
    return any(_holds_fake(item, depth - 1) for item in inside)
