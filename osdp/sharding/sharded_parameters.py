"""Finds which parameters are sharded, and how, for torch's tools, which receive only parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from osdp.base.tensor_parallel import Layout, layout_of
from osdp.sharding.sharded_model import Sharded, sharded_models


@dataclass(frozen=True)
class ShardedParameter:
    """A sharded parameter: this rank holds a part of it, over the data-parallel ranks or by tensor parallelism."""

    sharded: Sharded
    index: int  # in the runtime; names may change

    @property
    def name(self) -> str:
        return self.sharded.name_of(self.index)

    @property
    def full_shape(self) -> tuple[int, ...]:
        layout = self.layout
        return tuple(layout.shape) if layout is not None else self._part_shape

    @property
    def _part_shape(self) -> tuple[int, ...]:
        """The shape of what is sharded: of a parameter of tensor parallelism, the part that this rank holds."""
        return tuple(self.sharded.runtime.full_shape(self.index))

    @property
    def layout(self) -> Layout | None:
        return layout_of(self.sharded.tree.known[self.index])

    @property
    def whole(self) -> bool:
        """Whether all data-parallel ranks hold the same: it is a part by tensor parallelism alone."""
        pieces = self.sharded.runtime.pieces(self.index)
        return len(pieces) == 1 and pieces[0].replicated

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's part, also while the full parameter is summoned."""
        pieces = self.sharded.runtime.pieces(self.index)
        shape = list(pieces[0].sizes)
        shape[self.dim] = sum(piece.sizes[self.dim] for piece in pieces)
        return tuple(shape)

    @property
    def dim(self) -> int:
        """The sharded dimension: the first one longer than 1; 0 for a split weight, which is shown as sharded
        along 0."""
        if self.split:
            return 0
        return next((d for d, size in enumerate(self._part_shape) if size > 1), 0)

    @property
    def split(self) -> bool:
        return self.sharded.is_split(self.index)

    @property
    def hybrid(self) -> bool:
        """Sharded over a line of ranks; every line holds a copy."""
        return self.sharded.is_hybrid(self.index)

    def gather_whole(self, local: Tensor) -> Tensor:
        """The full tensor (of what is sharded) of which `local` is this rank's part. Collective."""
        return self.sharded.runtime.gather_whole(self.index, local.detach())

    def take_local(self, full: Tensor) -> Tensor:
        """This rank's part of `full`, of the shape of what is sharded."""
        return self.sharded.runtime.take_local(self.index, full.detach())

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


def sharded_parameters(parameters: Iterable[Tensor]) -> dict[int, ShardedParameter]:
    """Those of `parameters` that are sharded, by id()."""
    wanted = {id(p) for p in parameters}
    return {
        id(p): ShardedParameter(sharded, sharded.tree.index[id(p)])
        for model, sharded in sharded_models()
        for p in model.parameters()
        if id(p) in wanted and sharded.tree.is_sharded(p)
    }
