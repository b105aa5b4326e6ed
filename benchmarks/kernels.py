"""What one GPU's kernels reach, beside what a machine that was not measured is assumed to reach.

    python benchmarks/kernels.py [--json results/kernels-NAME.json] [--quick]     on a machine with a GPU
    python benchmarks/kernels.py --compare results/kernels-NAME.json MACHINE      anywhere

Measured are products as a linear layer's forward and backward call them, by width and in slices; attention, forward and
backward; kernels that only move memory; launches; AdamW; and forward with backward of whole decoders (support/mpt.py) in
bf16, seconds and the allocator's peak. `--compare` prints each beside its price by the roofline of the shipped machine
MACHINE (osdp/planning/kernel_times.py). Nothing here communicates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

Row = dict[str, Any]
WIDTHS = (768, 1024, 1536, 2048, 2560, 4096, 5120, 7168, 8192)
SLICES = (1, 2, 4, 8, 16)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
# layers, width, heads, tokens a sequence, sequences: as published runs have them, and a few blocks of larger ones.
DECODERS = (
    *((12, 768, 12, 2048, 8), (24, 1024, 16, 2048, 8), (24, 1536, 12, 2048, 8), (24, 2048, 16, 2048, 8)),
    *((24, 2048, 16, 512, 8), (24, 2048, 16, 2048, 1), (24, 2048, 16, 8192, 1), (32, 2560, 20, 2048, 4)),
    *((8, 4096, 32, 2048, 4), (4, 8192, 64, 2048, 4)),
)
VOCABULARY = 50368


class Clock:
    """Seconds of a call, of many in a row: the median of three rounds."""

    def __init__(self, device: torch.device, quick: bool) -> None:
        self.device, self.round_s = device, 0.002 if quick else 0.02

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def of(self, call: Callable[[], Any]) -> float:
        call()
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        calls = max(1, min(200, int(self.round_s / (time.perf_counter() - begin))))
        rounds = []
        for _ in range(3):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            self.wait()
            rounds.append((time.perf_counter() - begin) / calls)
        return statistics.median(rounds)

    def replayed(self, call: Callable[[], Any]) -> float:
        """The same without the host's part: from a graph."""
        if self.device.type != "cuda":
            return self.of(call)
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            call()
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        calls = max(1, min(20, int(0.005 / (time.perf_counter() - begin))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return self.of(graph.replay) / calls


def products(clock: Clock, new: Callable[..., Tensor], quick: bool) -> Iterator[Row]:
    for width in WIDTHS[:1] if quick else WIDTHS:
        for tokens in (256,) if quick else (2048, 16384):
            shapes = {(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)}
            for outputs, inputs in sorted(shapes):
                yield from _products(clock, new, tokens, inputs, outputs)
    for slices in SLICES[1:2] if quick else SLICES[1:]:
        for width in (1024,) if quick else (1024, 4096, 8192):
            yield from _products(clock, new, 4096, width, 4 * width // slices)
    if not quick:
        yield from _products(clock, new, 8192, 2048, VOCABULARY)
        yield from _products(clock, new, 8192, 8192, 8192)


def _products(
    clock: Clock, new: Callable[..., Tensor], tokens: int, inputs: int, outputs: int
) -> Iterator[Row]:
    x, weight, gradient = new(tokens, inputs), new(outputs, inputs), new(tokens, outputs)
    for what, call in {
        "forward": lambda: x @ weight.T,
        "input": lambda: gradient @ weight,
        "weight": lambda: gradient.T @ x,
    }.items():
        seconds = clock.replayed(call)
        yield {
            "kind": "product",
            "of": what,
            "tokens": tokens,
            "inputs": inputs,
            "outputs": outputs,
            "seconds": seconds,
            "flops_per_s": 2 * tokens * inputs * outputs / seconds,
        }


def attention(clock: Clock, new: Callable[..., Tensor], quick: bool) -> Iterator[Row]:
    for length in LENGTHS[:1] if quick else LENGTHS:
        for inner in (64, 128):
            yield from _attention(
                clock, new, *((1, 2) if quick else (32768 // length, 2048 // inner)), length, inner
            )


def _attention(
    clock: Clock, new: Callable[..., Tensor], batch: int, heads: int, length: int, inner: int
) -> Iterator[Row]:
    """Causal; flops are those of the half that runs, and of 2.5 forwards in the backward."""
    query, key, value = inputs = tuple(new(batch, heads, length, inner).requires_grad_() for _ in range(3))

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    with torch.no_grad():
        forward_s = clock.of(forward)
    out = forward()
    gradient = torch.randn_like(out)
    backward_s = clock.of(lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True))
    flops = 2 * batch * heads * length * length * inner
    for what, seconds, factor in (("forward", forward_s, 1), ("backward", backward_s, 2.5)):
        yield {
            "kind": "attention",
            "of": what,
            "length": length,
            "heads": heads,
            "inner": inner,
            "batch": batch,
            "seconds": seconds,
            "flops_per_s": factor * flops / seconds,
        }


def movers(clock: Clock, new: Callable[..., Tensor], quick: bool) -> Iterator[Row]:
    for rows, width in ((64, 256),) if quick else ((2048, 1024), (8192, 2048), (16384, 4096), (16384, 16384)):
        yield from _movers(clock, new(rows, width), new(rows, width), new(width), new(width))


def _movers(clock: Clock, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Iterator[Row]:
    """Kernels that only move memory: bytes are those of inputs and outputs, each once."""
    rows, width = x.shape
    own = x.numel() * x.element_size()
    aten = torch.ops.aten
    mean, inverse = aten.native_layer_norm(x, (width,), weight, bias, 1e-5)[1:]
    norm = (y, x, (width,), mean, inverse, weight, bias, (True, True, True))
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "add": (lambda: x + y, 3 * own),
        "gelu": (lambda: F.gelu(x), 2 * own),
        "gelu's backward": (lambda: aten.gelu_backward(y, x), 3 * own),
        "silu": (lambda: F.silu(x), 2 * own),
        "layer norm": (lambda: F.layer_norm(x, (width,), weight, bias), 2 * own),
        "layer norm's backward": (lambda: aten.native_layer_norm_backward(*norm), 5 * own),  # two kernels
        "transposed copy": (lambda: x.view(rows // 16, 16, -1, 64).transpose(1, 2).contiguous(), 2 * own),
        "cast to fp32": (lambda: x.float(), 3 * own),
        "softmax": (lambda: x.softmax(-1), 2 * own),
        "fill": (lambda: x.zero_(), own),
    }
    for what, (call, moved) in calls.items():
        seconds = clock.replayed(call)
        yield {
            "kind": "mover",
            "of": what,
            "rows": rows,
            "width": width,
            "seconds": seconds,
            "bytes_per_s": moved / seconds,
        }


def launches(clock: Clock, new: Callable[..., Tensor]) -> Iterator[Row]:
    x = new(16)
    small, weight = new(64, 64).requires_grad_(), new(64, 64).requires_grad_()
    yield {"kind": "launch", "of": "add, from the host", "seconds": clock.of(lambda: x + x)}
    yield {"kind": "launch", "of": "add, from a graph", "seconds": clock.replayed(lambda: x + x)}
    yield {
        "kind": "launch",
        "of": "linear with autograd",
        "seconds": clock.of(lambda: F.linear(small, weight)),
    }


def optimizers(clock: Clock, device: torch.device, quick: bool) -> Iterator[Row]:
    for tensors, elements in ((4, 1000),) if quick else ((100, 2**16), (100, 2**20), (40, 2**24)):
        parameters = [nn.Parameter(torch.zeros(elements, device=device)) for _ in range(tensors)]
        for p in parameters:
            p.grad = torch.ones_like(p)
        for fused in (True, False):
            optimizer = torch.optim.AdamW(parameters, fused=fused, foreach=not fused)
            seconds = clock.of(optimizer.step)
            moved = 28 * tensors * elements
            yield {
                "kind": "optimizer",
                "of": "AdamW, fused" if fused else "AdamW, foreach",
                "parameters": tensors * elements,
                "seconds": seconds,
                "bytes_per_s": moved / seconds,
            }


def decoders(clock: Clock, device: torch.device, quick: bool) -> Iterator[Row]:
    from support.mpt import MPT

    for layers, width, heads, length, batch in ((2, 128, 2, 64, 2),) if quick else DECODERS:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        with device:
            model = MPT(layers, width, heads, VOCABULARY, length).to(torch.bfloat16)
            tokens = torch.randint(VOCABULARY, (batch, length))
        halves: list[list[float]] = [[], []]

        def half(which: int, begin: float, into: list[list[float]] = halves) -> float:
            clock.wait()
            now = time.perf_counter()
            into[which].append(now - begin)
            return now

        for _ in range(3 if quick else 7):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            clock.wait()
            begin = time.perf_counter()
            loss = model(tokens, tokens)
            begin = half(0, begin)
            loss.backward()
            half(1, begin)
            model.zero_grad()
        row = {
            "kind": "decoder",
            "layers": layers,
            "width": width,
            "heads": heads,
            "length": length,
            "batch": batch,
            "forward_s": statistics.median(halves[0][2:]),
            "backward_s": statistics.median(halves[1][2:]),
        }
        if device.type == "cuda":
            row["allocated_bytes"] = torch.cuda.max_memory_allocated()
            row["reserved_bytes"] = torch.cuda.max_memory_reserved()
            row["parameter_bytes"] = 2 * sum(p.numel() for p in model.parameters())
        yield row
        del model, loss


def measure(device: torch.device, quick: bool) -> Row:
    clock = Clock(device, quick)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    rows: list[Row] = []
    for found in (
        decoders(clock, device, quick),  # first: what others leave in the allocator is not theirs
        launches(clock, new),
        products(clock, new, quick),
        attention(clock, new, quick),
        movers(clock, new, quick),
        optimizers(clock, device, quick),
    ):
        rows += found
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return {"gpu": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="a few small shapes: that it runs, also on a CPU"
    )
    parser.add_argument("--compare", nargs=2, metavar=("FILE", "MACHINE"))
    a = parser.parse_args()
    if a.compare:
        from support.kernel_prices import compare

        compare(json.loads(Path(a.compare[0]).read_text()), a.compare[1])
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = measure(device, a.quick)
    if a.json:
        head = {name: value for name, value in found.items() if name != "rows"}
        lines = ",\n".join("  " + json.dumps(row) for row in found["rows"])
        a.json.write_text(json.dumps(head)[:-1] + ', "rows": [\n' + lines + "\n]}\n")
    else:
        for row in found["rows"]:
            print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
