"""Rollouts: prompt contexts, sampler, reply parser and the collector that joins them to environments."""
