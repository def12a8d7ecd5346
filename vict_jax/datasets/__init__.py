"""Data sets on disk by tensorflow-datasets: lists of tasks, and logged rollouts as RLDS episodes.

    python -m vict_jax.datasets --help

They are written and read without TensorFlow, as ArrayRecord files with random access. Importing a module of
this package imports tensorflow-datasets, which takes half a second: a run does so only if it is told to use
a task set. See docs/data.md.
"""
