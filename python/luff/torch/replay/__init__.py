"""Evaluates a part of a step again in a forked child."""
