"""Installs what OSDP replaces in torch: torch's tools treat a rank's part of a sharded tensor as the whole one, and must be
correct for it or refuse it. See Note [Torch left as found] in replaced.py.
"""

from __future__ import annotations

import weakref

from torch import nn

from osdp.base.sharded_models import HANDLES
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


def install_torch_tools() -> None:
    """Before a model is cut; then `keep_torch_tools`, or `leave_torch` if sharding it failed."""
    global _installed
    if _installed:
        return
    _installed = True
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


def keep_torch_tools(model: nn.Module) -> None:
    """As long as this sharded model lives."""
    install_torch_tools()  # they were put back if another one, the last, was collected meanwhile
    weakref.finalize(model, leave_torch).atexit = False


def leave_torch() -> None:
    """Puts torch's own back if no sharded model is left."""
    global _installed
    if _installed and next(iter(HANDLES.keys()), None) is None:
        _installed = False
        put_back()
