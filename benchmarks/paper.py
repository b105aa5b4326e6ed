"""The paper's experiments (OSDP, IJCAI 2023) by one command, its figures beside ours.

    python benchmarks/paper.py [--stored] [--links] [--only "N&D"] [--workers 2]

Plans are searched and steps are simulated, on figures of the authors' machines: nothing here is a measured step (those are
step.py's). Models, batches and limits are the authors' where their paper or code says so (support/paper/models.py and
settings.py); the paper's own figures are in paper_figures.json, each with where it stands and what it is against. Written:
results/paper.json, results/paper.md and docs/paper.svg; results_page.py puts them into docs/results.md.
--stored: prints and draws what is stored, without a search. --links: the same, but for the table by link, which is searched
anew (a minute).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from support.machine import machine
from support.paper.instance import measured
from support.paper.links import MODELS as OF_LINKS
from support.paper.links import by_link
from support.paper.models import MODELS, shapes
from support.paper.page import page
from support.paper.picture import draw
from support.paper.scale import at_scale, published
from support.paper.settings import SETTINGS

RESULTS = Path(__file__).parent / "results"


def rows(only: str, workers: int) -> Iterator[dict[str, Any]]:
    """Of all models in all settings; the slowest first, so that no worker ends alone."""
    chosen = [(m, s) for m in sorted(MODELS, key=lambda m: -len(MODELS[m])) for s in SETTINGS if only in m]
    with ProcessPoolExecutor(workers) as pool:
        for began in [(m, s, pool.submit(measured, m, s)) for m, s in chosen]:
            print(f"{began[0]}, {began[1].name}", file=sys.stderr, flush=True)
            yield began[2].result()


def links(only: str, workers: int) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(workers) as pool:
        return [row for of_model in pool.map(by_link, [m for m in OF_LINKS if only in m]) for row in of_model]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--only", default="", help="part of a model's name; nothing is stored then")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.stored or given.links:
        found = json.loads((RESULTS / "paper.json").read_text())
        if given.links:
            found["links"] = links(given.only, given.workers)
    else:
        began = time.perf_counter()
        order = list(MODELS)
        searched = sorted(rows(given.only, given.workers), key=lambda r: order.index(r["model"]))
        with ProcessPoolExecutor(given.workers) as pool:
            beside, scale = pool.submit(published), pool.submit(at_scale)
            found = {"rows": searched, "published": beside.result(), "scale": scale.result()}
        found |= {"models": shapes(), "links": links(given.only, given.workers)}
        found |= {"machine": machine(), "wall_s": time.perf_counter() - began, "workers": given.workers}
    text = page(found)
    print(text)
    if not given.only:
        (RESULTS / "paper.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "paper.md").write_text(text + "\n")
        draw(found, RESULTS.parents[1] / "docs" / "paper.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
