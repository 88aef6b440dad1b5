"""Helpers for reading trials."""
