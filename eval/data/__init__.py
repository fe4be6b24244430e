"""Readers of data sets; each gives items with ids, targets, a fingerprint of their content, and counts."""
