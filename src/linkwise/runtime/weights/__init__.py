"""Weights from a folder of safetensors: every rank reads only its own slices."""
