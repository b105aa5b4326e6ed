"""Writes osdp/schemas/*.schema.json (in the wheel) from the dataclasses; with --check, says whether they are current.

Run by `make format`; tests/unit/base/test_schema.py checks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from osdp.base.schema import json_schema
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.parallel_plan import ParallelPlan
from osdp.plan.plan import Plan

KINDS: dict[str, type] = {
    "plan": Plan,
    "parallel-plan": ParallelPlan,
    "description": ModelDescription,
    "hardware": Hardware,
}
SCHEMAS = Path(__file__).resolve().parent.parent / "osdp" / "schemas"


def generate() -> dict[Path, str]:
    """Path -> text of every published schema."""
    return {
        SCHEMAS / f"{kind}.schema.json": json.dumps(
            json_schema(kind, cls, f"osdp:{kind}.schema.json"), indent=1
        )
        + "\n"
        for kind, cls in KINDS.items()
    }


def main() -> int:
    stale = [path for path, text in generate().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        if stale:
            print(f"not current: {', '.join(path.name for path in stale)}; run `make format` and commit them")
        return bool(stale)
    for path in stale:
        path.write_text(generate()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
