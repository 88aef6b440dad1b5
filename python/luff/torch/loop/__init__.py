"""Steps, updates and modes of a training loop, and the hook that records them."""
