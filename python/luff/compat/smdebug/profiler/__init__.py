"""The profiler is not there yet; its names are, so that configuration can be read."""
