"""Ranks that act together: process groups of our own, how ranks meet, and failing on all of them or on none."""
