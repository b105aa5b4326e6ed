"""Checkpoints that fit any world size and any plan."""

from osdp.checkpoint.save_load import load, save

__all__ = ["load", "save"]
