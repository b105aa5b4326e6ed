"""Pipeline: a model that `osdp.parallelize` has divided, as one rank has it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp.errors import InvalidProblemError, ShardingError
from osdp.parallel.crossing import Crossing
from osdp.parallel.ending import end_of_pipeline
from osdp.parallel.stage_module import INPUT
from osdp.parallel.stand_in import Passing
from osdp.parallel.tensor_styles import why_not_cut
from osdp.parallel.whole_parameters import gradients_apart
from osdp.plan.parallel_plan import ParallelPlan


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
    ) -> None:
        self.plan, self.stage = plan, stage  # `stage`: the number of this rank's
        self.module = module  # the model, cut to the stage and sharded
        self.mesh = mesh  # dimensions "pp", "dp", "tp"
        self.schedule = schedule  # torch's: its `step` is what `step` here calls
        self._passing = passing
        self._shapes: list[torch.Size] | None = None  # of the inputs of the step before

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
        beside the model's output.

        Raises InvalidProblemError for another number of samples, and in the first step, on all ranks of the pipeline,
        ShardingError if forward passes more between stages than one tensor, cuts the output of a column-wise linear in
        parts, views it in as many groups as one process, draws other random numbers on ranks of one tensor-parallel group
        (dropout), or uses what all of them hold whole with a part of the sequence. RankError, naming stages, where another
        rank has ended: Note [The end of a pipeline] in osdp/parallel/ending.py.
        """
        self._check_samples((*args, target, *kwargs.values()))
        self._look_at_shapes([v.shape for v in (*args, *kwargs.values()) if isinstance(v, Tensor)])
        if not self.first:
            kwargs |= {f"{INPUT}{i}": value for i, value in enumerate(args)}
            args = ()
        losses: list[Tensor] = []
        random = self._random_state()
        try:
            # Outputs of a whole step (logits) would be held until its end, to be returned.
            self.schedule.step(
                *args, target=target if self.last else None, losses=losses, return_outputs=False, **kwargs
            )
        except Exception as error:
            ending = end_of_pipeline(self.plan, self.stage, self.mesh, error)
            if ending is error:
                raise
            raise ending from error
        if self._passing.looks:
            self._compare_cuts(self._drew_apart(random))
        # In float32 at least: a mean of losses in bf16 would be rounded to its 8 bits.
        here = torch.stack([loss.detach().float() for loss in losses]).mean() if losses else None
        value = torch.zeros((), device=_device(self.module)) if here is None else here
        dist.all_reduce(value)
        return value / (self.plan.data_parallel * self.plan.tensor_parallel)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm, over all stages, is `max_norm` at most. Returns the norm."""
        parameters = list(self.module.parameters())
        grads = [p.grad for p in parameters if p.grad is not None]
        # torch's norm of none, of a frozen stage, is in float32 on the CPU.
        norm = nn.utils.get_total_norm(grads) if grads else parameters[0].new_zeros(())
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        square = norm.detach().double().square()  # stages may be of several dtypes
        dist.all_reduce(square, group=self.mesh["pp"].get_group())
        total = square.sqrt().to(norm.dtype)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
        return total

    def _check_samples(self, values: tuple[Any, ...]) -> None:
        samples = self.plan.micro_batches * self.plan.micro_batch_size
        for value in values:
            if isinstance(value, Tensor) and value.dim() and value.shape[0] != samples:
                raise InvalidProblemError(
                    f"the plan has {samples} samples a step for each replica ({self.plan.micro_batches} micro-batches of "
                    f"{self.plan.micro_batch_size}), but a tensor with {value.shape[0]} was passed"
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

    def _compare_cuts(self, drew_apart: bool) -> None:
        """Note [A model cut to one stage]. Collective in the first step."""
        passing = self._passing
        passing.looks, cuts, passing.cuts = False, passing.cuts, None
        elsewhere, passing.elsewhere = passing.elsewhere, None
        for watching in (cuts, elsewhere):
            if watching is not None:
                watching.close()
        apart = (
            gradients_apart(self.module, passing.whole, self.mesh["tp"].get_group()) if passing.whole else ""
        )
        told: Any = [None] * len(self.plan.stages)
        seen = (cuts.cut, cuts.grouped) if cuts is not None else (set(), set())
        group = self.mesh["pp"].get_group()
        depends = elsewhere.found if elsewhere is not None else ""
        dist.all_gather_object(
            told, (passing.entered, passing.left, *seen, drew_apart, depends, apart), group=group
        )
        if any(drew for *_, drew, _, _ in told):
            raise ShardingError(
                "forward draws random numbers (dropout), and the ranks of a tensor-parallel group drew others: what they "
                "all hold whole would differ, and be trained apart. Seed them alike before the first step, "
                "torch.manual_seed(seed + pipeline.mesh['dp'].get_local_rank())"
            )
        if names := sorted(set[str]().union(*(cut for _, _, cut, *_ in told))):
            raise ShardingError(why_not_cut(names[0]))
        if names := sorted(set[str]().union(*(grouped for _, _, _, grouped, *_ in told))):
            raise ShardingError(
                f"{names[0]!r} is divided over tensor parallelism by its outputs (colwise), and the model's forward views "
                "its output in as many groups (heads) as in one process, so each has a part of its outputs alone, and the "
                "loss is not one process's. A rank has fewer groups of the same size: view(..., -1, size) instead of "
                "view(..., groups, -1)"
            )
        found: list[tuple[Crossing | None, Crossing | None]] = [(entered, left) for entered, left, *_ in told]
        for stage in range(1, len(found)):
            before, here = found[stage - 1], found[stage]
            if before[1] != here[0]:
                raise ShardingError(
                    f"between stages {stage - 1} and {stage} of the pipeline more than one tensor passes: "
                    f"{self.plan.stages[stage].modules[0]!r} was called with {_difference(before[1], here[0])}. A stage "
                    "gets its first module's first tensor from the one before, and computes the rest from the model's inputs"
                )
        if names := [name for *_, name in told if name]:
            raise ShardingError(
                f"the gradient of {names[0]!r} differs between ranks of a tensor-parallel group, which all hold it whole: "
                "forward computes with it on a part of the sequence (sequence parallelism) or of a divided output, so each "
                "rank has a part of its gradient. Use it where activations are whole, or in a module with a style in "
                "tp_plan (SequenceParallel)"
            )
        for stage, (*_, name, _) in enumerate(told):
            if name:
                what = "passes on" if stage < len(told) - 1 else "computes as the model's output"
                raise ShardingError(
                    f"what stage {stage} of the pipeline {what} depends on {name!r}, which is in another stage, beside the "
                    f"one tensor that {self.plan.stages[stage].modules[0]!r} gets from there, so it is not one process's. "
                    "Forward has to pass everything through that tensor, or a module has to do what forward does around it "
                    "(a residual x + layer(norm(x)))"
                )


def _difference(left: Crossing | None, right: Crossing | None) -> str:
    sent = dict(left.arguments) if left else {}
    found = dict(right.arguments) if right else {}
    name = next(n for n in {**sent, **found} if sent.get(n) != found.get(n))
    return (
        f"argument {name} {sent.get(name, 'missing')} in the one, {found.get(name, 'missing')} in the other"
    )


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
