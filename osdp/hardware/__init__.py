"""Hardware: the figures of a machine, the known machines, and identification of the present one."""

from osdp.hardware.hardware import Collective, DeviceMemory, Hardware, Measured, known_machines

__all__ = ["Collective", "DeviceMemory", "Hardware", "Measured", "known_machines"]
