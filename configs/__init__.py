"""Experiment configurations: one small file per experiment, `get_config(arg)` each."""
