"""OSDP in training frameworks, one module each, imported only by who uses that framework."""
