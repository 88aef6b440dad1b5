"""What hooks of boosting libraries share: collections, tensors of a training, rounds as steps.

Nothing here imports a framework: the packages of the libraries say what their boosters hold.
"""
