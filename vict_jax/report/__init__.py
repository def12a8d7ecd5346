"""The run report: one HTML page on a run, on several seeds of it, or on a comparison. See docs/report.md."""
