"""Host-side environments and their verifier interfaces. Nothing in this package imports JAX."""
