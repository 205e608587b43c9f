"""Estimates from tokens: cost and predicted class.  Pure, and knows nothing of the core."""
