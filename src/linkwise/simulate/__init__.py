"""What happens over time? Pools and requests to latencies, goodput and queues (DESIGN §1)."""
