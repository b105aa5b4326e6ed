"""OSDP in training frameworks, one module for each, imported only by users of that framework."""
