"""Pipeline: a model that `osdp.parallelize` has divided, as one rank has it."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from osdp.base.tensor_trees import batch_of, tensors_in
from osdp.errors import InvalidProblemError, ShardingError
from osdp.parallel.ending import end_of_pipeline
from osdp.parallel.first_step import Seen, what_is_wrong
from osdp.parallel.mean_loss import NOTHING, MeanLoss
from osdp.parallel.other_stage import Passing
from osdp.parallel.samples import Samples, samples_apart
from osdp.parallel.shared_buffers import values_of_buffers
from osdp.parallel.stage_module import INPUT
from osdp.plan.parallel_plan import ParallelPlan
from osdp.ranks.rank_group import Together
from osdp.sharding.whole_parameters import gradients_apart, partial_gradient


class Pipeline:
    """This rank's stage, and torch's schedule. All methods are collective over all ranks of the plan.

    >>> pipeline = osdp.parallelize(model, plan, loss_fn)
    >>> optimizer = torch.optim.AdamW(pipeline.parameters())
    >>> loss = pipeline.step(tokens, target=targets)
    """

    def __init__(
        self,
        plan: ParallelPlan,
        stage: int,
        module: nn.Module,
        mesh: DeviceMesh,
        schedule: Any,
        passing: Passing,
        loss: MeanLoss,
    ) -> None:
        self.plan, self.stage = plan, stage  # `stage`: the number of this rank's
        self.module = module  # the model, cut to the stage and sharded
        self.mesh = mesh  # dimensions "pp", "dp", "tp"
        self.schedule = schedule  # torch's: its `step` is what `step` here calls
        self._passing, self._loss = passing, loss
        self._shapes: list[torch.Size] | None = None  # of the inputs of the step before
        self._steps = 0

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of this rank's stage, for an optimizer."""
        return self.module.parameters()

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == len(self.plan.stages) - 1

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> Tensor:
        """Forward and backward of one step: gradients are those of the mean loss over the whole batch, added to what is in
        `.grad`. Returns this loss, on every rank.

        `args` and `kwargs`: the model's inputs, of this rank's replica (`micro_batches * micro_batch_size` samples,
        dimension 0), equal on its ranks; each stage computes masks and positions from them. `target`: what the loss gets
        beside the model's output, a tensor or a tree of tensors (a tuple of labels and weights).

        Raises InvalidProblemError for another number of samples, ShardingError if ranks of a replica were given different
        ones (steps 1, 2, 4, 8, ... compare them), and in the first step, on all ranks of the pipeline,
        ShardingError if forward passes more between stages than one tensor, cuts the output of a column-wise linear in
        parts, views it in as many groups as one process, computes over all of it or returns it, draws other random numbers
        on ranks of one tensor-parallel group (dropout), or uses what all of them hold whole with a part of the sequence.
        RankError, naming stages, where another rank has ended: Note [The end of a pipeline] in osdp/parallel/ending.py.
        """
        samples = self.plan.micro_batches * self.plan.micro_batch_size
        self._check_samples(samples, (args, target, kwargs))
        if (self._steps + 1) & self._steps == 0:  # steps 1, 2, 4, 8, ...
            self._look_at_samples((args, kwargs), target)
        random = self._random_state()
        # Outputs of a whole step (logits) would be held until its end, to be returned.
        step = functools.partial(self.schedule.step, return_outputs=False)
        losses, _ = self._run(step, samples, args, target, kwargs)
        self._steps += 1
        if self._passing.looks:
            partial = self._partial_gradient() if self.plan.tensor_parallel > 1 else ""
            wrong = self._wrong_in_first_step(self._drew_apart(random), partial, self._ungathered(losses))
            self._looked()
            self._raise_everywhere(wrong)
        elif self._passing.whole and self._steps & (self._steps - 1) == 0:
            apart = self._partial_gradient()
            self._raise_everywhere(partial_gradient(apart) if apart else "")
        return self._mean(losses, samples)

    def evaluate(self, *args: Any, target: Any = None, **kwargs: Any) -> tuple[Tensor | None, Any]:
        """Forward without gradients, of any number of samples that micro-batches divide; replicas may have other numbers.
        Returns the mean loss over all samples, on every rank (None without a target), and the model's output for this
        replica's, on ranks of the last stage (None on others).

        Modules are in the mode that the script has set: `pipeline.module.eval()`. Raises InvalidProblemError for a number
        of samples that is not divided, and what `step` raises.

        >>> pipeline.module.eval()
        >>> loss, logits = pipeline.evaluate(tokens, target=targets)
        """
        samples, parts = batch_of((args, kwargs)), self.plan.micro_batches
        if samples % parts:
            raise InvalidProblemError(
                f"{samples} samples are not divided by the plan's {parts} micro-batches: pad them to a multiple"
            )
        self._check_samples(samples, (args, target, kwargs))
        with torch.no_grad():
            given = NOTHING if target is None else target
            losses, output = self._run(self.schedule.eval, samples, args, given, kwargs)
        if self._passing.looks:  # not yet over: buffers and gradients are a step's
            self._raise_everywhere(self._wrong_in_first_step(False, "", self._ungathered(losses)))
        return (None if target is None else self._mean(losses, samples)), output

    def _run(
        self, run: Callable[..., Any], samples: int, args: Any, target: Any, kwargs: dict[str, Any]
    ) -> tuple[list[Tensor], Any]:
        """Losses of micro-batches and the output, on the last stage."""
        self._look_at_shapes([v.shape for v in (*args, *kwargs.values()) if isinstance(v, Tensor)])
        if not self.first:
            kwargs |= {f"{INPUT}{i}": value for i, value in enumerate(args)}
            args = ()
        losses: list[Tensor] = []
        try:
            with self._loss.of(target, samples) as positions:
                output = run(*args, target=positions if self.last else None, losses=losses, **kwargs)
        except Exception as error:
            ending = end_of_pipeline(self.plan, self.stage, self.mesh, error)
            if ending is error:
                raise
            raise ending from error
        return losses, output

    def _mean(self, losses: list[Tensor], samples: int) -> Tensor:
        """The mean over all replicas' samples. Collective over all ranks."""
        # In float32 at least: a mean of losses in bf16 would be rounded to its 8 bits.
        value = torch.zeros(2, dtype=torch.float64, device=_device(self.module))
        if losses:
            here = torch.stack([_plain(loss).float() for loss in losses]).mean().double()
            value = torch.stack((here * samples, torch.full_like(here, samples)))
        dist.all_reduce(value)
        return (value[0] / value[1]).float()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Scale all gradients so that their norm, over all stages, is `max_norm` at most. Returns the norm.

        `torch.nn.utils.clip_grad_norm_(pipeline.parameters(), ...)` gives the same. With `error_if_nonfinite`,
        GradientError on every rank if the norm is infinite or NaN.
        """
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), max_norm, norm_type, error_if_nonfinite)
        return _plain(norm)

    def _check_samples(self, samples: int, values: Any) -> None:
        for value in tensors_in(values):
            if value.dim() and value.shape[0] != samples:
                if samples != self.plan.micro_batches * self.plan.micro_batch_size:
                    raise InvalidProblemError(
                        f"a tensor with {value.shape[0]} samples was passed beside one with {samples}"
                    )
                raise InvalidProblemError(
                    f"the plan has {samples} samples a step for each replica ({self.plan.micro_batches} micro-batches of "
                    f"{self.plan.micro_batch_size}), but a tensor with {value.shape[0]} was passed"
                )

    def _look_at_samples(self, inputs: Any, target: Any) -> None:
        """Raise ShardingError on all ranks if those of a replica have other samples. Collective over all ranks."""
        mine = Samples.of(self.mesh["dp"].get_local_rank(), self.stage, inputs, target, self.last)
        if apart := samples_apart(Together(None, "a pipeline's step").all(mine)):
            raise ShardingError(apart)
        if not any(True for _ in tensors_in(inputs)):
            raise InvalidProblemError(
                "pipeline.step was given no tensor: on all ranks it takes the model's inputs, and target="
            )

    def _look_at_shapes(self, shapes: list[torch.Size]) -> None:
        """Where sequences have another length, have torch's stages learn anew what passes: they would receive it into memory
        of the former shape, with what was there before."""
        if self._shapes is not None and shapes != self._shapes:
            for name in ("_stage_initialized", "_stage_forward_initialized", "_stage_backward_initialized"):
                if hasattr(self.schedule, name):
                    setattr(self.schedule, name, False)
        self._shapes = shapes

    def _random_state(self) -> str:
        """A digest of the device's random generator, in the first step under tensor parallelism."""
        if not self._passing.looks or self.plan.tensor_parallel == 1:
            return ""
        device = _device(self.module)
        state = (
            torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
        )
        return hashlib.sha256(bytes(state.tolist())).hexdigest()

    def _drew_apart(self, before: str) -> bool:
        """Whether the forward drew random numbers (dropout), and others on other ranks of tensor parallelism. Collective."""
        if not before:
            return False
        told: list[str] = [""] * self.plan.tensor_parallel
        drew = before != self._random_state()
        dist.all_gather_object(told, before if drew else "", group=self.mesh["tp"].get_group())
        return len(set(told)) > 1

    def _ungathered(self, losses: list[Tensor]) -> str:
        """What the model returns, in words, if ranks of tensor parallelism have other losses of it, or "". Collective."""
        if self.plan.tensor_parallel == 1:
            return ""
        told: list[list[float]] = [[]] * self.plan.tensor_parallel
        mine = [float(_plain(loss)) for loss in losses]
        dist.all_gather_object(told, mine, group=self.mesh["tp"].get_group())
        if all(math.isclose(a, b, rel_tol=1e-4) for other in told for a, b in zip(mine, other, strict=True)):
            return ""
        cuts = self._passing.cuts
        return f"the output of {cuts.leaves!r}" if cuts is not None and cuts.leaves else "something"

    def _raise_everywhere(self, wrong: str) -> None:
        """Replicas see other parts of gradients. Collective over all ranks."""
        told: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(told, wrong)
        if found := next(filter(None, told), ""):
            raise ShardingError(found)

    def _partial_gradient(self) -> str:
        """A parameter that ranks of tensor parallelism hold alike, and whose gradient they do not, or "". Collective: ranks
        of several stages and replicas hold others, and go on until none knows of one whose gradient was always zero."""
        passing = self._passing
        whole = ((name, p) for name, p in self.module.named_parameters() if name in passing.whole)
        apart, unknown = gradients_apart(whole, self.mesh["tp"].get_group())
        left = torch.tensor(float(len(unknown)), device=_device(self.module))
        dist.all_reduce(left)
        passing.whole = (unknown or [""]) if left else []  # "": none of this rank's, which others wait for
        return apart

    def _looked(self) -> None:
        passing = self._passing
        passing.looks, cuts, passing.cuts = False, passing.cuts, None
        elsewhere, passing.elsewhere = passing.elsewhere, None
        for watching in (cuts, elsewhere):
            if watching is not None:
                watching.close()

    def _wrong_in_first_step(self, drew_apart: bool, partial: str, ungathered: str) -> str:
        """What is wrong, or "": Note [A model cut to one stage]. Collective."""
        passing = self._passing
        cuts, elsewhere = passing.cuts, passing.elsewhere
        seen = Seen(
            passing.entered,
            passing.left,
            frozenset(cuts.cut if cuts is not None else ()),
            frozenset(cuts.grouped if cuts is not None else ()),
            frozenset(cuts.mixed if cuts is not None else ()),
            ungathered,
            drew_apart,
            partial,
            elsewhere.found if elsewhere is not None else "",
            values_of_buffers(self.module, passing.buffers),
        )
        told: Any = [None] * len(self.plan.stages)
        dist.all_gather_object(told, seen, group=self.mesh["pp"].get_group())
        return what_is_wrong(told, [stage.modules[0] for stage in self.plan.stages])


def _plain(found: Tensor) -> Tensor:
    """Of a loss over a mesh (loss_parallel), or a norm, its value."""
    value = found.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
