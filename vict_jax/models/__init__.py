"""Decoder language models in functional Flax NNX."""
