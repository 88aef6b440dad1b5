"""Homes for code that was written for something else: `luff.compat.smdebug`, `luff.compat.sagemaker`."""
