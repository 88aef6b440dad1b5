"""What rules need beyond tensors: losses, samples, and facts about a step (docs/spec/evidence.md)."""
