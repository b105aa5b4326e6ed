"""Tensors in nested containers: the arguments of a model's forward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def map_tensors(function: Callable[[Any], Any], tree: Any, whole: tuple[type, ...] = ()) -> Any:
    """`tree` with `function` applied to its tensors, in lists, tuples, named tuples, mappings and
    dataclasses; and to objects of the classes `whole`, instead of to what is in them.

    A tensor that occurs twice is mapped once, so that shared arguments remain shared. Containers are copied,
    other values are passed on unchanged.
    """
    return _mapped(tree, function, (torch.Tensor, *whole), {})


def _mapped(node: Any, function: Callable[[Any], Any], leaves: tuple[type, ...], done: dict[int, Any]) -> Any:
    # Not a closure, which would refer to itself and hold the tensors until the garbage collector runs.
    if isinstance(node, leaves):
        if id(node) not in done:
            done[id(node)] = function(node)
        return done[id(node)]
    if isinstance(node, (tuple, list)):
        items = [_mapped(item, function, leaves, done) for item in node]
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if isinstance(node, dict) and type(node) is dict:
        return {key: _mapped(item, function, leaves, done) for key, item in node.items()}
    # First: transformers' outputs are dataclasses, too, whose items set their fields.
    if isinstance(node, Mapping) and any(True for _ in tensors_in(node)):
        changed: Any = copy.copy(node)
        for key, item in node.items():
            changed[key] = _mapped(item, function, leaves, done)
        return changed
    if is_dataclass(node) and not isinstance(node, type):
        twin: Any = copy.copy(node)
        for field in fields(node):
            object.__setattr__(twin, field.name, _mapped(getattr(node, field.name), function, leaves, done))
        return twin
    return node


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in `tree`, in order, each time they occur."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_in(item)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for field in fields(tree):
            yield from tensors_in(getattr(tree, field.name))


def written_to(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an ATen call writes to."""
    found: list[torch.Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.extend(tensors_in(args[index] if index < len(args) else kwargs.get(argument.name)))
    return found


def tensors_held(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors that live as long as `tree` does: those in it, and in the attributes of objects in it (a cache)."""
    seen: set[int] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, torch.Tensor):
            yield node
        elif (
            id(node) in seen
            or isinstance(node, (str, bytes, int, float, type, torch.nn.Module))
            or callable(node)
        ):
            continue
        elif isinstance(node, (list, tuple, set)):
            pending.extend(node)
        elif isinstance(node, Mapping):
            pending.extend(node.values())
        else:
            slots = [
                getattr(node, s, None) for kind in type(node).__mro__ for s in vars(kind).get("__slots__", ())
            ]
            pending.extend([*getattr(node, "__dict__", {}).values(), *slots])
        seen.add(id(node))


def dtype_name(tensor: torch.Tensor) -> str:
    """As descriptions and files have it: "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def version_of(tensor: torch.Tensor) -> int:
    """The version counter; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def batch_of(tree: Any) -> int:
    """Size of dimension 0 of the first tensor in `tree` that has one; 1 if there is none."""
    return next((t.shape[0] for t in tensors_in(tree) if t.dim() > 0), 1)


def with_batch(tree: Any, batch: int) -> Any:
    """`tree` with the tensors whose dimension 0 is the batch repeated (or cut) to `batch` samples; others
    unchanged.

    A tensor of a different length, such as a [tokens, tokens] mask, does not belong to the batch.
    """
    present = batch_of(tree)

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != present or present == 0:
            return tensor
        copies = -(-batch // present)
        repeated = tensor.detach().repeat(copies, *[1] * (tensor.dim() - 1))[:batch].contiguous()
        return repeated.requires_grad_(tensor.requires_grad)

    return map_tensors(resize, tree)
