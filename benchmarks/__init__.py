"""Measurements, each a module run with `python -m benchmarks.NAME`."""
