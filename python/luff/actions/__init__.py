"""The short-lived process that ``luff run`` starts to send a message; it uses only the standard library."""
