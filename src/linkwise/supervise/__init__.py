"""Is it alive, and what now? Health, recovery rules and the router, shared by runtime and launch (layer 5)."""
