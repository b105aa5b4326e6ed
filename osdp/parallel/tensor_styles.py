"""torch's styles of tensor parallelism for the modules of a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError, ShardingError
from osdp.parallel.other_stage import ModuleOfOtherStage
from osdp.planning.degrees.styles import matching, modules_of, plan_of, styles_of


def why_not_cut(name: str) -> str:
    """Why a column-wise linear whose outputs forward cuts in parts cannot be divided, and what to do."""
    return (
        f"{name!r} is divided over tensor parallelism by its outputs (colwise), and the model's forward cuts its output in "
        "parts, as a fused projection's of queries, keys and values: a rank's part of the output is not a part of each of "
        f"them, so the loss is not one process's. Give each its own nn.Linear, or leave {name!r} out of tp_plan"
    )


def check_styles(
    description: ModelDescription, plan: Mapping[str, str], given: Mapping[str, Any] | None, model: nn.Module
) -> None:
    """Raises InvalidProblemError for a `given` plan that is not the one that was searched, for a plan whose styles need
    layouts that only torch's objects have, and for a column-wise linear whose outputs forward cuts in parts."""
    styles, modules = styles_of(description, plan), dict(model.named_modules())
    for o in description.operators:
        if o.output_cut and styles.get(o.name) == "colwise":
            raise InvalidProblemError(why_not_cut(o.name))
    for name, style in styles.items():
        kind = type(modules[name]) if name in modules else nn.Linear
        if style.startswith(("colwise", "rowwise")) and not issubclass(kind, (nn.Linear, nn.Embedding)):
            raise InvalidProblemError(
                f"tp_plan gives {name!r}, a {kind.__name__}, the style {style!r}: torch's styles divide nn.Linear and "
                "nn.Embedding alone. Leave it out of tp_plan"
            )
    if given is not None and plan_of(given, model) != dict(plan):
        raise InvalidProblemError(
            f"tp_plan= has other styles than the plan was searched with: {plan_of(given, model)} and {dict(plan)}"
        )
    # As a string "module" does nothing.
    without = {"sequence", "module"} if given is None else {"sequence"}
    if needs := sorted(without & {s for p, s in plan.items() if given is None or isinstance(given[p], str)}):
        raise InvalidProblemError(
            f"the plan has tensor parallelism in the style {needs[0]!r}, of which it does not keep the layouts: pass "
            "tp_plan= with torch's objects, those that osdp.search was given"
        )


def parallelize_stage(
    model: nn.Module,
    description: ModelDescription,
    plan: Mapping[str, str],
    given: Mapping[str, Any] | None,
    mesh: DeviceMesh,
) -> dict[str, nn.Module]:
    """Divide the parameters of a stage over `mesh`. `description`: of the whole model; modules of other stages are gone.
    Returns the modules of which a rank has a part of the outputs."""
    modules = {name: m for name, m in model.named_modules() if not isinstance(m, ModuleOfOtherStage)}
    # In the whole model: a pattern may match another module of a stage that has none of its own.
    every, kept = modules_of(description), styles_of(description, plan)
    patterns: dict[str, str] = {}
    for pattern in plan:
        for name in matching(pattern, every):
            patterns.setdefault(name, pattern)
    styles: dict[str, Any] = {}
    for name, pattern in patterns.items():
        style = (given or plan)[pattern]
        if name in modules and not isinstance(style, str):
            styles[name] = style
        elif name in modules and name in kept:
            styles[name] = _style(kept[name], modules[name])
    parallelize_module(model, mesh, styles)
    for name, style in styles.items():
        (layout,) = getattr(style, "output_layouts", None) or (None,)
        if isinstance(style, RowwiseParallel) and isinstance(layout, Shard):
            modules[name].register_forward_hook(_divided(name, layout.dim, mesh.size()), prepend=True)
    divided = (
        n for n, s in styles.items() if isinstance(s, ColwiseParallel) and s.output_layouts != (Replicate(),)
    )
    return {name: modules[name] for name in divided}


def _divided(name: str, dimension: int, ranks: int) -> Callable[..., None]:
    """Before torch divides the output, into unequal parts if it has to, which the next module takes for equal ones: ranks
    then exchange other sizes, which ends their processes."""

    def check(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, DTensor) and output.shape[dimension] % ranks:
            raise ShardingError(
                f"the output of {name!r}, {tuple(output.shape)}, is divided along dimension {dimension} over {ranks} ranks "
                f"of tensor parallelism (sequence parallelism), which do not divide it: pad sequences to a multiple"
            )

    return check


def _style(style: str, module: nn.Module) -> Any:
    if style == "colwise":
        return ColwiseParallel()
    if style == "colwise_gathered":
        return ColwiseParallel(output_layouts=Replicate())
    if style == "on_parts":
        # Of whatever dimension but the last a rank has a part: gradients of weights are sums over ranks.
        return SequenceParallel(sequence_dim=0, use_local_output=True)
    if isinstance(module, nn.Embedding) or style == "rowwise_split_input":
        return RowwiseParallel(input_layouts=Replicate())
    return RowwiseParallel()
