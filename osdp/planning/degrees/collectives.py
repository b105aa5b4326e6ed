"""Collectives inside tensor-parallel groups: which there are in a micro-batch, and how long computation waits for them.

Note [Collectives of tensor parallelism]
With r rows of activations (samples x tokens), of e bytes an element:

| operator | forward | backward |
|---|---|---|
| row-wise linear, embedding along the vocabulary | all-reduce of r out e | - |
| column-wise linears that read one input | - | all-reduce of r in e |
| column-wise, gathered (a head whose logits are whole; an embedding along the width) | all-gather of r out e | - |
| column-wise head whose loss is on parts of the vocabulary | two all-reduces of 4 r bytes | - |

Under sequence parallelism an all-reduce is a reduce-scatter where it was, and an all-gather in the other pass. Gradients of
whole weights under sequence parallelism are partial, and summed over the group once a step: small, and left out. All of
these run on the stream that computes: nothing is beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.searched import OperatorCollectives
from osdp.planning.core_inputs import computing_dtypes, itemsize, make_device
from osdp.planning.degrees.linear_shapes import features, rows_of


def collectives_of(
    description: ModelDescription,
    styles: Mapping[str, str],
    hardware: Hardware,
    ranks: int,
    batch: int,
    precision: str,
) -> dict[str, OperatorCollectives]:
    """By operator of the whole (not local) description, in a micro-batch of that size; those without are left out."""
    if ranks == 1:
        return {}
    device = make_device(hardware, ranks)
    sequence = "sequence" in styles.values()
    widths = {
        o.name: itemsize(dtype)
        for (name, dtype), o in zip(
            computing_dtypes(description, precision).items(), description.operators, strict=True
        )
    }
    most_rows = max((rows_of(o) for o in description.operators), default=0)
    last = next((o.name for o in reversed(description.operators) if o.parameters), "")

    def seconds(kind: str, size: int) -> float:
        return _search.collective_s(device, kind, size)

    found: dict[str, OperatorCollectives] = {}
    reads: tuple[str, int] | None = None  # the module around the last column-wise linear, and its inputs
    for o in description.operators:
        style = styles.get(o.name, "")
        if not o.parameters or style in ("", "sequence", "on_parts"):
            continue
        rows, width = (rows_of(o) or most_rows) * batch, widths[o.name]
        outputs, inputs = features(o)
        forward = backward = 0.0
        if style.startswith("rowwise"):
            if sequence:
                forward = seconds("reduce_scatter", rows * outputs * width)
                backward = seconds("all_gather", rows * outputs * width)
            else:
                forward = seconds("all_reduce", rows * outputs * width)
                if style == "rowwise_split_input":
                    backward = seconds("all_gather", rows * inputs * width)
        elif o.kind != "Embedding":
            around = (o.name.rpartition(".")[0], inputs)
            if reads != around:
                if sequence:
                    forward = seconds("all_gather", rows * inputs * width)
                    backward = seconds("reduce_scatter", rows * inputs * width)
                else:
                    backward = seconds("all_reduce", rows * inputs * width)
            reads = around
        if style == "colwise_gathered":
            forward += seconds("all_gather", rows * outputs * width)
        elif style == "colwise" and o.name == last:
            forward += 2 * seconds("all_reduce", rows * 4)
        if style != "colwise":
            reads = None
        if forward or backward:
            found[o.name] = OperatorCollectives(forward, backward)
    return found
