"""For whom? Lengths, arrivals and targets to a `Workload`."""

from linkwise.workload.types import Targets, Workload

__all__ = ["Targets", "Workload"]
