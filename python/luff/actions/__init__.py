"""What ``luff run`` starts to tell somebody: a short-lived process, on the standard library alone."""
