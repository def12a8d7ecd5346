"""The look that the run report and the credit viewer share: one self-contained HTML page, escaped."""
