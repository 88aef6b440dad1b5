"""Reads tensors, modules and optimizers, and hands their values to the session."""
