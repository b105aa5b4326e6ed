"""Finds the modules that can be recomputed as a whole."""

from __future__ import annotations

from collections import Counter

from torch import nn

from osdp.base.names import is_in, joined


def is_callable(module: nn.Module) -> bool:
    """Whether the module has a forward of its own; nn.ModuleList and nn.ModuleDict, for example, do not."""
    return getattr(type(module).forward, "__name__", "") != "_forward_unimplemented" or "forward" in vars(
        module
    )


def recomputable_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks, in `named_modules()` order; none lies inside another.

    A block is an element of an nn.ModuleList or nn.Sequential that is worth recomputing as one: it has
    children, and its class (other than nn.Sequential) occurs twice or more in that container, as the layers
    of a transformer do, or it has at least two children with parameters and no block inside it.
    """

    def visit(module: nn.Module, name: str) -> list[str]:
        inside: list[str] = []
        container = isinstance(module, (nn.ModuleList, nn.Sequential))
        classes = Counter(type(child) for child in module.children())
        for key, child in module.named_children():
            path = joined(name, key)
            if path not in names:  # a shared module, visited before under its first name
                continue
            eligible = container and is_callable(child) and any(True for _ in child.children())
            repeats = classes[type(child)] >= 2 and type(child) is not nn.Sequential
            if eligible and repeats and any(True for _ in child.parameters()):
                inside.append(path)
                continue
            deeper = visit(child, path)
            with_parameters = sum(1 for c in child.children() if any(True for _ in c.parameters()))
            inside += deeper if deeper or not (eligible and with_parameters >= 2) else [path]
        return inside

    names = {name for name, _ in model.named_modules()}
    return visit(model, "")


def block_containing(blocks: list[str], name: str) -> str | None:
    """The block that is `name` or contains it."""
    return next((b for b in blocks if is_in(name, b)), None)
