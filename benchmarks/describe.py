"""Describing large models without their weights: seconds, and the most host memory the process held.

    python benchmarks/describe.py [--json FILE] [--repeat N]

Models of the transformers library (`pip install osdp[hf]`), built on the meta device from the configs below
(nothing is downloaded), described on one sequence of 2,048 tokens with labels. Each run is a process of its
own, which imports, builds and describes once; its memory is the peak resident set of the whole process. `cpu`
is the process's own time: less than the wall's where other processes wanted the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CONFIGS = {
    "GPT-2 XL": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 2048}),
    "OPT-30B": (
        "opt",
        {
            "vocab_size": 50272,
            "hidden_size": 7168,
            "num_hidden_layers": 48,
            "ffn_dim": 28672,
            "num_attention_heads": 56,
            "word_embed_proj_dim": 7168,
            "max_position_embeddings": 2048,
        },
    ),
    "Llama-3-70B": (
        "llama",
        {
            "vocab_size": 128256,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
    ),
}
TOKENS = 2048
MOST_SECONDS, MOST_GIB = 10, 2


def describe_once(name: str) -> dict[str, float]:
    """In a fresh process: build and describe the model; times in seconds, memory in bytes."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import resource
    import time

    import torch
    import transformers

    import osdp

    kind, options = CONFIGS[name]
    config = transformers.AutoConfig.for_model(kind, use_cache=False, **options)
    start = time.perf_counter()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    built = time.perf_counter()
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    cpu = time.process_time()
    description = osdp.describe(model, input_ids=ids, labels=ids)
    described, cpu = time.perf_counter(), time.process_time() - cpu
    parameters = sum(p.numel() for p in model.parameters())
    assert description.parameter_bytes == 2 * parameters
    return {
        "parameters": parameters,
        "parameter_bytes": description.parameter_bytes,
        "saved_bytes_per_sample": sum(o.saved_bytes_per_sample for o in description.operators),
        "flops_per_sample": sum(o.flops_per_sample for o in description.operators),
        "operators": len(description.operators),
        "blocks": len(description.blocks),
        "build_s": built - start,
        "describe_s": described - built,
        "describe_cpu_s": cpu,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure(name: str, repeat: int) -> dict[str, object]:
    runs = []
    for _ in range(repeat):
        command = [sys.executable, __file__, "--one", name]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    seconds = [r["describe_s"] for r in runs]
    return {
        "name": name,
        **{key: runs[0][key] for key in list(runs[0])[:6]},
        "median_describe_s": statistics.median(seconds),
        "max_describe_s": max(seconds),
        "median_describe_cpu_s": statistics.median(r["describe_cpu_s"] for r in runs),
        "median_build_s": statistics.median(r["build_s"] for r in runs),
        "max_peak_rss_bytes": max(r["peak_rss_bytes"] for r in runs),
        "runs": repeat,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", choices=CONFIGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(describe_once(arguments.one)))
        return 0
    print(
        f"{'model':12} {'parameters':>11} {'operators':>9} {'blocks':>6} {'saved/sample':>13} {'TFLOP':>7}",
        end="",
    )
    print(f" | {'median s':>8} {'max s':>6} {'cpu s':>6} {'peak memory':>12}")
    rows = []
    for name in CONFIGS:
        row = measure(name, arguments.repeat)
        rows.append(row)
        print(
            f"{name:12} {row['parameters'] / 1e9:9.2f} B {row['operators']:9} {row['blocks']:6}"
            f" {row['saved_bytes_per_sample'] / 2**30:9.2f} GiB {row['flops_per_sample'] / 1e12:7.1f}"
            f" | {row['median_describe_s']:8.2f} {row['max_describe_s']:6.2f} {row['median_describe_cpu_s']:6.2f}"
            f" {row['max_peak_rss_bytes'] / 2**30:8.2f} GiB",
            flush=True,
        )
    within = all(
        r["median_describe_s"] < MOST_SECONDS and r["max_peak_rss_bytes"] < MOST_GIB * 2**30 for r in rows
    )
    print(f"claim: under {MOST_SECONDS} s (median) and {MOST_GIB} GiB: {'yes' if within else 'NO'}")
    if arguments.json:
        machine = {"cores": os.cpu_count(), "load_1_5_15_min": os.getloadavg()}
        arguments.json.write_text(
            json.dumps({"models": rows, "machine": machine, "within": within}, indent=1) + "\n"
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
