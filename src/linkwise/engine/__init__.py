"""What does this engine do with a layout? Support, sharding, step conventions, memory defaults, flags and back."""
