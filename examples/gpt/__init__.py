"""A small character-level GPT: the model, its text, its training loop. Nothing here knows of OSDP but `planning`."""
