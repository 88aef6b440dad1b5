"""Actions for the case that the condition of a rule is met."""
