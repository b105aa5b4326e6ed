"""What a stage holds for its schedule, besides its operators' state and activations.

Note [What a schedule holds]
torch's PipelineStage makes a buffer for what each micro-batch of a step receives, in its first step, and keeps them: the
inputs from the stage before, the gradients of outputs from the stage after. The gradient of such an input is the buffer's
`.grad`, which stays until the next step begins. So these three are there for all micro-batches, not for those in flight, in
every phase; and so are the model's own inputs of the whole step, which every stage is called with. An output stays until its
own backward ends: of those in flight, `output_bytes_per_sample` of the stage's description. In the last stage it is what
`loss_fn` gets: the outputs of the model's last linear, where the described model computes a loss itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from osdp.description.model_description import ModelDescription
from osdp.planning.core_inputs import computing_dtypes, itemsize
from osdp.planning.degrees.chain import Chain
from osdp.planning.degrees.linear_shapes import features, rows_of


def schedule_bytes(chain: Chain, first: int, end: int, batch: int, micro_batches: int) -> int:
    """Of the stage of links [first, end)."""
    links = chain.links
    received = links[first].boundary_bytes_per_sample if first > 0 else 0
    passed_on = links[end].boundary_bytes_per_sample if end < len(links) else 0
    whole = chain.description.input_bytes_per_sample
    return micro_batches * batch * (whole + 2 * received + passed_on)


def last_outputs(d: ModelDescription, styles: Mapping[str, str], ranks: int, precision: str) -> int:
    """Bytes of a sample that `loss_fn` gets: the description's outputs, or those of its last linear, of which a rank has a
    part if it is column-wise and not gathered."""
    last = next((o for o in reversed(d.operators) if o.parameters), None)
    if last is None or not rows_of(last):
        return d.output_bytes_per_sample
    dtype = computing_dtypes(d, precision)[last.name]
    share = ranks if styles.get(last.name) == "colwise" else 1
    return max(d.output_bytes_per_sample, rows_of(last) * features(last)[0] * itemsize(dtype) // share)
