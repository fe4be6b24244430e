"""Metrics as pure functions of saved predictions, in float64."""
