"""Owners: which stage of a plan has which parameters and modules of a model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.tensor import DTensor

from osdp.errors import InvalidProblemError, PlanMismatchError
from osdp.plan.parallel_plan import ParallelPlan
from osdp.planning.degrees.divided_operators import holds_several


class Owners:
    """Of the parameters and modules of `model`, before it is changed.

    Raises PlanMismatchError for a model that the plan was not made for, InvalidProblemError for a parameter that two stages
    would need, one that is a DTensor already, and a stage without parameters.
    """

    def __init__(self, model: nn.Module, plan: ParallelPlan) -> None:
        self._description = plan.description
        by_name: dict[str, int] = {}
        self._modules: set[tuple[str, int]] = set()
        for stage, part in enumerate(plan.stages):
            for o in part.plan.description.operators:
                if not o.of_inputs:  # of which every stage computes its own
                    self._modules.add((o.name, stage))
                by_name |= dict.fromkeys((n for p in o.parameters for n in (p.name, *p.aliases)), stage)
        held = {name: p for name, p in model.named_parameters(remove_duplicate=False)}
        unknown, missing = sorted(held.keys() - by_name), sorted(by_name.keys() - held.keys())
        if unknown or missing:
            raise PlanMismatchError(
                f"the plan was made for another model: {_some(missing)} of the plan {'is' if missing else 'are'} not in the "
                f"model, and {_some(unknown)} of the model not in the plan"
            )
        self._parameters: dict[int, int] = {}
        for name, parameter in held.items():
            if isinstance(parameter, DTensor):
                raise InvalidProblemError(
                    f"parameter {name!r} is a DTensor on mesh {parameter.device_mesh} already: osdp.parallelize divides it "
                    "itself, by the plan's tp_plan. Pass the model as it was built"
                )
            known = self._parameters.setdefault(id(parameter), by_name[name])
            if known != by_name[name]:
                raise InvalidProblemError(
                    f"parameter {name!r} is tied to one of stage {known}, and belongs to stage {by_name[name]}: each would "
                    "train its own. Search again with this model, which keeps both in one stage, or untie them"
                )
        for stage in range(len(plan.stages)):
            if stage not in by_name.values():
                raise InvalidProblemError(f"stage {stage} of the plan has no parameters")

    def of_parameter(self, parameter: nn.Parameter) -> int | None:
        return self._parameters.get(id(parameter))

    def runs(self, path: str) -> bool:
        """Whether all stages run the module at `path`, since it holds several blocks."""
        return holds_several(self._description, path)

    def of_module(self, module: nn.Module, path: str) -> set[int]:
        """The stages of what is in the module at `path`."""
        found = {self._parameters[id(p)] for p in module.parameters() if id(p) in self._parameters}
        inside = f"{path}."
        return found | {s for name, s in self._modules if name == path or name.startswith(inside)}


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "nothing"
