"""Protocols: one generic loop a kind of task. They know declarations, never names of data sets."""
