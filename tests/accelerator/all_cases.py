"""Every way of training, among two and four ranks: in check mode, with reductions on a lane of their own too, and on streams
that run late, at three delays. The tests run some of these; all of them take about a quarter of an hour.

python all_cases.py [--world 4 ...] [--late 1:100 ...] [CASE...]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import cases
import run_ranks
from test_asynchronous_streams import Told, in_order, judge

LATE = ["1:100", "2:200", "3:400"]  # seed, longest delay of an operator in us


def wrong_in(told: Told, like: Told | None) -> dict[str, str]:
    """Case -> what is wrong with it. `like`: the numbers that it must have, to the bit; None: the CPU's."""
    wrong = {}
    for name, ranks in told.items():
        try:
            judge({name: ranks}, 1e-6) if like is None else in_order({name: ranks})
            if like is not None and name in like:
                assert [r["losses"] for r in ranks] == [r["losses"] for r in like[name]], (
                    f"{name}: other numbers"
                )
        except AssertionError as error:
            wrong[name] = str(error)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--world", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--late", nargs="*", default=LATE)
    parser.add_argument("cases", nargs="*", default=list(cases.CASES))
    given = parser.parse_args()
    failed = 0
    for world in given.world:
        checked: Told | None = None
        runs: list[tuple[str, dict[str, Any]]] = [("check", {}), ("check", {"SEPARATE_REDUCTIONS": "1"})]
        runs += [(f"async:{late}", {}) for late in given.late]
        for how, environment in runs:
            begin = time.monotonic()
            told = run_ranks.run_cases(given.cases, f"ordered:{how}", world, timeout_s=600, **environment)
            wrong = wrong_in(told, checked)
            checked = checked or told
            apart = ", reductions apart" if environment else ""
            print(
                f"{world} ranks, {how}{apart}: {len(told) - len(wrong)} of {len(told)} cases right, ", end=""
            )
            print(f"{time.monotonic() - begin:.0f} s", flush=True)
            for text in wrong.values():
                print("   ", text.replace("\n", "\n    ")[:2000])
            failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
