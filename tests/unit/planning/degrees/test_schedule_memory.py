"""What a stage holds for its schedule: Note [What a schedule holds]."""

import dataclasses

import osdp
from osdp.planning.degrees.chain import Chain
from osdp.planning.degrees.schedule_memory import last_outputs, schedule_bytes
from tests.unit.gpt_descriptions import gpt
from tests.unit.planning.degrees.problems import searched

MODEL = dataclasses.replace(gpt(2, 64), input_bytes_per_sample=100)


def test_what_is_received_and_its_gradients_are_held_for_all_micro_batches() -> None:
    chain = Chain(MODEL)
    at = [link.name for link in chain.links].index("h.1")
    passes, end = chain.links[at].boundary_bytes_per_sample, len(chain.links)
    assert passes > 0
    assert schedule_bytes(chain, 0, at, 3, 8) == 8 * 3 * (100 + passes)  # gradients from the next stage
    assert schedule_bytes(chain, at, end, 3, 8) == 8 * 3 * (100 + 2 * passes)
    assert schedule_bytes(chain, 0, end, 3, 8) == 8 * 3 * 100


def test_the_last_stage_holds_logits_where_the_described_model_computes_its_loss() -> None:
    head = MODEL.operators[-1]
    assert head.split_shape is not None
    rows = head.flops_per_sample // (2 * head.split_shape[0] * head.split_shape[1])
    loss = dataclasses.replace(MODEL, output_bytes_per_sample=4)
    logits = rows * head.split_shape[0] * 4
    assert (
        last_outputs(loss, {}, 2, "fp32")
        == last_outputs(loss, {head.name: "colwise_gathered"}, 2, "fp32")
        == logits
    )
    assert last_outputs(loss, {head.name: "colwise"}, 2, "fp32") == logits // 2
    assert last_outputs(loss, {}, 1, "bf16") == logits // 2
    assert (
        last_outputs(dataclasses.replace(loss, output_bytes_per_sample=9 * logits), {}, 1, "fp32")
        == 9 * logits
    )


def test_a_stage_holds_more_in_a_step_of_more_micro_batches() -> None:
    asked = {
        "tensor_parallel": 1,
        "pipeline_parallel": 2,
        "batch_size": 1,
        "memory": "64MiB",
        "modes": ["NO_SHARD"],
    }
    asked |= {"checkpoint": "none", "tp_plan": None}
    few, many = (searched(MODEL, global_batch_size=n, **asked) for n in (16, 64))
    for short, long in zip(few.stages, many.stages, strict=True):
        kept = [s.plan.searched.stage.held_bytes for s in (short, long)]
        peaks = [s.plan.predicted.peak_memory_bytes for s in (short, long)]
        assert kept[1] == 4 * kept[0] and peaks[1] - peaks[0] == kept[1] - kept[0]


def test_a_stage_that_counts_less_does_not_verify() -> None:
    plan = searched(tensor_parallel=1, pipeline_parallel=2)
    own = plan.stages[1].plan
    stage = dataclasses.replace(own.searched.stage, held_bytes=1)
    changed = dataclasses.replace(own, searched=dataclasses.replace(own.searched, stage=stage))
    stages = (plan.stages[0], dataclasses.replace(plan.stages[1], plan=changed))
    assert osdp.verify(plan) == "" and "stages[1]" in osdp.verify(dataclasses.replace(plan, stages=stages))
