"""Whom requests between NICs fail towards: the one host that is an end of all of them, and what its NICs report."""

from typing import NamedTuple

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import one
from linkwise.trace.facts import Fact


class Accused(NamedTuple):
    """host: by its name, or the address that nothing gives a name to. sick: what NICs and ports of it report."""

    host: str
    sick: tuple[Fact, ...]

    @property
    def link(self) -> str:
        """The NIC or port that all of it speaks of; "" = several, or none."""
        return one(fact.device for fact in self.sick)


def accused(case: Case, failed: list[Fact]) -> Accused | None:
    """The host at one end of all failed requests, where there are several other ends, or where of both ends only its
    NICs report something; None where that tells nobody."""
    names = {fact.label("address"): fact.host for fact in case.facts("place", "address")}
    pairs = {(fact.host, _peer(fact, names)) for fact in failed}
    if any(not all(pair) or pair[0] == pair[1] for pair in pairs) or not pairs:
        return None
    shared = set.intersection(*map(set, pairs))
    sick = {host: tuple(_sick(case, host)) for host in shared}
    if len(shared) == 1:
        return Accused(*sick.popitem())
    told = [Accused(host, facts) for host, facts in sick.items() if facts]
    return told[0] if len(told) == 1 else None


def _peer(fact: Fact, names: dict[str, str]) -> str:
    peer = fact.label("peer")
    return fact.label("peer_host") or names.get(peer, peer)


def _sick(case: Case, host: str) -> list[Fact]:
    found = case.facts("network", "ib.port_down", "net.link_down", "ib.async_event") + case.facts("device", "nic_")
    return [fact for fact in found if fact.host == host]
