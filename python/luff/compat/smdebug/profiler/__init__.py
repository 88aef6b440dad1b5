"""What of the profiler is there: its configuration, and timelines."""
