"""What is read of tensors, modules and optimizers, and handed to the session."""
