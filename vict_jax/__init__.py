"""Verifier-instrumented credit tracing (VICT) for language-model agents, in JAX and Flax."""
