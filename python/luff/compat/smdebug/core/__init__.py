"""Code that all frameworks of this package share."""
