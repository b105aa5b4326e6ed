"""Installs the patches of torch, once per process, at the first fully_shard: torch's tools treat a rank's
part of a sharded tensor as the whole one, and must be correct for it or refuse it. Models that are not
sharded are not affected.
"""

from __future__ import annotations

from osdp.sharding.module_tree import watch_registrations
from osdp.sharding.torch_patches.amp_scaler import install_scaler
from osdp.sharding.torch_patches.autograd_errors import install_typed_errors
from osdp.sharding.torch_patches.backward_errors import install_backward_errors
from osdp.sharding.torch_patches.init_functions import watch_initialising
from osdp.sharding.torch_patches.norms import install_norms
from osdp.sharding.torch_patches.optimizer_state_dict import install_optimizer_state
from osdp.sharding.torch_patches.optimizer_steps import watch_steps
from osdp.sharding.torch_patches.other_parallels import install_refusals


def install_torch_tools() -> None:
    install_backward_errors()
    install_norms()
    install_optimizer_state()
    install_scaler()
    install_refusals()
    install_typed_errors()
    watch_steps()
    watch_registrations()
    watch_initialising()
