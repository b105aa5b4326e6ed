"""Which of some parameters are cut over the ranks, and how: for torch's tools, which are given parameters only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from osdp.sharding.sharded_model import Sharded, sharded_models


@dataclass(frozen=True)
class CutParameter:
    """A parameter of which this rank holds a part."""

    sharded: Sharded
    name: str
    hybrid: bool  # cut over a line of ranks, and every line holds a copy

    @property
    def full_shape(self) -> tuple[int, ...]:
        return self.sharded.full_shape(self.name)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of this rank's part, also while the parameter is summoned."""
        pieces = self.sharded.pieces(self.name)
        shape = list(pieces[0].sizes)
        shape[self.dim] = sum(piece.sizes[self.dim] for piece in pieces)
        return tuple(shape)

    @property
    def dim(self) -> int:
        """Along which rows are cut: the first longer than 1; of a split weight 0, by which it is shown."""
        if self.split:
            return 0
        return next((d for d, size in enumerate(self.full_shape) if size > 1), 0)

    @property
    def split(self) -> bool:
        return self.name in self.sharded.split_names

    @property
    def rank(self) -> int:
        return dist.get_rank(self.sharded.group)

    @property
    def world(self) -> int:
        return dist.get_world_size(self.sharded.group)

    @property
    def advice(self) -> str:
        """How to have it whole on every rank."""
        module = self.name.rpartition(".")[0]
        by_hand = f"plan.replace({{{module!r}: osdp.Choice('NO_SHARD')}})"
        return f"osdp.search(..., whole=[{module or self.name!r}]), or by hand {by_hand}"


def cut_parameter(sharded: Sharded, name: str) -> CutParameter:
    return CutParameter(sharded, name, name in _hybrid_names(sharded))


def models_sharded() -> int:
    """How many there are now; what was found of parameters may be stale when it changed."""
    return len(sharded_models())


def cut_parameters(parameters: Iterable[Tensor]) -> dict[int, CutParameter]:
    """Those that are cut, by id()."""
    wanted = {id(p) for p in parameters}
    found = {}
    for model, sharded in sharded_models():
        hybrid: set[str] | None = None
        # Not by the names that they have now: a module may have been wrapped in another since.
        names = {index: name for name, index in sharded.index.items()}
        for p in model.parameters():
            if id(p) not in wanted or not sharded.tree.is_sharded(p):
                continue
            if hybrid is None:
                hybrid = _hybrid_names(sharded)
            name = names[sharded.tree.index[id(p)]]
            found[id(p)] = CutParameter(sharded, name, name in hybrid)
    return found


def _hybrid_names(sharded: Sharded) -> set[str]:
    if sharded.grid is None or len(sharded.grid.lines) == 1:
        return set()
    operators = sharded.plan.description.operators
    choices = sharded.plan.choices
    return {
        p.name
        for o in operators
        if o.name in choices and choices[o.name].traits.inside_hosts
        for p in o.parameters
    }
