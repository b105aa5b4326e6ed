"""What ranks saw in a pipeline's first step, and what is wrong with it.

Note [A model cut to one stage] in stage_module.py says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from osdp.parallel.crossing import Crossing
from osdp.parallel.shared_buffers import buffer_apart
from osdp.parallel.tensor_styles import why_not_cut
from osdp.sharding.whole_parameters import partial_gradient


@dataclass(frozen=True)
class Seen:
    """By a rank of one stage."""

    entered: Crossing | None
    left: Crossing | None
    cut: frozenset[str]  # column-wise linears whose output forward cuts,
    grouped: frozenset[str]  # or views as one process does,
    mixed: frozenset[str]  # or computes over
    ungathered: str  # what the model returns, of which ranks of tensor parallelism have other losses, or ""
    drew_apart: bool  # random numbers, on ranks of one tensor-parallel group
    partial: str  # a parameter of which it has a part of the gradient, or ""
    depends: str  # a module of another stage that the output depends on, or ""
    buffers: Mapping[str, tuple[float, float]]  # values_of_buffers


def what_is_wrong(stages: Sequence[Seen], entries: Sequence[str]) -> str:
    """Of what ranks of all stages saw; "" where nothing is. `entries`: the first module of each stage."""
    if any(seen.drew_apart for seen in stages):
        return (
            "forward draws random numbers (dropout), and the ranks of a tensor-parallel group drew others: what they "
            "all hold whole would differ, and be trained apart. Seed them alike before the first step, "
            "torch.manual_seed(seed + pipeline.mesh['dp'].get_local_rank())"
        )
    if names := sorted(frozenset[str]().union(*(seen.cut for seen in stages))):
        return why_not_cut(names[0])
    if names := sorted(frozenset[str]().union(*(seen.grouped for seen in stages))):
        return (
            f"{names[0]!r} is divided over tensor parallelism by its outputs (colwise), and the model's forward views "
            "its output in as many groups (heads) as in one process, so each has a part of its outputs alone, and the "
            "loss is not one process's. A rank has fewer groups of the same size: view(..., -1, size) instead of "
            "view(..., groups, -1)"
        )
    if names := sorted(frozenset[str]().union(*(seen.mixed for seen in stages))):
        return (
            f"{names[0]!r} is divided over tensor parallelism by its outputs (colwise), and the model's forward computes "
            "over all of them (a softmax, a mean, a gated linear unit): a rank has a part alone, so the loss is not one "
            f"process's. Gather them ('colwise_gather_output'), or leave {names[0]!r} out of tp_plan"
        )
    if name := next((seen.ungathered for seen in stages if seen.ungathered), ""):
        return (
            f"ranks of a tensor-parallel group have different losses of the same samples: the model returns {name}, of "
            "which each has a part. Gather it ('colwise_gather_output', ColwiseParallel(output_layouts=Replicate())), or "
            "pass tp_plan= with the styles of a loss over the mesh (use_local_output=False, loss_parallel)"
        )
    for stage in range(1, len(stages)):
        before, here = stages[stage - 1].left, stages[stage].entered
        if before != here:
            return (
                f"between stages {stage - 1} and {stage} of the pipeline more than one tensor passes: "
                f"{entries[stage]!r} was called with {_difference(before, here)}. A stage "
                "gets its first module's first tensor from the one before, and computes the rest from the model's inputs"
            )
    if names := [seen.partial for seen in stages if seen.partial]:
        return partial_gradient(names[0])
    for stage, seen in enumerate(stages):
        if seen.depends:
            what = "passes on" if stage < len(stages) - 1 else "computes as the model's output"
            return (
                f"what stage {stage} of the pipeline {what} depends on {seen.depends!r}, which is in another stage, beside "
                f"the one tensor that {entries[stage]!r} gets from there, so it is not one process's. "
                "Forward has to pass everything through that tensor, or a module has to do what forward does around it "
                "(a residual x + layer(norm(x)))"
            )
    if name := buffer_apart([seen.buffers for seen in stages]):
        return (
            f"buffer {name!r} is in several stages of the pipeline, each of which writes its own values to it, so it is not "
            "one process's in evaluation and in checkpoints. Let modules of one stage alone write to it, or give each of "
            "them a buffer of its own"
        )
    return ""


def _difference(left: Crossing | None, right: Crossing | None) -> str:
    sent = dict(left.arguments) if left else {}
    found = dict(right.arguments) if right else {}
    name = next(n for n in {**sent, **found} if sent.get(n) != found.get(n))
    return (
        f"argument {name} {sent.get(name, 'missing')} in the one, {found.get(name, 'missing')} in the other"
    )
