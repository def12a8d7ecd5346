"""tau-bench, retail and airline: an engine, embedded tasks, customers, an expert and the verifier interface."""
