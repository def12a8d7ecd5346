"""Credit kernels: pure functions from `CreditInputs` to per-step advantages."""
