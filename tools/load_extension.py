"""Loads a built extension module without its package: every symbol must be found in this torch, a CUDA build.

python tools/load_extension.py build/cuda
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import torch


def main(folder: Path) -> int:
    (library,) = folder.glob("_C*.so")
    loader = importlib.machinery.ExtensionFileLoader("_C", str(library))
    spec = importlib.util.spec_from_loader("_C", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    print(f"{library.name} loads with torch {torch.__version__}, CUDA {torch.version.cuda}")
    return 0 if torch.version.cuda else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
