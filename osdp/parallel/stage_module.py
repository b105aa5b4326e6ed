"""A model cut to one stage, whose own forward computes the stage.

Note [A model cut to one stage]
A model's forward is a script: it makes positions, masks and rotations of its inputs and calls its modules. So each stage
runs the whole forward, on the model's own inputs, with stand-ins for the modules of other stages: names, indices of blocks
and what forward computes itself stay. The first module of a stage (the entry) gets what the stage before sent instead of
its first tensor; that tensor is what the stage before captures at its stand-in for the entry. So what forward computes
between blocks belongs to the stage that ends there, and the cut is exact for this one tensor.
  Modules that hold several blocks (a decoder, as a part of a model with an encoder) are run in all stages, as the model is:
what they return only they can make.
  A stand-in returns NaN in the shape of what its module returns (Note [Shapes of other stages] in output_shapes.py), and
what depends on it is found in the first step (Note [What depends on other stages] in elsewhere.py). So is a parameter of
another stage of a module that both have: NaN. Other arguments of the entry are compared between the two stages in the first
step, with their values (`Crossing`): T5's first block makes a bias for all others, and a stage without it would get None.

Note [Recomputed stages]
A script may have blocks recomputed in backward (torch.utils.checkpoint). Then parts of forward run again, from what they
were called with: the entry with NaN, in place of which it gets again what its micro-batch received. All else computes as
it did, modules without parameters, too, as nobody knows where in forward they are; those of other stages return NaN again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from osdp.base.names import joined
from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError, OSDPError, ShardingError
from osdp.parallel.crossing import Crossing
from osdp.parallel.elsewhere import Elsewhere
from osdp.parallel.other_stage import ModuleOfOtherStage, Passing, WhileHere, first_tensor
from osdp.parallel.output_shapes import OutputShapes
from osdp.parallel.owners import Owners
from osdp.planning.degrees.chain import ONE_TENSOR, why_no_beginning


class StageForward:
    """Replaces the forward of a model that is cut to a stage. The first stage is called with the model's inputs, the others
    with what passes; they get the inputs by keywords, positional ones by INPUT and their position."""

    def __init__(self, forward: Callable[..., Any], passing: Passing, first: bool, last: bool) -> None:
        self._forward, self._passing, self._first, self._last = forward, passing, first, last

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        passing = self._passing
        if not passing.in_schedule:
            raise ShardingError(
                f"the model is stage {passing.stage} of a pipeline, whose forward its schedule calls on all ranks: "
                "pipeline.step trains, pipeline.evaluate computes losses and outputs without gradients"
            )
        passing.with_gradients = torch.is_grad_enabled()
        if not self._first:
            (passing.received,) = args
            given = [k for k in kwargs if k.startswith(INPUT)]
            args = tuple(kwargs.pop(f"{INPUT}{i}") for i in range(len(given)))
        try:
            with passing.cuts or nullcontext(), passing.elsewhere or nullcontext():
                output = self._computed(*args, **kwargs)
            if self._last:
                output = only_tensor(output)
                if passing.cuts is not None:
                    passing.cuts.left_by(output)
                if passing.elsewhere is not None:
                    passing.elsewhere.look(output)
                return output
            if passing.captured is None:
                raise ShardingError(
                    f"stage {passing.stage} of the pipeline has run, but the model's forward did not call the module where "
                    "the next one begins"
                )
            if passing.elsewhere is not None:
                passing.elsewhere.look(passing.captured)
            return passing.captured.contiguous()  # patches that were transposed: transports send nothing else
        finally:
            passing.over()

    def _computed(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._forward(*args, **kwargs)
        except OSDPError:
            raise
        except Exception:
            # What comes behind the stage is not its own, and stand-ins return nothing larger than what passes (a head's
            # output, to which forward adds a bias). Where it is wrong for another reason, it is so in its own stage.
            if self._last or self._passing.captured is None:
                raise
            _log.debug("what forward does behind stage %s failed", self._passing.stage, exc_info=True)


_log = logging.getLogger(__name__)
INPUT = "osdp_input_"
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def only_tensor(output: Any) -> Tensor:
    """A tensor, or the first floating-point one of a tuple or of an output of transformers: the logits, and not what is one
    number (a loss of its routers, which comes first) where there are others."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    found = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    if found:
        return next((value for value in found if value.dim()), found[0])
    raise ShardingError(f"the model's output, a {type(output).__name__}, has no floating-point tensor")


def cut_to_stage(
    model: nn.Module,
    owners: Owners,
    stage: int,
    entries: Sequence[str],
    device: torch.device | None = None,
    whole_shapes: bool = True,
) -> Passing:
    """Replace what belongs to other stages by stand-ins, in place. `entries`: the first module of each stage. `device`:
    where it will run. `whole_shapes`: modules return what they do in one process, no parts of it (sequence parallelism)."""
    last = len(entries) - 1
    passing = Passing(stage, device, OutputShapes(model) if last and whole_shapes else None)
    ends = entries[stage + 1] if stage < last else None
    if stage > 0:
        entry = model.get_submodule(entries[stage])
        entry.register_forward_pre_hook(_enter(passing), prepend=True, with_kwargs=True)
    if last:
        passing.elsewhere = Elsewhere()
    _replace(model, "", owners, stage, (entries[stage], ends), passing)
    model.forward = StageForward(model.forward, passing, stage == 0, stage == last)
    return passing


def _enter(passing: Passing) -> Callable[..., Any]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        what = passing.received if passing.recomputes is None else passing.recomputes
        if what is None or passing.begun:  # what is called again gets what forward gives it
            return None
        at = first_tensor(args, kwargs, f"stage {passing.stage}")
        if passing.recomputes is not None:
            if not (kwargs[at] if at in kwargs else args[int(at)]).isnan().all():
                return None  # its second call, after a first one that is not recomputed
        else:
            if passing.with_gradients and what.requires_grad and not torch.is_grad_enabled():
                raise ShardingError(
                    f"stage {passing.stage} of the pipeline begins with a module that forward calls without gradients "
                    "(torch.no_grad, or a checkpoint with use_reentrant=True), so the stages before it would get none: "
                    "use_reentrant=False"
                )
            passing.begun = True
            if passing.looks:
                passing.entered = Crossing.of(args, kwargs, at)
        received = _Received.apply(what)  # type: ignore[no-untyped-call]
        if at in kwargs:
            return args, {**kwargs, at: received}
        return (*args[: int(at)], received, *args[int(at) + 1 :]), kwargs

    disable: Any = torch.compiler.disable  # it runs within calls that may be compiled
    return disable(enter)  # type: ignore[no-any-return]


class _Received(torch.autograd.Function):
    """What was received, as a tensor of its own in the same memory: the stage's first module may write to it (a ReLU in
    place), and its gradient is contiguous, which alone can be sent."""

    @staticmethod
    def forward(ctx: Any, received: Tensor) -> Tensor:
        own = received.new_empty(0)
        own.set_(received)  # type: ignore[call-overload]
        return own

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def _replace(
    module: nn.Module,
    path: str,
    owners: Owners,
    stage: int,
    entries: tuple[str, str | None],
    passing: Passing,
) -> None:
    """`entries`: the first modules of this stage and of the next."""
    begins, ends = entries
    for name, parameter in list(module._parameters.items()):
        if parameter is not None and owners.of_parameter(parameter) not in (stage, None):
            del module._parameters[name]
            setattr(module, name, passing.no_values(joined(path, name), parameter))
    for name, child in list(module._modules.items()):
        if child is None:
            continue
        at = joined(path, name)
        stages = owners.of_module(child, at)
        # A list is not called: forward goes through it, whatever stages its modules or parameters are of.
        called = not isinstance(child, _LISTS)
        if not stages and at != ends:
            continue
        if called and at != ends and not any(True for _ in (*child.parameters(), *child.buffers())):
            child.forward = WhileHere(child.forward, passing, at)
        elif stages == {stage} and not begins.startswith(f"{at}."):
            if called and passing.elsewhere is not None:
                passing.elsewhere.has(child)
        elif at == ends or (called and stage not in stages and not _is_run(owners, at, ends)):
            module._modules[name] = ModuleOfOtherStage(passing, at == ends, at, child)
        else:
            _replace(child, at, owners, stage, entries, passing)


def _is_run(owners: Owners, at: str, ends: str | None) -> bool:
    """Whether the stage runs a module of which it has nothing."""
    return owners.runs(at) or f"{ends}".startswith(f"{at}.")


def check_entries(
    model: nn.Module, owners: Owners, entries: Sequence[str], description: ModelDescription
) -> None:
    """Raises InvalidProblemError for a cut where no module of one stage begins. `description`: of the whole model."""
    modules = dict(model.named_modules())
    for stage, entry in enumerate(entries[1:], start=1):
        found = modules.get(entry) if entry else None
        if found is None or owners.of_module(found, entry) - {stage}:
            raise InvalidProblemError(
                f"stage {stage} begins at {entry!r}, which is no module of it alone: a stage has to begin with a module "
                "that forward calls. Cut the model elsewhere (pipeline_parallel=), or make what it does there a module"
            )
        if why := why_no_beginning(description, entry):
            raise InvalidProblemError(f"the plan has {len(entries)} stages, but {why}. {ONE_TENSOR}")
