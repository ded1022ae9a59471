"""From results of serving to the constants of an engine's step."""
