"""What does the hardware really do? Calibration, rehearsal, pre-flight, and a cluster on one machine."""
