"""Patches functions of torch so that hooks see what a training does."""
