"""What reading and loading of weights raise; every message is one sentence or a short list."""


class WeightsError(ValueError):
    """A file that cannot be read as weights, or weights that do not fit the model."""


class UnsafeCheckpoint(WeightsError):
    """A file that asks for code to be run; it was refused and nothing of it was run."""
