"""Evaluation: benchmarks are declarations, protocols are loops, metrics are pure functions of stored predictions."""
