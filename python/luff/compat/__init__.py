"""Runs code that was written for other tools: `luff.compat.smdebug`, `luff.compat.sagemaker`."""
