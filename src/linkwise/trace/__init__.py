"""What happened, per rank? One event schema, its writer, and the readers of others' files (layer 1)."""
