"""Where ranks stand: groups of tensor, data and pipeline parallelism on hosts, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from osdp import _search
from osdp.hardware.hardware import Collective, Hardware

# Note [Ranks on hosts]
# Ranks are numbered as torch's mesh (pipeline, data, tensor): those of a tensor-parallel group are neighbours on one host,
# then come those with other parts of the batch, then the next stage. The t data-parallel groups of a stage reduce at the
# same time over the links between its hosts, of which each has a t-th. What passes from stage to stage passes from each rank
# to its own peer: between hosts at a rank's part of the host's link, inside a host at its speed.


@dataclass(frozen=True)
class Degrees:
    """How many ranks share an operator, how many stages there are, and how many replicas of both."""

    tensor: int
    pipeline: int
    data: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"{self.tensor} x {self.pipeline} x {self.data}"


@dataclass(frozen=True)
class Layout:
    """Of `degrees` over hosts with `ranks_per_host` ranks each."""

    degrees: Degrees
    ranks_per_host: int

    @property
    def hosts(self) -> int:
        return max(1, self.degrees.ranks // self.ranks_per_host)

    @property
    def stage_ranks(self) -> int:
        return self.degrees.tensor * self.degrees.data

    @property
    def data_hosts(self) -> int:
        """Hosts over which a data-parallel group is spread, evenly."""
        return max(1, self.stage_ranks // self.ranks_per_host)

    def speeds(self, hardware: Hardware) -> list[float]:
        """Of a stage while 1, 2, ... of those of its host compute, over that of all, the last of these. One: it shares no
        cores."""
        stages = max(1, self.ranks_per_host // self.stage_ranks) if hardware.fewer_ranks_speedup else 1
        return [hardware.speedup(n * self.stage_ranks, self.ranks_per_host) for n in range(1, stages)] + [1.0]

    def played(
        self,
        hardware: Hardware,
        schedule: str,
        times: Sequence[_search.StageTimes],
        micro_batches: int,
        record: bool = False,
    ) -> _search.PlayedSchedule:
        """A step of stages that take `times`, on the cores that they may share."""
        speeds = [round(1000 * s) for s in self.speeds(hardware)]
        return _search.play_schedule(schedule, list(times), micro_batches, record, speeds)

    def problem(self) -> str:
        """Why ranks cannot stand so; "" if they can."""
        tensor, spread, per_host = self.degrees.tensor, self.stage_ranks, self.ranks_per_host
        if tensor > per_host or per_host % tensor:
            return f"{tensor} ranks of a tensor-parallel group do not fit on hosts of {per_host}"
        if spread > per_host and spread % per_host:
            return f"a stage of {spread} ranks does not fill hosts of {per_host}"
        if spread < per_host and per_host % spread and self.degrees.pipeline > 1:
            return f"stages of {spread} ranks do not fill hosts of {per_host}"
        return ""

    def machine(self, hardware: Hardware) -> Hardware:
        """The machine of one data-parallel group."""
        if self.data_hosts == 1:
            hardware = hardware.inside_a_host(self.hosts)
        between = hardware.between_hosts
        if between is not None:
            # Not faster than inside a host: a ring waits for its slowest link.
            between = Collective(between.alpha_s, between.beta_s_per_byte * self.degrees.tensor)
        return replace(hardware, between_hosts=between)

    def send_s(self, hardware: Hardware, stage: int, size: int) -> float:
        """Seconds in which a rank sends `size` bytes to its peer in the stage after `stage`."""
        inside = (stage + 1) * self.stage_ranks % self.ranks_per_host != 0
        between = hardware.between_hosts
        if inside or between is None:
            link = hardware.inside_a_host(self.hosts).all_gather
            return link.alpha_s + size * link.beta_s_per_byte
        at_once = min(self.stage_ranks, self.ranks_per_host)  # ranks of a host that send
        return between.alpha_s + size * between.beta_s_per_byte * at_once
