"""Analyses what a profiler recorded."""
