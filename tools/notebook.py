"""Writes examples/plan_gpt2_xl.ipynb from the cells in examples/plan_gpt2_xl.py, executed.

The script is the source: cells begin with a line "# %%" (code) or "# %% [markdown]". With --check, says whether the
notebook has the script's cells. tests/unit/examples/test_notebook.py executes it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "plan_gpt2_xl.py"
NOTEBOOK = SCRIPT.with_suffix(".ipynb")


def cells() -> list[tuple[str, str]]:
    """(kind, source) of the script's cells."""
    found: list[tuple[str, list[str]]] = []
    for line in SCRIPT.read_text().splitlines():
        if line.startswith("# %%"):
            found.append(("markdown" if "[markdown]" in line else "code", []))
        elif found:
            kind, lines = found[-1]
            lines.append(line.removeprefix("# ").removeprefix("#") if kind == "markdown" else line)
    return [(kind, "\n".join(lines).strip()) for kind, lines in found]


def make() -> Any:
    """The notebook, not executed."""
    book = nbformat.v4.new_notebook()
    for i, (kind, source) in enumerate(cells()):
        new = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        book.cells.append(new(source, id=f"cell-{i}"))
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


def execute(book: Any, timeout: int = 300) -> Any:
    """`book` with outputs, run by this Python in examples/, in lines of 100 characters wherever it is run."""
    client = NotebookClient(
        book, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(ROOT / "examples")}}
    )
    return client.execute(env={**os.environ, "COLUMNS": "100"})


def main() -> int:
    if "--check" in sys.argv[1:]:
        if (
            not NOTEBOOK.exists()
            or [(c.cell_type, c.source) for c in nbformat.read(NOTEBOOK, 4).cells] != cells()
        ):
            print(f"not current: {NOTEBOOK.name}; run tools/notebook.py and commit it")
            return 1
        return 0
    book = execute(make())
    for cell in book.cells:
        cell.metadata.clear()  # when each was run
        if cell.cell_type == "code":  # warnings name folders of the machine that ran it
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    book.metadata.pop("language_info", None)
    nbformat.write(book, NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
