"""Checkpoints of a pipeline: each rank has one stage, and the checkpoint is of the whole model.

`osdp.parallelize` cuts a model to a stage and keeps its names. Ranks of one stage agree as those of any model do; the stages
are then put together, and on loading each takes its part of what was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from osdp.checkpoint.manifest import Group, Manifest, OptimizerEntry
from osdp.errors import ShardingError

Names = tuple[frozenset[str], frozenset[str]]  # of parameters and of buffers


def names_of(manifest: Manifest) -> Names:
    return frozenset(manifest.parameters), frozenset(manifest.buffers)


def merged(manifests: Sequence[Manifest], agreed: Callable[[dict[int, Manifest]], Manifest]) -> Manifest:
    """The manifest of the whole model, from those of all ranks. `agreed`: that of a stage, from its ranks'.

    Raises ShardingError for stages that have a parameter in common, or buffers of one name that differ.
    """
    stages: dict[frozenset[str], dict[int, Manifest]] = {}
    for rank, manifest in enumerate(manifests):
        stages.setdefault(frozenset(manifest.parameters), {})[rank] = manifest
    whole, *others = (agreed(ranks) for ranks in stages.values())
    for stage in others:
        if both := sorted(whole.parameters.keys() & stage.parameters.keys()):
            raise ShardingError(
                f"two stages of the pipeline have a parameter {both[0]}, but differ in others"
            )
        for name in whole.buffers.keys() & stage.buffers.keys():
            if whole.buffers[name] != stage.buffers[name]:
                raise ShardingError(f"two stages of the pipeline have different buffers {name}")
        whole = Manifest(
            {**whole.parameters, **stage.parameters},
            {**whole.buffers, **stage.buffers},
            _of_both(whole.optimizer, stage.optimizer),
        )
    return whole


def _of_both(one: OptimizerEntry | None, other: OptimizerEntry | None) -> OptimizerEntry | None:
    if one is None or other is None:
        if one is not other:
            raise ShardingError("only some stages of the pipeline save an optimizer")
        return None
    if one.kind != other.kind:
        raise ShardingError(f"stages of the pipeline save different optimizers: {one.kind} and {other.kind}")
    groups = list(one.groups)
    for group in other.groups:
        at = next((i for i, known in enumerate(groups) if known.options == group.options), None)
        if at is None:
            groups.append(group)
        else:
            groups[at] = Group((*groups[at].parameters, *group.parameters), group.options)
    return OptimizerEntry(
        one.kind, tuple(groups), {**one.tensors, **other.tensors}, {**one.values, **other.values}
    )


def part_of(saved: Manifest, here: Names, everyones: Iterable[Names]) -> Manifest:
    """What a stage loads: its names, and those that no stage has, which it then refuses."""
    known = [frozenset[str]().union(*names) for names in zip(*everyones, strict=True)]
    parameters, buffers = (
        {name: entry for name, entry in entries.items() if name in own or name not in all_known}
        for entries, own, all_known in zip((saved.parameters, saved.buffers), here, known, strict=True)
    )
    optimizer = saved.optimizer
    if optimizer is not None:
        kept = (Group(tuple(p for p in g.parameters if p in parameters), g.options) for g in optimizer.groups)
        optimizer = OptimizerEntry(
            optimizer.kind,
            tuple(group for group in kept if group.parameters),
            {name: state for name, state in optimizer.tensors.items() if name in parameters},
            {name: state for name, state in optimizer.values.items() if name in parameters},
        )
    return replace(saved, parameters=parameters, buffers=buffers, optimizer=optimizer)
