"""What csrc/search/rehearsal needs to play the plans of one problem."""

from __future__ import annotations

from collections.abc import Mapping

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.unit_grouping import places_of
from osdp.planning.core_inputs import gathered_bytes
from osdp.planning.simulate import gathering_calls, lanes_of


def rehearsal(
    description: ModelDescription,
    hardware: Hardware,
    model: _search.Model,
    request: _search.Request,
    *,
    precision: str,
    small_unit_bytes: int,
    prefetch: int,
    separate_reductions: bool,
) -> _search.Rehearsal:
    """Plays plans of `model`, which `request` describes, as `osdp.planning.simulate.play` would."""
    sizes: Mapping[str, int] = {o.name: gathered_bytes(o, precision) for o in description.operators}
    return _search.Rehearsal(
        model,
        request,
        places=places_of(description, sizes, gathering_calls(description)),
        small_unit_bytes=small_unit_bytes,
        prefetch=prefetch,
        **lanes_of(hardware, separate_reductions),
    )
