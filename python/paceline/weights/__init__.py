"""Checkpoints: reading safetensors (`loader`), and getting a folder to read from (`prepare`, which needs no torch)."""
