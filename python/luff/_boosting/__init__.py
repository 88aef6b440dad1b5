"""Shared by the hooks of boosting libraries: collections, tensors of a training, rounds as steps.

Nothing here imports a framework: each library's package describes what its boosters hold.
"""
