"""What is done when the condition of a rule is met."""
