"""Cooperation of ranks: own process groups, rendezvous, and steps that fail on all ranks or on none."""
