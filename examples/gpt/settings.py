"""What the two scripts of the example can be told, and its defaults: 3.2 million parameters, 2 minutes on 2 cores."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128  # characters
    batch: int = 4  # sequences per rank and step
    steps: int = 200  # fewer where they would take longer than `seconds`
    seconds: float = 40.0  # of training
    compare: int = 10  # steps that DistributedDataParallel takes too; at most the warm-up
    learning_rate: float = 1e-3
    seed: int = 1234
    text: str = ""  # a file; empty: the source of Python's standard library
    out: str = "demo-out"

    @property
    def directory(self) -> Path:
        return Path(self.out)


def parse() -> Settings:
    """The settings, from the command line: --layers 6 --text FILE ..."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, default in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return Settings(**vars(parser.parse_args()))
