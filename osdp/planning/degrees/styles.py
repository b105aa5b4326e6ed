"""Styles: which operators the ranks of a tensor-parallel group share, and how, from torch's plans.

A plan is a mapping from patterns of module names to styles: objects of torch.distributed.tensor.parallel, or the strings
that models of `transformers` have in `base_model_tp_plan`. `*` matches a part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from osdp.base.names import modules_around
from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError

# What is kept of a style. "colwise": a weight's outputs are shared, and so is its result; "colwise_gathered": the result is
# gathered; "rowwise": its inputs, so that results are summed up; "rowwise_split_input": of which every rank has all;
# "sequence": of whole weights, ranks have a part of the sequence each; "on_parts": they have a part of what a column-wise
# linear made (a norm of each head); "module": of a module's inputs and outputs alone.
STYLES = ("colwise", "colwise_gathered", "rowwise", "rowwise_split_input", "sequence", "on_parts", "module")
_STRINGS = {
    "colwise": "colwise",
    "local_colwise": "colwise",
    "embedding_colwise": "colwise_gathered",
    "colwise_rep": "colwise_gathered",
    "colwise_gather_output": "colwise_gathered",
    "rowwise": "rowwise",
    "local_rowwise": "rowwise",
    "rowwise_rep": "rowwise",
    "rowwise_split_input": "rowwise_split_input",
    "replicated_with_grad_allreduce": "on_parts",
    "embedding_rowwise": "rowwise",
    "sequence": "sequence",
    "sequence_parallel": "sequence",
    "module": "module",
    "replicate": "module",
}


def plan_of(given: Mapping[str, Any] | None, model: Any = None) -> dict[str, str]:
    """Pattern -> one of STYLES. Without a plan that of the model (`_tp_plan` or `config.base_model_tp_plan` in
    transformers) but for its experts, which every rank then holds whole; {} if it has none.

    Raises InvalidProblemError for a style that is not known.
    """
    found: Mapping[str, Any] = given if given is not None else _of_transformers(model)
    if not isinstance(found, Mapping):
        raise InvalidProblemError(
            f"tp_plan must be a mapping from module names to styles, got {type(found).__name__}"
        )
    return {str(pattern): _style(str(pattern), style) for pattern, style in found.items()}


def _of_transformers(model: Any) -> Mapping[str, Any]:
    plans = (getattr(model, "_tp_plan", None), getattr(model, "base_model_tp_plan", None))
    found = next(filter(None, plans), None) or getattr(
        getattr(model, "config", None), "base_model_tp_plan", None
    )
    return {pattern: style for pattern, style in (found or {}).items() if "experts" not in pattern.split(".")}


def _style(pattern: str, style: Any) -> str:
    if isinstance(style, str):
        if style in STYLES or style in _STRINGS:
            return _STRINGS.get(style, style)
        raise InvalidProblemError(
            f"tp_plan[{pattern!r}]: style {style!r} is not one of {', '.join(map(repr, sorted(_STRINGS)))}"
        )
    kind = type(style).__name__
    layouts = getattr(style, "output_layouts", None)
    layout = layouts[0] if isinstance(layouts, (tuple, list)) and layouts else layouts
    if kind == "ColwiseParallel":
        return "colwise_gathered" if type(layout).__name__ == "Replicate" else "colwise"
    if kind == "RowwiseParallel":
        return "rowwise"
    if kind == "SequenceParallel":
        return "sequence"
    if kind.startswith("PrepareModule"):
        return "module"
    raise InvalidProblemError(
        f"tp_plan[{pattern!r}]: a {kind} is no style that the search knows: ColwiseParallel, RowwiseParallel, "
        "SequenceParallel or PrepareModuleInput/Output"
    )


def styles_of(description: ModelDescription, plan: Mapping[str, str]) -> dict[str, str]:
    """Operator -> its style; the first pattern that matches counts.

    Raises InvalidProblemError for a pattern that names no module, for a module with a tied weight, and for a convolution.
    """
    modules = modules_of(description)
    styles: dict[str, str] = {}
    for pattern, style in plan.items():
        matches = matching(pattern, modules)
        if not matches:
            raise InvalidProblemError(
                f"tp_plan[{pattern!r}] names no module of {description.name}; it has {', '.join(list(modules)[:6])}, ..."
            )
        for name in matches:
            styles.setdefault(name, style)
    owned = {o.name for o in description.operators}
    for o in description.operators:
        if (o.transposed or o.kernel_places) and styles.get(o.name, "").startswith(("colwise", "rowwise")):
            raise InvalidProblemError(
                f"tp_plan gives {o.name!r}, a {o.kind}, the style {styles[o.name]!r}: torch's styles divide nn.Linear and "
                "nn.Embedding alone. Leave it out of tp_plan, or make it an nn.Linear"
            )
    tied = tied_modules(description)
    for name, style in styles.items():
        if name in tied and style != "module":
            raise InvalidProblemError(
                f"tp_plan gives {name!r} the style {style!r}, but its {tied[name][0]!r} is also that of {tied[name][1]!r} "
                "(tied), and torch's parallelize_module would make two parameters of it. Untie them "
                "(tie_word_embeddings=False), or leave both out of tp_plan"
            )
    return {name: style for name, style in styles.items() if name in owned and style != "module"}


def tied_modules(description: ModelDescription) -> dict[str, tuple[str, str]]:
    """By module of which a parameter is also another one's: the parameter's name, and the other module."""
    found: dict[str, tuple[str, str]] = {}
    for parameter in description.parameters:
        names = [n.rpartition(".")[0] for n in (parameter.name, *parameter.aliases)]
        for module in names:
            if other := next((n for n in names if n != module), None):
                found.setdefault(module, (parameter.name, other))
    return found


def fitting(plan: Mapping[str, str], description: ModelDescription) -> dict[str, str]:
    """Of a model's own plan, what names a module (that of sparse models also has the layers of dense ones), and not one with
    a tied weight: transformers keep it for both (lm_head)."""
    modules = modules_of(description)
    tied = dict.fromkeys(tied_modules(description))
    return {p: style for p, style in plan.items() if matching(p, modules) and not matching(p, tied)}


def modules_of(description: ModelDescription) -> dict[str, None]:
    """Names of the operators and of the modules around them."""
    found = (name for o in description.operators for name in modules_around(o.name))
    return dict.fromkeys(filter(None, found))


def matching(pattern: str, modules: Mapping[str, None]) -> list[str]:
    """Names that the pattern matches, also without the name of the module around them (a base model's plan)."""
    parts = (
        "[^.]+" if part == "*" else re.escape(part).replace(r"\*", "[^.]*") for part in pattern.split(".")
    )
    whole = re.compile(r"\.".join(parts))
    found = [name for name in modules if whole.fullmatch(name)]
    return found or [name for name in modules if whole.fullmatch(name.partition(".")[2])]
