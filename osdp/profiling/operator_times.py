"""gamma: measures the seconds of every operator, forward and backward, on the real model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from osdp.base.kept_state import generators_kept, untouched
from osdp.base.tensor_trees import batch_of, tensors_in, with_batch
from osdp.hardware.device_timer import Timeline, synchronize
from osdp.profiling.machine_speed import warm_ups


@dataclass(frozen=True)
class Gamma:
    """Operator name -> seconds: forward + backward per sample and per batch, and forward alone per sample."""

    per_sample_s: dict[str, float]
    fixed_s: dict[str, float]
    forward_s: dict[str, float]


def measure_gamma(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    operators: Mapping[str, Hashable],
    device: torch.device,
    seconds: float,
) -> Gamma:
    """Measure the operators' times in real steps on the sample, with two batch sizes.

    `operators` maps the names of operators (which are names of modules) to a value that is equal for
    operators that do the same work: they get the same times. Parameters, gradients, buffers, plain attributes
    of modules and random number generators are restored; hooks on gradients
    (`register_post_accumulate_grad_hook`) do not run.
    """
    # Note [Parts that add up]
    # Hooks cost time, and parts of a step belong to no operator (residual additions, the engine between two
    # nodes). So the whole step is timed without hooks, and the operators' times are scaled to add up to it,
    # which distributes the rest in proportion. The two batch sizes determine the part that does not grow with
    # the batch. Single operators are short and easily disturbed on a busy machine, so each gets its lower
    # quartile, averaged over operators that are alike.
    batch = batch_of((args, kwargs))
    small, large = (batch // 2, batch) if batch >= 4 else (batch, 2 * batch)
    samples = {b: with_batch((args, kwargs), b) for b in (small, large)}
    whole: dict[int, list[tuple[float, float]]] = {small: [], large: []}  # (forward, backward)
    parts: dict[int, list[tuple[dict[str, float], dict[str, float]]]] = {small: [], large: []}
    with untouched(model), generators_kept(device):
        end = time.perf_counter() + seconds
        first = warm_ups(device)
        for count in range(40):
            if count > first + 1 and time.perf_counter() > end:
                break
            for b, (a, k) in list(samples.items()):
                try:
                    times = run_step(model, a, k, device)
                except Exception:
                    if b == batch or count:
                        raise
                    # This size does not work (BatchNorm of one sample): use only the sample's own.
                    del samples[b]
                    continue
                detail = _detailed_step(model, a, k, device, operators)
                if count >= first:  # earlier ones are warm-up
                    whole[b].append(times)
                    parts[b].append(detail)
    return _combine(operators, batch, {b: whole[b] for b in samples}, {b: parts[b] for b in samples})


def enqueue_step(model: nn.Module, args: Any, kwargs: Any) -> None:
    """Enqueue a forward and a backward without waiting; gradients do not change."""
    with torch.enable_grad():
        _backward(model, differentiable(model(*args, **kwargs)))


def run_step(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> tuple[float, float]:
    """Run a forward and a backward; gradients do not change. Returns the seconds of each."""
    synchronize(device)
    begin = time.perf_counter()
    with torch.enable_grad():
        outputs = differentiable(model(*args, **kwargs))
    synchronize(device)
    between = time.perf_counter()
    _backward(model, outputs)
    synchronize(device)
    return between - begin, time.perf_counter() - between


def _detailed_step(
    model: nn.Module, args: Any, kwargs: Any, device: torch.device, operators: Collection[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by operator of one forward and of one backward."""
    watch = _StepWatch(model, device, operators)
    try:
        with torch.enable_grad():
            outputs = differentiable(model(*args, **kwargs))
        forward = watch.seconds()
        watch.watch_backward()
        _backward(model, outputs)
        return forward, watch.seconds()
    finally:
        watch.remove()


def differentiable(outputs: Any) -> list[torch.Tensor]:
    found = [t for t in tensors_in(outputs) if t.requires_grad]
    if not found:
        raise RuntimeError(
            "no output of the model depends on a trainable parameter, so there is no backward to measure"
        )
    return list({id(t): t for t in found}.values())


def _backward(model: nn.Module, outputs: list[torch.Tensor]) -> None:
    # autograd.grad, not backward: .grad does not change, and hooks that expect a real training step do not
    # run.
    inputs = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(outputs, inputs, [torch.ones_like(t) for t in outputs], allow_unused=True)


class _StepWatch:
    """Times of one step by operator, from hooks on modules (forward) and on autograd nodes (backward)."""

    # Note [Whose node]
    # An autograd node belongs to the module that ran when it was created. When a module is entered, the nodes
    # behind its inputs without an owner are attributed to its caller; when it is left, those behind its
    # outputs are attributed to it. Nodes that are not reachable from any module's input or output (a cached
    # tensor) have no owner, and their time is distributed over all.

    def __init__(self, model: nn.Module, device: torch.device, operators: Collection[str]) -> None:
        self._device = device
        self._timeline = Timeline(device)
        self._stack: list[str | None] = [None]
        self._owner: dict[Any, str | None] = {}  # autograd node -> operator
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            owner = name if name in operators else None
            self._handles.append(
                module.register_forward_pre_hook(self._enter(owner), prepend=True, with_kwargs=True)
            )
            self._handles.append(module.register_forward_hook(self._leave()))

    def seconds(self) -> dict[str, float]:
        """Seconds by operator since the last call, without time that has no owner."""
        result = {owner: s for owner, s in self._timeline.seconds().items() if owner is not None}
        self._timeline = Timeline(self._device)
        return result

    def watch_backward(self) -> None:
        for node, owner in self._owner.items():
            self._handles.append(node.register_prehook(lambda _: self._timeline.stamp(None)))
            self._handles.append(node.register_hook(self._after_node(owner)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._owner.clear()

    def _enter(self, owner: str | None) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._timeline.stamp(self._stack[-1])
            self._claim((args, kwargs), self._stack[-1])
            self._stack.append(owner)
            self._timeline.stamp(None)

        return hook

    def _leave(self) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, outputs: Any) -> None:
            self._timeline.stamp(self._stack[-1])
            self._claim(outputs, self._stack.pop())
            self._timeline.stamp(None)

        return hook

    def _claim(self, tensors: Any, owner: str | None) -> None:
        pending = [t.grad_fn for t in tensors_in(tensors) if t.grad_fn is not None]
        while pending:
            node = pending.pop()
            if node in self._owner or hasattr(node, "variable"):  # AccumulateGrad does not run here
                continue
            self._owner[node] = owner
            pending += [following for following, _ in node.next_functions if following is not None]

    def _after_node(self, owner: str | None) -> Callable[..., None]:
        def hook(inputs: Any, outputs: Any) -> None:
            self._timeline.stamp(owner)

        return hook


def _combine(
    alike: Mapping[str, Hashable],
    batch: int,
    whole: Mapping[int, list[tuple[float, float]]],
    parts: Mapping[int, list[tuple[dict[str, float], dict[str, float]]]],
) -> Gamma:
    forward: dict[int, dict[str, float]] = {}
    both: dict[int, dict[str, float]] = {}
    for b, details in parts.items():
        names = sorted({name for f, g in details for name in (*f, *g)})
        f = _evened({n: _quartile([d[0].get(n, 0.0) for d in details]) for n in names}, alike)
        g = _evened({n: _quartile([d[1].get(n, 0.0) for d in details]) for n in names}, alike)
        forward[b] = _scaled(f, statistics.median(t[0] for t in whole[b]))
        backward = _scaled(g, statistics.median(t[1] for t in whole[b]))
        both[b] = {n: forward[b].get(n, 0.0) + backward.get(n, 0.0) for n in names}
    small, large = min(both), max(both)
    total_small, total_large = sum(both[small].values()), sum(both[large].values())
    per_sample, fixed = _line(small, total_small, large, total_large)
    rows = {n: _line(small, both[small].get(n, 0.0), large, both[large].get(n, 0.0)) for n in both[large]}
    slopes, offsets = {n: r[0] for n, r in rows.items()}, {n: r[1] for n, r in rows.items()}
    return Gamma(
        per_sample_s=_scaled(slopes, per_sample),
        fixed_s=_scaled(offsets if any(offsets.values()) else both[large], fixed),
        # At the sample's own size, since a forward's time is not proportional to the batch size.
        forward_s={n: t / batch for n, t in forward[batch].items()},
    )


def _quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def _evened(times: Mapping[str, float], alike: Mapping[str, Hashable]) -> dict[str, float]:
    """`times`, averaged over operators that do the same work."""
    groups: dict[Hashable, list[float]] = {}
    for name, t in times.items():
        groups.setdefault(alike[name], []).append(t)
    return {name: statistics.mean(groups[alike[name]]) for name in times}


def _line(small: int, at_small: float, large: int, at_large: float) -> tuple[float, float]:
    """(slope, offset), neither negative, through the point at `large` and, where that allows, the one at
    `small`.
    """
    slope = (at_large - at_small) / (large - small) if large > small else at_large / large
    slope = min(max(0.0, slope), at_large / large)
    return slope, max(0.0, at_large - slope * large)  # which rounds to less than zero


def _scaled(parts: Mapping[str, float], total: float) -> dict[str, float]:
    present = sum(parts.values())
    return {name: part * total / present if present else 0.0 for name, part in parts.items()}
