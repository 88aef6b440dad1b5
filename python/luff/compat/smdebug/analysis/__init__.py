"""Helpers for looking at trials."""
