"""Results of serving benchmarks as rows, whatever tool wrote them."""

from linkwise.workload.results.types import LeftOut, Results, Row

__all__ = ["LeftOut", "Results", "Row"]
