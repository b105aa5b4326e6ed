"""What OSDP changes in torch itself, once per process, at the first fully_shard: so that torch's tools, which take a rank's
part of a sharded tensor for all of it, are right with it or refuse. Models that are not sharded see no difference.
"""

from __future__ import annotations

from osdp.backward_errors import install_backward_errors
from osdp.initialising import watch_initialising
from osdp.optimizer_steps import watch_steps
from osdp.other_parallels import install_refusals
from osdp.torch_norms import install_norms
from osdp.torch_optimizer_state import install_optimizer_state
from osdp.torch_scaler import install_scaler
from osdp.tree import watch_registrations
from osdp.typed_errors import install_typed_errors


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
