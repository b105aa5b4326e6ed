"""Carries out a ParallelPlan: mesh, tensor parallelism, stages, sharding, and torch's schedule."""

from __future__ import annotations
