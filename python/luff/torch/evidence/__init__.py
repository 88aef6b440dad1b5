"""Evidence that rules need in addition to tensors: losses, samples, and facts about a
step (docs/spec/evidence.md).
"""
