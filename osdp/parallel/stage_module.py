"""A model cut to one stage, whose own forward computes the stage.

Note [A model cut to one stage]
A model's forward is a script: it makes positions, masks and rotations of its inputs and calls its modules. So each stage
runs the whole forward, on the model's own inputs, with stand-ins for the modules of other stages: names, indices of blocks
and what forward computes itself stay. The first module of a stage (the entry) gets what the stage before sent instead of
its first tensor; that tensor is what the stage before captures at its stand-in for the entry. So what forward computes
between blocks belongs to the stage that ends there, and the cut is exact for this one tensor.
  A stand-in returns NaN in the shape of what passes (one element, expanded). Whatever else depends on another stage is NaN,
too, and cannot be wrong in silence. Other arguments of the entry are compared between the two stages in the first step,
with their values (`Crossing`): T5's first block makes a bias for all others, and a stage without it would get None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from osdp.errors import InvalidProblemError, ShardingError
from osdp.parallel.owners import Owners
from osdp.parallel.split_outputs import SplitOutputs


@dataclass(frozen=True)
class Crossing:
    """What the entry of a stage was called with, without the tensor that passes: equal on both sides of a cut."""

    arguments: tuple[tuple[str, str], ...]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any], passes: str) -> Crossing:
        named = {**{str(i): a for i, a in enumerate(args)}, **kwargs}
        return Crossing(tuple((name, _shown(value)) for name, value in named.items() if name != passes))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        total = value.detach().double().sum().item() if not value.is_complex() else 0.0
        return f"{value.dtype} {tuple(value.shape)} with sum {total!r}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_shown, value))})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return type(value).__name__


class Passing:
    """What passes through a stage in the forward that runs, and what was seen in the first step."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.received: Tensor | None = None
        self.captured: Tensor | None = None
        self.looks = True  # during the first step
        self.entered: Crossing | None = None
        self.left: Crossing | None = None
        # Where tensor parallelism divides modules, until the first step's end.
        self.cuts: SplitOutputs | None = None

    def nothing(self) -> Tensor:
        """Note [A model cut to one stage]."""
        like = self.captured if self.captured is not None else self.received
        if like is None:
            raise ShardingError(
                f"stage {self.stage} of the pipeline calls a module of a later stage before the one where that begins: "
                "the model's forward does not run its modules in the order that the plan has"
            )
        return like.detach().new_full((), float("nan")).expand(like.shape)


class StandIn(nn.Module):
    """In place of a module of another stage. `begins`: the first of the next stage."""

    def __init__(self, passing: Passing, begins: bool) -> None:
        super().__init__()
        self._passing, self._begins = passing, begins

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        passing = self._passing
        if self._begins and passing.captured is None:
            at = first_tensor(args, kwargs, f"stage {passing.stage + 1}")
            found = kwargs[at] if at in kwargs else args[int(at)]
            if not found.is_floating_point():
                raise ShardingError(
                    f"a {found.dtype} tensor would pass from stage {passing.stage} to the next"
                )
            passing.captured = found
            if passing.looks:
                passing.left = Crossing.of(args, kwargs, at)
        return passing.nothing()


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any], stage: str) -> str:
    """The position, or the name, of the first tensor among arguments."""
    for name, value in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]:
        if isinstance(value, Tensor):
            return name
    raise ShardingError(f"the first module of {stage} of the pipeline is called without a tensor")


class StageForward:
    """Replaces the forward of a model that is cut to a stage. The first stage is called with the model's inputs, the others
    with what passes; they get the inputs by keywords, positional ones by INPUT and their position."""

    def __init__(self, forward: Callable[..., Any], passing: Passing, first: bool, last: bool) -> None:
        self._forward, self._passing, self._first, self._last = forward, passing, first, last

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        passing = self._passing
        if not self._first:
            (passing.received,) = args
            given = [k for k in kwargs if k.startswith(INPUT)]
            args = tuple(kwargs.pop(f"{INPUT}{i}") for i in range(len(given)))
        try:
            with passing.cuts or nullcontext():
                output = self._forward(*args, **kwargs)
            if self._last:
                return only_tensor(output)
            if passing.captured is None:
                raise ShardingError(
                    f"stage {passing.stage} of the pipeline has run, but the model's forward did not call the module where "
                    "the next one begins"
                )
            return passing.captured
        finally:
            passing.received = passing.captured = None


INPUT = "osdp_input_"


def only_tensor(output: Any) -> Tensor:
    """A tensor, or the first floating-point one of a tuple or of an output of transformers (the logits)."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise ShardingError(f"the model's output, a {type(output).__name__}, has no floating-point tensor")


def cut_to_stage(model: nn.Module, owners: Owners, stage: int, entries: Sequence[str]) -> Passing:
    """Replace what belongs to other stages by stand-ins, in place. `entries`: the first module of each stage."""
    passing, last = Passing(stage), len(entries) - 1
    ends = entries[stage + 1] if stage < last else None
    if stage > 0:
        entry = model.get_submodule(entries[stage])
        entry.register_forward_pre_hook(_enter(passing), prepend=True, with_kwargs=True)
    _replace(model, "", owners, stage, ends, passing)
    model.forward = StageForward(model.forward, passing, stage == 0, stage == last)
    return passing


def _enter(passing: Passing) -> Callable[..., Any]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if passing.received is None:
            return None
        at = first_tensor(args, kwargs, f"stage {passing.stage}")
        if passing.looks:
            passing.entered = Crossing.of(args, kwargs, at)
        if at in kwargs:
            return args, {**kwargs, at: passing.received}
        return (*args[: int(at)], passing.received, *args[int(at) + 1 :]), kwargs

    return enter


def _replace(
    module: nn.Module, path: str, owners: Owners, stage: int, ends: str | None, passing: Passing
) -> None:
    for name, parameter in list(module._parameters.items()):
        if parameter is not None and owners.of_parameter(parameter) not in (stage, None):
            del module._parameters[name]
            setattr(module, name, torch.full((), float("nan"), dtype=parameter.dtype).expand(parameter.shape))
    for name, child in list(module._modules.items()):
        if child is None:
            continue
        at = f"{path}.{name}" if path else name
        stages = owners.of_module(child, at)
        if stages == {stage} or (not stages and at != ends):
            continue
        # A list of modules is not called: forward goes through it, whatever stages its modules are of.
        called = not isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if at == ends or (called and stage not in stages):
            module._modules[name] = StandIn(passing, at == ends)
        else:
            _replace(child, at, owners, stage, ends, passing)


def check_entries(model: nn.Module, owners: Owners, entries: Sequence[str]) -> None:
    """Raises InvalidProblemError for a cut where no module of one stage begins."""
    modules = dict(model.named_modules())
    for stage, entry in enumerate(entries[1:], start=1):
        found = modules.get(entry) if entry else None
        if found is None or owners.of_module(found, entry) - {stage}:
            raise InvalidProblemError(
                f"stage {stage} begins at {entry!r}, which is no module of it alone: a stage has to begin with a module "
                "that forward calls. Cut the model elsewhere (pipeline_parallel=), or make what it does there a module"
            )
