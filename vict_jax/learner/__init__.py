"""Losses, optimiser and update steps."""
