"""Does it really run? A plan and weights become tokens: every split on torch.distributed (layer 6)."""
