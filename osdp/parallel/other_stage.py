"""What a stage has in place of the modules of other stages: Note [A model cut to one stage] in stage_module.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osdp.base.tensor_trees import map_tensors
from osdp.description.passages import PLAIN
from osdp.errors import ShardingError
from osdp.parallel.crossing import Crossing
from osdp.parallel.elsewhere import Elsewhere
from osdp.parallel.output_shapes import OutputShapes
from osdp.parallel.split_outputs import SplitOutputs


class Passing:
    """What passes through a stage in the forward that runs, and what was seen in the first step."""

    def __init__(
        self, stage: int, device: torch.device | None = None, shapes: OutputShapes | None = None
    ) -> None:
        self.stage = stage
        self._device, self._shapes = device, shapes
        self.received: Tensor | None = None
        self.captured: Tensor | None = None
        self.looks = True  # during the first step
        self.entered: Crossing | None = None
        self.left: Crossing | None = None
        self.in_schedule = True  # false where a script itself calls the stage's forward
        self.begun = stage == 0  # whether the stage's first module has been called
        self.with_gradients = False  # of the forward that runs
        # Of the micro-batch whose backward runs, what was received, or is passed on by the first stage:
        # Note [Recomputed stages].
        self.recomputes: Tensor | None = None
        self.like: Tensor | None = None  # of the same shape, without memory
        # Until the first step's end: where tensor parallelism divides modules, and Note [What depends on other stages].
        self.cuts: SplitOutputs | None = None
        self.elsewhere: Elsewhere | None = None
        self.whole: list[str] = []  # parameters that ranks of tensor parallelism hold alike
        self.buffers: dict[str, str] = {}  # of the whole model, as names_of_buffers has them

    @property
    def here(self) -> bool:
        """Whether forward is between the stage's first module and the next stage's."""
        return self.begun and self.captured is None

    def over(self) -> None:
        passed = self.captured if self.stage == 0 else self.received
        if passed is not None:
            self.like = passed.detach().new_zeros(()).expand(passed.shape)
        self.received = self.captured = None
        self.begun = self.stage == 0

    def nothing(self, name: str, module: str, args: Any, kwargs: Any) -> Any:
        """What the module `module` returns, from the module `name` elsewhere: Note [A model cut to one stage]."""
        like = self.captured if self.captured is not None else self.received
        like = self.recomputes if like is None else like
        if like is None:
            raise ShardingError(
                f"stage {self.stage} of the pipeline calls a module of a later stage before the one where that begins: "
                "the model's forward does not run its modules in the order that the plan has"
            )
        like = like.detach()
        wanted = self._shapes.of(module, args, kwargs) if self._shapes is not None else None
        wanted = like if wanted is None else wanted
        # Behind the stage nothing larger than what passes: logits take memory that no plan has counted.
        most = like.numel() if self.captured is not None else None

        def made(t: Tensor) -> Tensor:
            if most is not None and t.numel() > most:
                t = like
            value, dtype = (float("nan"), like.dtype) if t.is_floating_point() else (0, t.dtype)
            # In memory of its own, since forward may add to it in place.
            return self._of(name, torch.full(t.shape, value, dtype=dtype, device=like.device))

        return map_tensors(made, wanted)

    def no_values(self, name: str, parameter: Tensor) -> Tensor:
        """NaN in the parameter's shape, in the memory of one element."""
        value = float("nan") if parameter.is_floating_point() else 0
        device = self._device or parameter.device
        return self._of(
            name, torch.full((), value, dtype=parameter.dtype, device=device).expand(parameter.shape)
        )

    def _of(self, name: str, nothing: Tensor) -> Tensor:
        if self.elsewhere is not None:
            self.elsewhere.mark(nothing, name)
        return nothing


class ModuleOfOtherStage(nn.Module):
    """In place of a module of another stage, `name`. `begins`: the first of the next stage.

    It has the numbers and words among the module's attributes, and NaN in the shape of its parameters: forward may ask for
    `self.layers[0].size`, or for the dtype of a weight.
    """

    def __init__(self, passing: Passing, begins: bool, name: str, module: nn.Module) -> None:
        super().__init__()
        self._passing, self._begins, self._name = passing, begins, name
        shown = {k: v for k, v in vars(module).items() if k == "config" or _is_plain(v)}
        shown |= {k: passing.no_values(name, p) for k, p in module._parameters.items() if p is not None}
        for key, child in module._modules.items():
            if child is not None:
                shown[key] = ModuleOfOtherStage(passing, False, f"{name}.{key}", child)
        # Not registered: nothing of it is the stage's.
        self.__dict__ |= {k: v for k, v in shown.items() if k not in self.__dict__}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        passing = self._passing
        if self._begins and passing.captured is None and passing.recomputes is None:
            at = first_tensor(args, kwargs, f"stage {passing.stage + 1}")
            found = kwargs[at] if at in kwargs else args[int(at)]
            if not found.is_floating_point():
                raise ShardingError(
                    f"a {found.dtype} tensor would pass from stage {passing.stage} to the next"
                )
            passing.captured = found
            if passing.looks:
                passing.left = Crossing.of(args, kwargs, at)
        return passing.nothing(self._name, self._name, args, kwargs)

    def __getitem__(self, index: int) -> ModuleOfOtherStage:
        """Of an nn.Sequential, through which forward may also go."""
        if isinstance(found := vars(self).get(str(index)), ModuleOfOtherStage):
            return found
        raise IndexError(index)


def _is_plain(value: Any) -> bool:
    """Also the stride of a convolution."""
    return isinstance(value, PLAIN) or (type(value) is tuple and all(isinstance(v, PLAIN) for v in value))


class WhileHere:
    """Replaces the forward of a module without parameters, which may be called in several stages (a pooling, an activation):
    each computes what is its own, and what is made of the model's inputs alone."""

    def __init__(self, forward: Callable[..., Any], passing: Passing, name: str) -> None:
        self._forward, self._passing, self._name = forward, passing, name
        self._everywhere = False  # as the first step has seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        passing, elsewhere = self._passing, self._passing.elsewhere
        source = elsewhere.source((args, kwargs)) if elsewhere is not None else ""
        here = passing.here or passing.recomputes is not None
        self._everywhere |= elsewhere is not None and not source and not here
        if here or self._everywhere:
            return self._forward(*args, **kwargs)
        return self._passing.nothing(source or self._name, self._name, args, kwargs)


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any], stage: str) -> str:
    """The position, or the name, of the first tensor among arguments."""
    for name, value in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]:
        if isinstance(value, Tensor):
            return name
    raise ShardingError(f"the first module of {stage} of the pipeline is called without a tensor")
