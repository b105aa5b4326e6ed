"""Checkpoints that fit any world size and any plan."""
