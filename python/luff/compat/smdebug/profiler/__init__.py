"""The parts of the profiler that exist here: its configuration and timelines."""
