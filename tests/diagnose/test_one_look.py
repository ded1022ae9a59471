"""What one look at ports shows is said and decides nothing; what others decide of a port is not said twice."""

import pytest
from tests.diagnose.made_facts import fact

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.gather import Evidence

DOWN = fact("network", "ib.port_down", labels={"state": "DOWN"}, host="a", device="mlx5_1:1")
LOST = fact("network", "ib.port_down", host="a", device="0000:1a:00", unix_ns=5)
BACK = fact("notice", "ib.port_up", host="a", device="0000:1a:00", unix_ns=9)
FAST = fact("gauge", "ib.rate_gbps", 400, host="a", device="mlx5_0:1")
SLOW = fact("gauge", "ib.rate_gbps", 200, host="a", device="mlx5_1:1")
ERRORS = fact("counter", "ib.symbol_error", 183923, host="a", device="mlx5_1:1")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ([DOWN], "port mlx5_1:1 of a is down"),
        ([LOST], "port 0000:1a:00 of a is down"),
        ([BACK._replace(unix_ns=1), LOST], "port 0000:1a:00 of a is down"),
        ([FAST, SLOW], "port mlx5_1:1 of a at 200 Gb/s"),
        ([ERRORS], "symbol_error 183,923"),
    ],
)
def test_one_look_is_a_note(facts, words):
    found = diagnose(Evidence(facts=tuple(facts)))
    assert (found.findings, found.exit_code) == ((), 0)
    (note,) = found.notes
    assert words in note


@pytest.mark.parametrize(
    "facts",
    [
        [LOST, BACK],  # it came up again
        [FAST, FAST._replace(device="mlx5_1:1")],
        [FAST, SLOW._replace(host="b")],  # another host's NICs are of another kind
        [ERRORS._replace(value=0.0)],
        [ERRORS._replace(value=1.0)],  # what plugging a cable leaves
        [ERRORS._replace(unix_ns=1), ERRORS._replace(unix_ns=2)],  # two looks, and no growth
    ],
)
def test_what_is_well_is_not_told_of(facts):
    assert diagnose(Evidence(facts=tuple(facts))).notes == ()


def test_a_port_that_is_a_finding_is_no_note():
    up = fact("gauge", "ib.port_state", 1, host="b", device="mlx5_1:1")
    found = diagnose(Evidence(facts=(DOWN, up)))
    assert [one.class_ for one in found.findings] == ["network_error"]
    assert found.notes == ()
