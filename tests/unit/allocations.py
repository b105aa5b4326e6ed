"""Memory as torch's own allocation events report it."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that `run` held at once, beyond what was there before (this thread's allocations)."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        kept = run()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    del kept
    assert peak > 0
    return peak
