"""All of paper.py's tables with what they compare, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.machine import machine_line
from support.paper import scale_tables, search_tables, strategy_tables
from support.paper.headlines import headline_rows
from support.paper.links import links
from support.paper.markdown import table
from support.paper.settings import LARGE

RULES = f"""\
Plans are searched and steps simulated on figures of the authors' machines (`rtx-titan-8`, fitted to the authors' own
measurements; `a100-2x8`, assumed); nothing here is a measured step. Models are minGPT as in the authors' code, fp32,
AdamW, dropout, described on fake tensors. One unit is 96 sequences of 6 tokens with a vocabulary of 10: what
`train_gpt2_osdp.py` trains on (`--vocab_size` is never used), and the batch that its scheduler counts in. What is compared
with what:

- **1 to 3 units** (the authors' cap): each column has the best of one, two and three units a rank and step. DP, FSDP,
  OSDP-base and OSDP take them in one pass, as the authors' script does. GPipe, TP, 3D and 3D+OSDP take as many samples a
  step, in the micro-batches that each likes best, a unit at least (the machine's figures say nothing of less). Where
  3D+OSDP is compared with DP and FSDP, these have micro-batches, too.
- **Free batch**: one pass of as many units as are fastest. **{LARGE} units**: a rank and step, the same for all columns,
  in micro-batches.
- DP is NO_SHARD; FSDP is FULL_SHARD in our runtime, whose gathers run ahead as far as memory allows; OSDP-base is every
  mode without slices; OSDP has slices of 2, 4, 8 and 16 (the paper: 4). The paper's DP mode of an operator is our
  SHARD_GRAD_OP: its optimizer state is sharded. Tensor parallelism stays inside a server; on two servers TP is 8 in each,
  DP between them. 3D is tensor x pipeline x NO_SHARD, each degree, schedule (1F1B or GPipe), cut and micro-batch searched;
  GPipe one stage a rank, in its own schedule.
- Recomputation is off unless a table says otherwise. OOM: nothing fits. N/A: fewer parts of the model than stages.
- Two servers: HYBRID_SHARD (sharded inside a server, replicated between them) and FULL_SHARD_HPZ (sharded over both,
  gathered between them once a step) are among OSDP's modes and not among FSDP's, which was FairScale's; against FSDP that
  has them, too, there is a headline of its own.
"""

TITLES = {
    "headlines": (
        "The paper's headlines",
        "By how much ours is faster, over the baselines that the paper names. A cell is a model, a setting and a baseline "
        "that both fit; the paper's figures, with where each stands: `benchmarks/paper_figures.json`.",
    ),
    "regimes": (
        "OSDP over FSDP, by batch",
        "Mean, least and most over models and both limits, without recomputation unless said.",
    ),
    "recomputation": (
        "OSDP over FSDP with recomputation",
        '"Gathers again": for each recomputed block, as FairScale does and the paper says of FSDP. "Kept": from the '
        "recomputation to the backward, which FSDP2 does for units of whole blocks.",
    ),
    "links": (
        "OSDP over FSDP, by link",
        "The same machine, model and 16 GB, with the bandwidth of its link varied: on one server of all collectives, on two "
        "of what is between them. Without recomputation unless said. The gain is the communication that FSDP repeats and "
        "that computation does not hide: it is real where links are slow and a batch is given, and a few percent on links "
        "of four times the bandwidth. On two servers it is that of modes which keep gathers inside a server, unless FSDP "
        "has them, too.",
    ),
    "models": (
        "The models",
        "The paper gives ranges for each family. It counts two operators a block, here each module with parameters is one.",
    ),
    "smaller": (
        "Where a larger space gave a slower plan",
        "By more than 0.1%: a fault of the search, not a result.",
    ),
    "scale": (
        "64 to 4,096 ranks",
        "Tokens per second and rank, predicted: H100 of 80 GB, 8 a host, bf16 with fp32 reductions, all with the same "
        "tokens a step. DP, FSDP, TP, PP and 3D have uniform plans.",
    ),
    "published": (
        "Published steps beside predictions of the same plans",
        "What explains the differences: Megatron's pipelines were interleaved and are played as 1F1B; torchtitan's two "
        "larger runs compute in float8, whose rate is assumed, and were compiled (`benchmarks/published_3d.py`).",
    ),
}
HEAD = ("ours", "over", "the paper", "here", "cells", "fits, and theirs does not", "reaches the paper's")


def section(title: str, lines: list[str], said: str = "") -> list[str]:
    return [f"## {title}", "", *([said, ""] if said else []), *lines]


def titled(name: str, lines: list[str]) -> list[str]:
    title, said = TITLES[name]
    return section(title, lines, said)


def sections(found: Mapping[str, Any], whole: bool) -> list[str]:
    """`whole`: with the long tables, too."""
    rows = found["rows"]
    lines = titled("headlines", table(HEAD, headline_rows(rows)))
    lines += titled("regimes", strategy_tables.regimes(rows))
    lines += titled("recomputation", strategy_tables.recomputation(rows))
    if "links" in found:
        lines += titled("links", links(found["links"]))
    lines += titled("models", strategy_tables.models(found["models"]))
    lines += section("All strategies, 1 to 3 units, sequences/s", strategy_tables.capped(rows))
    if whole:
        lines += section(
            f"All strategies, {LARGE} units a rank and step, sequences/s", strategy_tables.large(rows)
        )
        lines += section("Splitting alone: OSDP over OSDP-base", strategy_tables.splitting(rows))
    said = (
        f"The paper's search took 9 to 307 s. Ours for OSDP, from a description to the plan with its certificate, "
        f"{search_tables.search_times(rows)} ({found['workers']} searches at once, load {found['machine']['load']:.0f} on "
        f"{found['machine']['cores']} cores). Algorithm 1 under the paper's costs, slices of 4, stopped after 10 s; its "
        "operators are six a block and not two as the paper counts, so it has more to decide."
    )
    lines += section("Search time and Algorithm 1", search_tables.algorithm(rows), said)
    lines += titled("smaller", search_tables.smaller_is_faster(rows))
    lines += titled("scale", scale_tables.scale(found["scale"]))
    lines += titled("published", scale_tables.published(found["published"]))
    return lines


def took(found: Mapping[str, Any]) -> str:
    minutes, workers = found["wall_s"] / 60, found["workers"]
    return f"Took {minutes:.0f} minutes with {workers} workers ({machine_line(found['machine'])})."


def page(found: Mapping[str, Any]) -> str:
    return "\n".join(["# The paper's experiments", "", RULES, took(found), "", *sections(found, whole=True)])
