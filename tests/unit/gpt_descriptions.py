"""Descriptions of GPT-like models made by hand, as osdp.describe would make them, without a model."""

from __future__ import annotations

from dataclasses import replace

from osdp.description.model_description import Block, ModelDescription, Operator, Parameter
from osdp.hardware.hardware import Collective, Hardware


def operator(
    name: str,
    kind: str,
    shapes: dict[str, tuple[int, ...]],
    *,
    block: str | None = None,
    split: tuple[int, int] | None = None,
    saved: int = 0,
    work: int = 0,
    flops: int = 0,
    trainable: bool = True,
    calls: int = 1,
) -> Operator:
    parameters = tuple(Parameter(f"{name}.{n}", (), s, "float32", trainable) for n, s in shapes.items())
    return Operator(
        name=name,
        kind=kind,
        parameters=parameters,
        gather_at=(name,),
        traced=True,
        calls=calls,
        block=block,
        split_shape=split,
        parameter_bytes=sum(4 * p.elements for p in parameters),
        buffer_bytes=0,
        saved_bytes_per_sample=saved,
        saved_bytes_fixed=0,
        flops_per_sample=flops,
        work_bytes_per_sample=work,
    )


def linear(name: str, out: int, in_: int, tokens: int, block: str | None = None) -> Operator:
    return operator(
        name,
        "Linear",
        {"weight": (out, in_), "bias": (out,)},
        block=block,
        split=(out, in_),
        saved=4 * tokens * in_,
        work=4 * tokens * (out + in_),
        flops=2 * tokens * out * in_,
    )


def embedding(name: str, rows: int, columns: int, saved: int = 0) -> Operator:
    """That can be computed in slices."""
    table = operator(name, "Embedding", {"weight": (rows, columns)}, split=(rows, columns), saved=saved)
    return replace(table, look_ups=(name,))


def gpt(layers: int, width: int, tokens: int = 128, vocabulary: int = 1000) -> ModelDescription:
    operators = [
        operator("wte", "Embedding", {"weight": (vocabulary, width)}, saved=8 * tokens),
        operator("wpe", "Embedding", {"weight": (tokens, width)}),
    ]
    blocks = []
    for i in range(layers):
        b = f"h.{i}"
        blocks.append(Block(b, 4 * tokens * width))
        norm = {"weight": (width,), "bias": (width,)}
        operators += [
            operator(f"{b}.ln_1", "LayerNorm", norm, block=b, saved=4 * tokens * width),
            linear(f"{b}.attn.qkv", 3 * width, width, tokens, b),
            operator(
                f"{b}.attn", "Attention", {}, block=b, saved=16 * tokens * width, flops=4 * tokens**2 * width
            ),
            linear(f"{b}.attn.proj", width, width, tokens, b),
            operator(f"{b}.ln_2", "LayerNorm", norm, block=b, saved=4 * tokens * width),
            linear(f"{b}.mlp.fc", 4 * width, width, tokens, b),
            linear(f"{b}.mlp.proj", width, 4 * width, tokens, b),
        ]
    operators += [
        operator("ln_f", "LayerNorm", {"weight": (width,), "bias": (width,)}, saved=4 * tokens * width),
        linear("head", vocabulary, width, tokens),
    ]
    return ModelDescription("GPT", tuple(operators), tuple(blocks), 1, 8 * tokens)


def machine(ranks: int = 8, **changes: object) -> Hardware:
    ring = Collective(20e-6, 1e-10)
    figures: dict[str, object] = {
        "name": "test machine",
        "source": "made up",
        "device": "cuda",
        "world_size": ranks,
        "memory_bytes": 8 * 2**30,
        "all_gather": ring,
        "reduce_scatter": ring,
        "all_reduce": ring,
        "flops_per_s": 1e13,
        "optimizer_s_per_byte": 1e-11,
    }
    return Hardware(**{**figures, **changes})  # type: ignore[arg-type]
