"""Splits that are not a property of attention: tensor, pipeline, expert and attention data parallel, handoff."""
