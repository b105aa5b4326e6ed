"""The smallest memory limit of models with large vocabularies, with and without their tables in slices; and their speed.

    python benchmarks/vocabulary.py [--json FILE] [--llama]
    python benchmarks/vocabulary.py --speed [--json FILE]

The paper's wide and shallow models with GPT-2's 50,257 words, on 8 RTX TITAN (no process group, no weights). `--llama`:
Llama-3-8B of the transformers library on 8 H100 in bf16, too, one sequence of 2,048 tokens. "whole": the same description in
which no Embedding, nor a head that it is tied to, can be computed in slices. `--speed`: samples/s of the wide models of
paper.py with Llama-3's 128,256 words and 512 tokens, in its settings of 16 GB, free batch, without recomputation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import describe as described_models
import planner
import torch
from support.paper import cells, instance, models, settings

import osdp
from osdp.description.model_description import ModelDescription

GIB = 2**30


def tables_whole(description: ModelDescription) -> ModelDescription:
    return dataclasses.replace(
        description,
        operators=tuple(
            dataclasses.replace(o, split_shape=None, look_ups=()) if o.look_ups else o
            for o in description.operators
        ),
    )


def smallest_gib(description: ModelDescription, hardware: str, **options: object) -> float:
    """Of any batch: asked for by a limit that nothing keeps."""
    try:
        osdp.search(description, memory="1MiB", world_size=8, hardware=hardware, **options)
    except osdp.InfeasibleError as error:
        return float(error.smallest_limit) / GIB
    raise SystemExit("a model fits into 1 MiB")


def llama() -> ModelDescription:
    import transformers

    kind, options = described_models.CONFIGS["Llama-3-8B"]
    config = transformers.AutoConfig.for_model(kind, use_cache=False, **options)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tokens = torch.zeros(1, 2048, dtype=torch.long)
    return osdp.describe(model, tokens, labels=tokens, precision="bf16")


def speeds() -> list[dict[str, object]]:
    """In samples/s over all ranks; None where nothing fits."""
    text, rows = models.Text("Llama-3's words", 128256, 512, 1), []
    for setting in (s for s in settings.SETTINGS if s.gib == 16):
        for model in (m for m in models.MODELS if m.startswith("W&S")):
            d = models.description(model, text)
            ways = {
                "FSDP": (d, cells.FSDP),
                "OSDP, whole": (tables_whole(d), cells.OSDP),
                "OSDP": (d, cells.OSDP),
            }
            found = {
                name: cells.searched(of, setting, "auto", **space, **instance.NONE).get("rate")
                for name, (of, space) in ways.items()
            }
            rows.append({"model": model, "setting": setting.name, "samples_per_s": found})
            print(model, setting.name, found, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        found = speeds()
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
        return
    described = [
        (
            f"W&S {layers}x{width}, 50,257 words",
            planner.transformer([width] * layers, vocabulary=50257),
            "rtx-titan-8",
            {},
        )
        for layers, width in ((2, 6144), (2, 8192), (2, 12288), (4, 8192))
    ]
    if arguments.llama:
        described.append(("Llama-3-8B, bf16", llama(), "h100-8", {"precision": "bf16"}))
    rows = []
    print(f"{'model':34} {'machine':12} {'whole, GiB':>10} {'slices, GiB':>11}")
    for name, description, hardware, options in described:
        whole = smallest_gib(tables_whole(description), hardware, **options)
        slices = smallest_gib(description, hardware, **options)
        rows.append(
            {"model": name, "machine": hardware, "whole_gib": round(whole, 2), "slices_gib": round(slices, 2)}
        )
        print(f"{name:34} {hardware:12} {whole:10.2f} {slices:11.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
