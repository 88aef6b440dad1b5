"""Luff for Ray: `luff.ray.tune`."""
