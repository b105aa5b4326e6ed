"""What the example prints: rank 0 speaks; one progress line on a terminal, a few lines in a log."""

from __future__ import annotations

import sys
import time

from torch import distributed as dist


def say(text: str = "") -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def title(text: str) -> None:
    say(f"\n== {text}")


def size(number_of_bytes: float) -> str:
    return f"{number_of_bytes / 2**20:.1f} MiB"


class Progress:
    """One line: step, loss, characters per second, peak memory."""

    def __init__(self, steps: int, characters_per_step: int) -> None:
        self.steps, self.characters = steps, characters_per_step
        self.start = time.perf_counter()
        self.terminal = sys.stdout.isatty()
        self.every = max(1, steps // 10)

    def show(self, step: int, loss: float, peak_memory_bytes: int | None = None) -> None:
        """After step `step` (the first is 1)."""
        if dist.get_rank() != 0:
            return
        rate = self.characters * step / (time.perf_counter() - self.start)
        memory = f"   peak memory {size(peak_memory_bytes)}" if peak_memory_bytes is not None else ""
        line = f"step {step:4d}/{self.steps}   loss {loss:.4f}   {rate:6.0f} tokens/s{memory}"
        if self.terminal:
            print(f"\r{line}", end="\n" if step == self.steps else "", flush=True)
        elif step == 1 or step % self.every == 0 or step == self.steps:
            print(line, flush=True)
