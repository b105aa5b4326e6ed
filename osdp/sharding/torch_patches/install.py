"""Installs what OSDP replaces in torch: torch's tools treat a rank's part of a sharded tensor as the whole one, and must be
correct for it or refuse it. See Note [Torch left as found] in replaced.py.
"""

from __future__ import annotations

import weakref

from torch import nn

from osdp.base.modules import HANDLES
from osdp.sharding.module_tree import watch_registrations
from osdp.sharding.torch_patches.amp_scaler import install_scaler
from osdp.sharding.torch_patches.autograd_errors import install_typed_errors
from osdp.sharding.torch_patches.init_functions import watch_initialising
from osdp.sharding.torch_patches.norms import install_norms
from osdp.sharding.torch_patches.optimizer_state_dict import install_optimizer_state
from osdp.sharding.torch_patches.optimizer_steps import watch_steps
from osdp.sharding.torch_patches.other_parallels import install_refusals
from osdp.sharding.torch_patches.pipeline_stages import install_stages
from osdp.sharding.torch_patches.replaced import hook, put_back

_installed = False
_holds = 0


def install_torch_tools() -> None:
    """Before a model is cut; then `keep_torch_tools`, or `leave_torch` if sharding it failed."""
    global _installed
    if _installed:
        return
    _installed = True
    hold_torch_tools()  # while half of them are there
    try:
        install_norms()
        install_optimizer_state()
        install_scaler()
        install_refusals()
        install_typed_errors()
        install_stages()
        watch_steps()
        watch_initialising()
        for handle in watch_registrations():
            hook(handle)
    finally:
        _let_go()


def keep_torch_tools(model: nn.Module) -> None:
    """As long as this sharded model lives."""
    install_torch_tools()  # they were put back if another one, the last, was collected meanwhile
    weakref.finalize(model, leave_torch).atexit = False


def hold_torch_tools() -> None:
    """Until `release_torch_tools`: while sharded models are not registered but will be again. Each rank collects its
    garbage at another time: that of the last registered model would take the tools away from these on some ranks, whose
    steps then send nothing where the others' send a digest of their options."""
    global _holds
    _holds += 1


def release_torch_tools() -> None:
    _let_go()
    leave_torch()


def leave_torch() -> None:
    """Puts torch's own back if no sharded model is left."""
    global _installed
    if _installed and not _holds and next(iter(HANDLES.keys()), None) is None:
        _installed = False
        put_back()


def _let_go() -> None:
    global _holds
    _holds -= 1
