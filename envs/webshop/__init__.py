"""WebShop's text shop: a native engine, a catalogue generator, an expert and the verifier interface."""
