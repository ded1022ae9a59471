"""Ports as one look shows them, which decides nothing: notes of a diagnosis, no rule by itself."""

from collections.abc import Iterator

from linkwise.core.units import show_figure
from linkwise.diagnose.case import Case
from linkwise.diagnose.counters import once
from linkwise.diagnose.rules.network import LINK, LOSS
from linkwise.trace.facts import Fact

MOST = 8  # ports that are told of


def notes(case: Case) -> Iterator[str]:
    """What one look at ports shows and does not decide: a port that is down may be one that nobody uses, errors may be
    of the day its cable was plugged, and a slower port may be meant to be one."""
    found = {one.original_fault.link for one in case.found("network")}
    down = {(fact.host, fact.device): fact for fact in case.facts("network", "ib.port_down", "net.link_down")}
    latest = {(fact.host, fact.device): fact for fact in case.facts("notice", "ib.port_up", "net.link_up")}
    still = [
        _port_of(host, device)
        for (host, device), fact in down.items()
        if device not in found and ((host, device) not in latest or _when(latest[host, device]) < _when(fact))
    ]
    if still:
        yield f"{_some(still)} down, as far as was looked: a fault if the job is to use {_them(still)}"
    rates: dict[str, list[Fact]] = {}
    for fact in case.facts("gauge", "ib.rate_gbps"):
        rates.setdefault(fact.host, []).append(fact)
    slow = [
        f"{_port_of(host, fact.device)} at {show_figure(fact.value)} Gb/s"
        for host, mine in rates.items()
        for fact in mine
        if fact.value <= max(other.value for other in mine) / 2 and (host, fact.device) not in down
    ]
    if slow:
        yield f"{', '.join(slow[:MOST])}: half of its host's fastest port or less: its lanes, its cable, or meant so"
    errors: dict[str, list[str]] = {}
    for fact in once(case, *LINK, *LOSS):
        if fact.value >= (LINK | LOSS)[fact.name] and fact.device not in found:
            said = f"{fact.name.removeprefix('ib.')} {show_figure(fact.value, 6)}"
            errors.setdefault(_port_of(fact.host, fact.device), []).append(said)
    for port, figures in list(errors.items())[:MOST]:
        yield (
            f"{port}: {', '.join(figures[:4])}, since its counters were last cleared. One look does not tell whether"
            " they grow: take a second one a minute later"
        )


def _port_of(host: str, device: str) -> str:
    return f"port {device or '?'}{f' of {host}' if host else ''}"


def _some(ports: list[str]) -> str:
    more = f" and {len(ports) - MOST} more" if len(ports) > MOST else ""
    return f"{', '.join(ports[:MOST])}{more} {'is' if len(ports) == 1 else 'are'}"


def _them(ports: list[str]) -> str:
    return "it" if len(ports) == 1 else "one of them"


def _when(fact: Fact) -> float:
    """When it was, by whatever its log tells times with."""
    boot = fact.label("boot_s")
    return float(boot) if boot else float(fact.unix_ns)
