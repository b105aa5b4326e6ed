"""Candidates: degrees and micro-batches that exist, each with what it takes at least."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from osdp import _search
from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import divisors
from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError
from osdp.hardware.hardware import Hardware
from osdp.plan.parallel_plan import RuledOut
from osdp.plan.searched import OperatorCollectives
from osdp.planning.core_inputs import compute_s, computing_dtypes, itemsize, make_model, signature
from osdp.planning.degrees.chain import Chain, Link, for_stages
from osdp.planning.degrees.collectives import collectives_of
from osdp.planning.degrees.divided_operators import with_own_names
from osdp.planning.degrees.layout import Degrees, Layout
from osdp.planning.degrees.local_operators import LocalOperators
from osdp.planning.degrees.schedule_memory import last_outputs
from osdp.planning.optimizer_states import OptimizerState
from osdp.planning.search_problem import SearchProblem


@dataclass(frozen=True)
class Candidate:
    """`bound_s`: no pipeline of these degrees takes less, however it is cut: Note [The bound of a pipeline]."""

    degrees: Degrees
    batch: int  # samples of a micro-batch
    micro_batches: int
    bound_s: float


class Sharing:
    """The model as tensor-parallel groups of `ranks` share it: its chain, and times of its links by micro-batch."""

    def __init__(
        self,
        description: ModelDescription,
        styles: Mapping[str, str],
        hardware: Hardware,
        precision: str,
        ranks: int,
        whole_names: Sequence[str] = (),
    ) -> None:
        self.whole, self.styles, self.whole_names = description, styles, whole_names
        self.hardware, self.precision, self.ranks = hardware, precision, ranks
        local = LocalOperators(for_stages(description), styles, ranks).local
        outputs = last_outputs(description, styles, ranks, precision)
        self.chain = Chain(dataclasses.replace(local, output_bytes_per_sample=outputs))
        self._manner: _search.Manner | None = None
        # By micro-batch.
        self.collectives, self.contents = cache(self._collectives), cache(self._contents)
        self.model, self.link_seconds = cache(self._model), cache(self._link_seconds)
        self.kept_by = cache(self._kept_by)

    def _collectives(self, batch: int) -> dict[str, OperatorCollectives]:
        return collectives_of(self.whole, self.styles, self.hardware, self.ranks, batch, self.precision)

    @cached_property
    def _signatures(self) -> list[int]:
        """Of each operator of the chain: equal for those that differ in their names only."""
        ids: dict[object, int] = {}
        return [ids.setdefault(signature(o), len(ids)) for o in self.chain.description.operators]

    def _contents(self, batch: int) -> list[int]:
        """Of each link: equal for those that differ in their names only."""
        ids: dict[object, int] = {}
        waits, signatures = self.collectives(batch), self._signatures
        operators = self.chain.description.operators

        def content(link: Link) -> object:
            inside = tuple((signatures[i], waits.get(operators[i].name)) for i in link.operators)
            return link.boundary_bytes_per_sample, inside

        return [ids.setdefault(content(link), len(ids)) for link in self.chain.links]

    def _model(self, batch: int) -> _search.Model:
        """Of the chain, with the times and waits of its operators in a micro-batch of that size."""
        d, waits = self.chain.description, self.collectives(batch)
        return make_model(d, self.hardware, self.precision, self.whole_names, 0, batch, waits)

    def manner(self, problem: SearchProblem) -> _search.Manner:
        """How the chain is carried out, in the manner of a problem of a part of it: the same in all of a search."""
        if self._manner is None:
            self._manner = dataclasses.replace(
                problem, description=with_own_names(self.chain.description)
            ).manner()
        return self._manner

    def least_bytes(
        self, degrees: Degrees, batch: int, micro_batches: int, optimizer: OptimizerState | None
    ) -> int:
        """About what a stage of an even cut holds if everything is sharded and recomputed: state, the inputs of blocks for
        the mean of micro-batches in flight, and one block's activations. `optimizer`: None where state may be in host
        memory."""
        d, p = self.chain.description, degrees.pipeline
        state = 0
        if optimizer is not None or degrees.data == 1:  # what is not sharded stays on the device
            held = 0 if optimizer is None else self.kept_by(optimizer)
            state = (2 * d.parameter_bytes + held) // (degrees.data * p)
        flight = sum(min(micro_batches, p - i) for i in range(p)) / p
        return state + round(batch * (flight * self._inputs / p + self._largest))

    def _kept_by(self, optimizer: OptimizerState) -> int:
        parameters = (p for p in self.chain.description.parameters if p.trainable)
        return sum(optimizer.bytes(p.elements * itemsize(p.dtype), itemsize(p.dtype)) for p in parameters)

    @cached_property
    def _inputs(self) -> int:
        """Bytes of a sample that blocks keep if they are recomputed, and what is saved outside of blocks."""
        d = self.chain.description
        outside = sum(o.saved_bytes_per_sample for o in d.operators if o.block is None)
        return outside + sum(b.input_bytes_per_sample for b in d.blocks)

    @cached_property
    def _largest(self) -> int:
        """Bytes of a sample that the largest block saves."""
        saved: dict[str, int] = {}
        for o in self.chain.description.operators:
            if o.block is not None:
                saved[o.block] = saved.get(o.block, 0) + o.saved_bytes_per_sample
        return max(saved.values(), default=0)

    def _link_seconds(self, batch: int) -> list[float]:
        """Of each link, the forward and backward of a micro-batch, without data-parallel communication."""
        d = self.chain.description
        dtypes, waits = computing_dtypes(d, self.precision), self.collectives(batch)
        known: dict[object, float] = {}
        seconds = []
        for o, content in zip(d.operators, self._signatures, strict=True):
            key = (content, dtypes[o.name], o.name if o.name in self.hardware.gamma_s else "")
            if key not in known:
                known[key] = compute_s(o, self.hardware, dtypes[o.name], d, batch).step(batch)
            own = waits.get(o.name)
            seconds.append(known[key] + (own.forward_s + own.backward_s if own is not None else 0.0))
        return [sum(seconds[i] for i in link.operators) for link in self.chain.links]


def tensor_degrees(asked: int | None, ranks: int, ranks_per_host: int, styled: bool) -> list[int]:
    """None: all that divide a host, where there is a plan for sharing operators."""
    if asked is not None:
        return [asked]
    return [t for t in divisors(ranks_per_host) if ranks % t == 0] if styled else [1]


def degrees_of(asked: int | None, tensor: int, ranks: int, links: int) -> Iterator[Degrees]:
    """Degrees with the tensor-parallel one given. None: all numbers of stages up to `links` that divide the ranks."""
    for pipeline in [asked] if asked is not None else divisors(ranks // tensor):
        if ranks % (tensor * pipeline) == 0 and (asked is not None or pipeline <= links):
            yield Degrees(tensor, pipeline, ranks // (tensor * pipeline))


def candidates_of(
    sharing: Sharing,
    degrees: Degrees,
    ranks_per_host: int,
    global_batch: int,
    batch: int | None,
    limit: int | None,
    optimizer: OptimizerState | None,
    out: list[RuledOut],
) -> list[Candidate]:
    """With every micro-batch that is possible; adds to `out` what is not."""
    t, p, d = degrees.tensor, degrees.pipeline, degrees.data

    def no(why: str, size: int | None = None) -> list[Candidate]:
        out.append(RuledOut(t, p, d, size, why))
        return []

    layout = Layout(degrees, ranks_per_host)
    if why := layout.problem():
        return no(why)
    try:
        sharing.chain.check_stages(p)
    except InvalidProblemError as error:
        return no(str(error))
    if global_batch % d:
        return no(f"the global batch of {global_batch} is not divided by {d} replicas")
    share = global_batch // d
    speeds = layout.speeds(sharing.hardware)
    sizes = [batch] if batch is not None else divisors(share)
    found = []
    for size in sizes:
        if share % size:
            no(f"micro-batches of {size} do not divide a replica's {share} samples", size)
            continue
        held = sharing.least_bytes(degrees, size, share // size, optimizer)
        if limit is not None and held > FAR_OVER * limit:
            no(f"{LARGE} {format_bytes(held)}, if all of it is sharded and recomputed", size)
            continue
        seconds = sharing.link_seconds(size)
        m = share // size
        found.append(Candidate(degrees, size, m, bound_s(seconds, p, m, speeds)))
    return found


# Note [The bound of a pipeline]
# Stage i computes m micro-batches, t_i each; before its first forward and after its last backward every stage before it has
# one pass each of a micro-batch, t_j in all. So a step takes at least max_i (m t_i + sum of t_j, j < i), whatever the
# schedule. Over all ways to divide T among p stages that is least where all of them are equal: t_(i+1) = (1 - 1/m) t_i, and
# then it is T / (1 - (1 - 1/m)^p). It also takes m times the largest link.
# Where n stages share a host's cores (Note [Shared cores] in csrc/search/pipeline/shared_cores.hpp), k of them compute k
# times their speed then, n where all do. So a step takes at least what all hosts need together at the most of these, and
# no stage is faster than alone.
def bound_s(seconds: Sequence[float], stages: int, micro_batches: int, speeds: Sequence[float]) -> float:
    """`seconds`: of each link, in a micro-batch. `speeds`: of a stage while 1, 2, ... of those of its host compute."""
    whole, most, fastest = sum(seconds), micro_batches * max(seconds), max(speeds)
    if fastest == 1:
        return max(most, whole / (1 - (1 - 1 / micro_batches) ** stages))
    at_once = stages / len(speeds) * max(k * speed for k, speed in enumerate(speeds, 1))
    return max(micro_batches * whole / at_once, most / fastest, whole / fastest)


# Above this part of the limit an estimate of what a stage holds at least rules out a candidate: cuts that are not even hold
# less in one stage and more in another.
FAR_OVER = 1.2
LARGE = "a stage holds about"
