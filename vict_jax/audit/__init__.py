"""Audits of a verifier interface and of a run's credit; `python -m vict_jax.audit`, docs/audit.md."""
