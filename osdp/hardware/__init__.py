"""What is known of a machine: the value `Hardware`, the known machines, and what this one is."""

from osdp.hardware.hardware import Collective, DeviceMemory, Hardware, Measured, known_machines

__all__ = ["Collective", "DeviceMemory", "Hardware", "Measured", "known_machines"]
