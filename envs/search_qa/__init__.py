"""Search-augmented question answering: think, search, read, answer."""
