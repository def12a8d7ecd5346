"""ALFWorld text games: a native engine, a game generator, an expert and the verifier interface."""
