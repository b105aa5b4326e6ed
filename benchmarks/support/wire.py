"""What a plan must send over a host's link in one step, whatever the runtime does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import osdp

PAYLOAD = 0.951  # of a link's rate is left when Ethernet, IP and TCP have put their headers around it


def link_bytes(plan: osdp.Plan, ranks: int, hosts: int) -> float:
    """Bytes that one host sends to others in one step, by collectives that send no byte twice; the ranks of a host
    are neighbours in the ring, so that one of them alone sends over the link, but in HYBRID_SHARD all of them do."""
    if hosts == 1:
        return 0.0
    ring = (ranks - 1) / ranks
    factor = {
        "NO_SHARD": 2 * ring,
        "SHARD_GRAD_OP": 2 * ring,
        "FULL_SHARD": 3 * ring,
        "HYBRID_SHARD": 2 * (hosts - 1) / hosts,
    }
    total = 0.0
    for operator in plan.description.operators:
        if not operator.parameters:
            continue
        choice = plan.choices[operator.name]
        sharded = choice.slices_sharded / choice.granularity
        total += operator.parameter_bytes * (
            sharded * factor[choice.mode] + (1 - sharded) * factor["NO_SHARD"]
        )
    return total


def link_seconds(sent: float, rate: str) -> float:
    """At a rate as tc writes it: '1gbit', '400mbit'."""
    units = {"gbit": 1e9, "mbit": 1e6}
    bits = next(float(rate.removesuffix(unit)) * size for unit, size in units.items() if rate.endswith(unit))
    return sent / (bits / 8 * PAYLOAD)
