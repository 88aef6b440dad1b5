"""A forked child that evaluates a part of a step again."""
