"""A cluster on one machine: its links as shaped veth pairs, its devices as network namespaces, real sockets between.

topology.py says what to build, netns.py and tc.py build it, inside.py runs ranks in it, counters.py counts, run.py is
the door. exercise.py and compare.py hold real collectives against what the planner says of them. Nothing is simulated:
the kernel moves the bytes, holds them back and counts them.
"""

from linkwise.measure.lab.counters import LinkCount
from linkwise.measure.lab.job import RankEnd
from linkwise.measure.lab.run import LabResult, LabUnavailable, missing, run_lab
from linkwise.measure.lab.topology import Wiring, wiring

__all__ = ["LabResult", "LabUnavailable", "LinkCount", "RankEnd", "Wiring", "missing", "run_lab", "wiring"]
