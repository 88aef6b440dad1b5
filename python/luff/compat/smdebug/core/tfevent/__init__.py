"""Files of the profiler."""
