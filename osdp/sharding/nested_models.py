"""Parts of a sharded model that are sharded models of their own: over other ranks than the model around them.

See Note [Parts over other ranks] in separate_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn
from torch import distributed as dist

from osdp import _C
from osdp.base.modules import unwrapped
from osdp.errors import ShardingError
from osdp.sharding.sharded_model import Sharded, runtime_of, sharded_models, sharded_of


def parts_of(model: nn.Module) -> list[tuple[str, nn.Module, Sharded]]:
    """The sharded models inside `model`, itself excluded, with their names in it."""
    whole = unwrapped(model)
    others = {id(m) for m, _ in sharded_models() if m is not whole}
    if not others or not _holds_any(whole, others):
        return []
    found = ((name, m, sharded_of(m)) for name, m in whole.named_modules() if m is not whole)
    # A wrapper is not the module that is sharded, but has its name.
    return [(name, m, s) for name, m, s in found if s is not None and unwrapped(m) is m]


def _holds_any(model: nn.Module, ids: set[int]) -> bool:
    """Whether any of these modules is inside `model`: a tenth of the time of named_modules(), as norms ask in every step."""
    seen, left = {id(model)}, [model]
    while left:
        for module in left.pop()._modules.values():
            if module is not None and id(module) not in seen:
                if id(module) in ids:
                    return True
                seen.add(id(module))
                left.append(module)
    return False


def with_parts(model: nn.Module) -> list[tuple[nn.Module, Sharded]]:
    """The sharded model and its parts. Raises ShardingError if the model is not sharded."""
    return [(unwrapped(model), runtime_of(model)), *((m, s) for _, m, s in parts_of(model))]


def ranks_of(sharded: Sharded) -> list[int]:
    """The global ranks over which a model is sharded."""
    return dist.get_process_group_ranks(sharded.group)


def counted_with(model: nn.Module) -> list[_C.Runtime]:
    """The parts' runtimes, whose gradients count in the model's norm. Raises ShardingError for a part with ranks
    that the model lacks: they would not take part in the sum."""
    whole = set(ranks_of(runtime_of(model)))
    parts = parts_of(model)
    for name, _, part in parts:
        if beyond := set(ranks_of(part)) - whole:
            raise ShardingError(
                f"{name!r} is sharded over ranks {ranks_of(part)}, and the model around it over {sorted(whole)}: rank "
                f"{min(beyond)}'s rows of its gradients would be missing from the norm. Clip each by itself"
            )
    return [part.runtime for _, _, part in parts]


def parts_of_wholes(tensors: Sequence[Tensor]) -> list[tuple[_C.Runtime, _C.Runtime]]:
    """The runtime of each part of a sharded model, with that of the outermost model around it, for the models that one of
    `tensors` (parameters, gradients) belongs to: another may be garbage that this rank alone has not collected yet."""
    models = sharded_models()
    if len(models) < 2:
        return []
    owners = {owner[0] for owner in _C.owners_of(tensors) if owner is not None}
    inner = {m for model, _ in models for _, m, _ in parts_of(model)}
    return [
        (part, sharded.runtime)
        for model, sharded in models
        if model not in inner and any(each.runtime in owners for _, each in with_parts(model))
        for part in counted_with(model)
    ]


def groups_with_parts(parameters: Iterable[Tensor]) -> list[dist.ProcessGroup]:
    """The process groups of the models that have parts, if any of `parameters` is in them: all of a model's ranks must
    decide alike, also about the gradients of its parts."""
    given = {id(p) for p in parameters}
    return [
        sharded.group
        for model, sharded in sharded_models()
        if parts_of(model) and any(id(p) in given for p in model.parameters())
    ]


def refuse_parts(model: nn.Module, what: str, instead: str) -> None:
    """Raises ShardingError if `model` has such parts: their values differ between groups of ranks, under one name."""
    for name, module, sharded in parts_of(model):
        raise ShardingError(
            f"{what} of a {type(unwrapped(model)).__name__} whose part {name!r}, a {type(module).__name__}, is sharded over "
            f"ranks {ranks_of(sharded)} alone: other ranks have another part of that name, and only one would be kept. "
            f"{instead}"
        )


def names_in_parts(model: nn.Module, prefix: str) -> tuple[str, ...]:
    """What the names of the parts' parameters and buffers start with."""
    parts = {part for _, part, _ in parts_of(model)}
    named = unwrapped(model).named_modules(remove_duplicate=False)
    return tuple(f"{prefix}{name}." for name, module in named if module in parts)


def modules_in_parts(model: nn.Module) -> Iterator[nn.Module]:
    for _, part, _ in parts_of(model):
        yield from part.modules()
