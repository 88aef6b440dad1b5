"""Verbs of the luff command that need Python."""
