"""What OSDP changes in torch itself, once per process, at the first fully_shard: so that torch's tools, which take a rank's
part of a sharded tensor for all of it, are right with it or refuse. Models that are not sharded see no difference.
"""

from __future__ import annotations

from osdp.optimizer_probe import install_optimizer_check
from osdp.other_parallels import install_refusals
from osdp.torch_norms import install_norms
from osdp.torch_optimizer_state import install_optimizer_state
from osdp.torch_scaler import install_scaler


def install_torch_tools() -> None:
    install_norms()
    install_optimizer_state()
    install_optimizer_check()
    install_scaler()
    install_refusals()
