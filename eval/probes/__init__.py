"""What frozen features are worth: nearest neighbours and linear probes, each by a published rule."""
