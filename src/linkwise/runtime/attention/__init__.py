"""Attention of one rank: rotary positions, the paged KV cache, grouped heads and MLA, with their splits."""
