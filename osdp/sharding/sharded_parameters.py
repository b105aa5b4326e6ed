"""Finds which parameters are sharded, and how, for torch's tools, which receive only parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from osdp.base.tensor_parallel import Layout
from osdp.plan.plan_fields import parameters_with
from osdp.sharding.sharded_model import Sharded, sharded_models


@dataclass(frozen=True)
class ShardedParameter:
    """A sharded parameter: this rank holds a part of it, over the data-parallel ranks or by tensor parallelism."""

    sharded: Sharded
    name: str
    hybrid: bool  # sharded over a line of ranks; every line holds a copy

    @property
    def full_shape(self) -> tuple[int, ...]:
        return self.sharded.full_shape(self.name)

    @property
    def layout(self) -> Layout | None:
        return self.sharded.layout(self.name)

    @property
    def whole(self) -> bool:
        """Whether all data-parallel ranks hold the same: it is a part by tensor parallelism alone."""
        return self.sharded.is_replicated(self.name)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's part, also while the full parameter is summoned."""
        pieces = self.sharded.pieces(self.name)
        shape = list(pieces[0].sizes)
        shape[self.dim] = sum(piece.sizes[self.dim] for piece in pieces)
        return tuple(shape)

    @property
    def dim(self) -> int:
        """The sharded dimension: the first one longer than 1; 0 for a split weight, which is shown as sharded
        along 0."""
        if self.split:
            return 0
        return next((d for d, size in enumerate(self.sharded.part_shape(self.name)) if size > 1), 0)

    @property
    def split(self) -> bool:
        return self.name in self.sharded.split_names

    @property
    def rank(self) -> int:
        return dist.get_rank(self.sharded.group)

    @property
    def rank_name(self) -> str:
        return self.sharded.runtime.rank_name

    @property
    def world(self) -> int:
        return dist.get_world_size(self.sharded.group)

    @property
    def advice(self) -> str:
        """Advice for the user: how to keep the parameter in full on every rank."""
        if self.layout is not None and self.layout.divided:
            return "and its module left out of parallelize_module's plan"
        module = self.name.rpartition(".")[0]
        by_hand = f"plan.replace({{{module!r}: osdp.Choice('NO_SHARD')}})"
        return f"osdp.search(..., whole=[{module or self.name!r}]), or by hand {by_hand}"


def sharded_parameter(sharded: Sharded, name: str) -> ShardedParameter:
    return ShardedParameter(sharded, name, name in hybrid_names(sharded))


def sharded_parameters(parameters: Iterable[Tensor]) -> dict[int, ShardedParameter]:
    """Those of `parameters` that are sharded, by id()."""
    wanted = {id(p) for p in parameters}
    found = {}
    for model, sharded in sharded_models():
        hybrid: set[str] | None = None
        # Not by present names: a module may have been wrapped in another one since.
        names = {index: name for name, index in sharded.index.items()}
        for p in model.parameters():
            if id(p) not in wanted or not sharded.tree.is_sharded(p):
                continue
            if hybrid is None:
                hybrid = hybrid_names(sharded)
            name = names[sharded.tree.index[id(p)]]
            found[id(p)] = ShardedParameter(sharded, name, name in hybrid)
    return found


def hybrid_names(sharded: Sharded) -> set[str]:
    """The parameters that are sharded over a line of ranks, of which every line holds a copy; none if there is one line."""
    if sharded.grid is None or len(sharded.grid.lines) == 1:
        return set()
    return parameters_with(sharded.plan, "inside_hosts")
