"""Random planning problems: models, machines, ranks, hosts, batches and limits. Alike for a number."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from planner import transformer

import osdp
from osdp.errors import InfeasibleError
from osdp.hardware.hardware import Collective, Hardware, known_machines

AMPLE = 2**45  # bytes: memory that is no limit


@dataclass(frozen=True)
class Instance:
    name: str
    machine: str
    description: osdp.ModelDescription
    arguments: dict[str, Any]  # of osdp.search, but for the limit
    least: int  # bytes that any plan needs
    most: int  # bytes that it takes to shard and recompute nothing
    limit: int


def instance(number: int) -> Instance:
    dice = random.Random(f"instance {number}")
    layers = dice.choice((2, 3, 4, 6, 8, 12, 16, 24))
    widths = dice.choices((256, 512, 768, 1024, 1536, 2048, 3072, 4096), k=dice.choice((1, 1, 2, 3)))
    tokens = dice.choice((64, 128, 512, 1024, 2048))  # little computation to much
    blocks = [widths[i * len(widths) // layers] for i in range(layers)]
    description = transformer(blocks, tokens, dice.choice((1000, 8000, 50257)))
    shipped = dice.choice(known_machines())
    hardware = Hardware.load(shipped)
    machine = shipped
    if dice.random() < 0.5:
        machine, hardware = "perturbed", perturbed(hardware, dice)
    ranks = dice.choice((2, 4, 8, 12, 16, 32))
    hosts = dice.choice([h for h in (1, 2, 4) if ranks % h == 0 and (h == 1 or h < ranks)])
    if hosts > 1 and hardware.between_hosts is None:
        hardware = replace(hardware, between_hosts=slower(hardware.all_gather, dice.choice((1, 4, 10))))
    arguments: dict[str, Any] = {"hardware": hardware, "world_size": ranks, "hosts": hosts}
    if dice.random() < 0.7:
        arguments["batch_size"] = dice.choice((1, 2, 4, 8, 16))
    else:
        arguments["global_batch_size"] = ranks * dice.choice((4, 8, 12))
    least = least_memory(description, arguments)
    most = max(
        least, peak(osdp.search(description, memory=AMPLE, modes="NO_SHARD", checkpoint=False, **arguments))
    )
    limit = round(least * (most / least) ** dice.random())
    name = f"{number}: {layers} layers of {'/'.join(map(str, widths))}, {tokens} tokens, {machine}, {ranks} ranks on {hosts}"
    return Instance(name, machine, description, arguments, least, most, limit)


def slower(c: Collective, times: float) -> Collective:
    return Collective(c.alpha_s * times, c.beta_s_per_byte * times)


def perturbed(hardware: Hardware, dice: random.Random) -> Hardware:
    """The same with links, computation and what they take from each other moved by up to a factor of ten."""

    def moved(c: Collective) -> Collective:
        return Collective(
            c.alpha_s * 10 ** dice.uniform(-1, 1), c.beta_s_per_byte * 10 ** dice.uniform(-1, 1)
        )

    link, between = moved(hardware.all_gather), hardware.between_hosts
    return replace(
        hardware,
        all_gather=link,
        reduce_scatter=moved(link) if dice.random() < 0.3 else link,
        all_reduce=moved(link) if dice.random() < 0.3 else link,
        between_hosts=slower(link, dice.uniform(1, 10)) if between is not None else None,
        flops_per_s=hardware.flops_per_s * 10 ** dice.uniform(-0.5, 0.5),
        stolen_computation=dice.choice((0.0, dice.uniform(0, 0.6))),
        communication_delay=Collective(
            link.alpha_s * dice.choice((0, dice.random())),
            link.beta_s_per_byte * dice.choice((0, dice.random())),
        ),
    )


def least_memory(description: osdp.ModelDescription, arguments: dict[str, Any]) -> int:
    try:
        osdp.search(description, memory=0, **arguments)
    except InfeasibleError as e:
        assert e.smallest_limit is not None
        return e.smallest_limit
    return 1


def peak(plan: osdp.Plan) -> int:
    assert plan.predicted is not None
    return plan.predicted.peak_memory_bytes
