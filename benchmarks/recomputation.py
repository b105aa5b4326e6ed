"""What recomputing a block costs the processor, over its second forward: by OSDP and by torch.utils.checkpoint.

    python benchmarks/recomputation.py [--json FILE] [--rounds N]

One block each of a T5's decoder, a GPT-2 and a Llama of transformers, 16 wide, whose arithmetic is nothing: what is left is
what the processor does for each operator and each tensor that is saved for backward. On a GPU that computes faster than its
host calls it, this is the step's time. All contestants take turns in every round; a figure is the median of the rounds, of
the processor time of this process.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table
from support.machine import machine, show
from torch import nn
from torch.utils.checkpoint import checkpoint

from osdp.sharding.recomputation import RecomputedBlock

STEPS = 10  # of one contestant in one round
SIZE: dict[str, Any] = {"vocab_size": 32, "use_cache": False}


def models() -> dict[str, tuple[nn.Module, Callable[[Any], nn.Module]]]:
    """Each with the way to its last block."""
    import transformers as t

    heads = {"num_hidden_layers": 2, "num_attention_heads": 4}
    t5 = t.T5Config(**SIZE, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0)
    gpt = t.GPT2Config(**SIZE, n_positions=8, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    llama = t.LlamaConfig(**SIZE, **heads, hidden_size=16, intermediate_size=32)
    return {
        "T5 (decoder)": (t.T5ForConditionalGeneration(t5), lambda m: m.decoder.block[-1]),
        "GPT-2": (t.GPT2LMHeadModel(gpt), lambda m: m.transformer.h[-1]),
        "Llama": (t.LlamaForCausalLM(llama), lambda m: m.model.layers[-1]),
    }


def call_of(model: nn.Module, block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the block in a forward of the model."""
    given: list[Any] = []
    hook = block.register_forward_pre_hook(lambda _, *call: given.append(call), with_kwargs=True)
    tokens = torch.randint(0, 32, (2, 4))
    model.train()(input_ids=tokens, labels=tokens)
    hook.remove()
    args, kwargs = given[0]
    first, *others = args
    return (first.detach().requires_grad_(), *others), kwargs


def count_saved(forward: Callable[..., Any], args: Any, kwargs: Any) -> int:
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        forward(*args, **kwargs)
    return len(saved)


def measure(model: nn.Module, block: nn.Module, rounds: int) -> dict[str, float]:
    (args, kwargs), forward = call_of(model, block), block.forward
    args = tuple(t.detach().requires_grad_() if is_float(t) else t for t in args)
    ours = RecomputedBlock("block", block)

    def first_of(output: Any) -> torch.Tensor:
        return output[0] if isinstance(output, tuple) else output

    gradient = torch.ones_like(first_of(forward(*args, **kwargs)))
    contestants: dict[str, Callable[[], Any]] = {
        "forward": lambda: forward(*args, **kwargs),
        "forward and backward": lambda: first_of(forward(*args, **kwargs)).backward(gradient),
        "torch": lambda: first_of(checkpoint(forward, *args, use_reentrant=False, **kwargs)).backward(
            gradient
        ),
        "OSDP": lambda: first_of(ours(*args, **kwargs)).backward(gradient),
    }
    names = list(contestants)
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()
    for turn in range(3 + rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = time.process_time()
            for _ in range(STEPS):
                contestants[name]()
            if turn >= 3:
                times[name].append((time.process_time() - begin) / STEPS)
        gc.collect()
    gc.enable()
    figures = {f"{name}_us": 1e6 * median(each) for name, each in times.items()}
    return {"saved": count_saved(forward, args, kwargs), **figures}


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def table_of(found: dict[str, dict[str, float]]) -> Table:
    table = Table(title="microseconds of the processor for one block", title_justify="left")
    for column in (
        "",
        "saved tensors",
        "forward",
        "forward and backward",
        "recomputed: torch",
        "OSDP",
        "over a second forward: torch",
        "OSDP",
        "per saved tensor: torch",
        "OSDP",
    ):
        table.add_column(column, justify="right" if column else "left")
    for name, row in found.items():
        least = row["forward_us"] + row["forward and backward_us"]
        over = [row[f"{who}_us"] - least for who in ("torch", "OSDP")]
        whole = [row[f"{what}_us"] for what in ("forward", "forward and backward", "torch", "OSDP")]
        cells = [f"{row['saved']:.0f}", *(f"{each:.0f}" for each in (*whole, *over))]
        table.add_row(name, *cells, *(f"{each / row['saved']:.1f}" for each in over))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    here = machine()
    found = {name: measure(model, way(model), arguments.rounds) for name, (model, way) in models().items()}
    show(table_of(found), here, {"rounds": arguments.rounds, "blocks": found}, arguments.json, width=125)


if __name__ == "__main__":
    main()
