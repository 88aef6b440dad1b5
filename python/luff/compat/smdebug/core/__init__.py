"""What all frameworks of the facade share."""
