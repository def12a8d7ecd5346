"""Worked examples of what users bring themselves."""
