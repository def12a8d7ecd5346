"""tau-bench, retail and airline: engine, embedded tasks, customers, expert and verifier interface."""
