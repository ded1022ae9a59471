"""The commands that build a lab: `ip` and `tc` in batches, as argument lists. Nothing here takes it down: it is built
inside namespaces of its own (run.py), and the kernel removes those with the last process in them.
"""

import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from linkwise.measure.lab.tc import tbf
from linkwise.measure.lab.topology import Cable, Station, Wiring

MTU = 9000
# Bytes a socket may buffer, half of it the TCP window: far above bandwidth times delay of shaped links, far below a
# queue. The same for every socket from its first segment on: where two flows cross, the acknowledgements of one wait
# behind the data of the other, and with unequal windows the smaller one starves until the larger flow is done.
BUFFER_BYTES = 2**19
FIRST_SEGMENTS = BUFFER_BYTES // 2 // MTU
_QUIET = ("1", ("ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"))  # no chatter on the counters
_SETTINGS = (
    _QUIET,
    ("1", ("ipv4/ip_forward",)),  # relays
    # A relayed flow may come back another way; a pause between two collectives is no reason to start slowly again.
    (
        "0",
        (
            "ipv4/conf/all/rp_filter",
            "ipv4/conf/default/rp_filter",
            "ipv4/tcp_slow_start_after_idle",
            "ipv4/tcp_moderate_rcvbuf",
        ),
    ),
    # Nothing is lost here, so reno grows to the window and stays; every kernel has it.
    ("reno", ("ipv4/tcp_congestion_control",)),
    (f"{BUFFER_BYTES} {BUFFER_BYTES} {BUFFER_BYTES}", ("ipv4/tcp_rmem", "ipv4/tcp_wmem")),
)


class Step(NamedTuple):
    """One command, what it reads on stdin, and what it is for, in words."""

    arguments: tuple[str, ...]
    text: str
    what: str


class BuildError(Exception):
    """A step the kernel or a tool refused; the message says which and why."""


def build(wiring: Wiring) -> None:
    """Build it around this process, whose own network namespace gets the bridges. Raises BuildError."""
    for step in steps(wiring):
        run(step)


def run(step: Step) -> str:
    """What a step prints. Raises BuildError."""
    try:
        done = subprocess.run(  # noqa: S603 - an argument list of our own words
            step.arguments, input=step.text, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{step.what}: {error}") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise BuildError(f"{step.what}: {said or f'exit code {done.returncode}'}")
    return done.stdout


def steps(wiring: Wiring) -> Iterator[Step]:
    """The commands in order."""
    # Names of namespaces are files under /run, which is ours alone: nothing of them is seen, or left, outside.
    yield Step(("mount", "-t", "tmpfs", "linkwise-lab", "/run"), "", "a /run of the lab's own")
    yield _batch("ip", (f"netns add {s.name}" for s in wiring.stations), "network namespaces")
    yield from _set("", (_QUIET,))
    for station in wiring.stations:
        yield from _set(station.name, _SETTINGS)
    yield _batch("ip", _links(wiring), "bridges and cables")
    for station in wiring.stations:
        yield _batch(f"ip -n {station.name}", _inside(station), f"routes of {station.name}")
    for place, lines in _shapes(wiring).items():
        yield _batch(f"tc -n {place}" if place else "tc", lines, "tc tbf (kernel module sch_tbf)")


def _batch(tool: str, lines: Iterator[str] | list[str], what: str) -> Step:
    return Step((*tool.split(), "-batch", "-"), "".join(f"{line}\n" for line in lines), what)


def _set(place: str, settings: tuple[tuple[str, tuple[str, ...]], ...]) -> Iterator[Step]:
    """Kernel settings of a namespace ("" = this one). One that this kernel does not have is not needed in it."""
    there = ("ip", "netns", "exec", place) if place else ()
    for value, keys in settings:
        paths = [path for key in keys if os.path.exists(path := f"/proc/sys/net/{key}")]
        if paths:
            yield Step((*there, "tee", *paths), value, f"network settings of {place or 'the bridges'}")


def _links(wiring: Wiring) -> Iterator[str]:
    for bridge in wiring.bridges:
        yield f"link add {bridge} mtu {MTU} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"
        yield f"link set {bridge} up"
    stations = {s.name for s in wiring.stations}
    for cable in wiring.cables:
        a, b = (f"netns {end}" if end in stations else "" for end in (cable.a, cable.b))
        yield (f"link add {cable.a_interface} {a} mtu {MTU} type veth peer name {cable.b_interface} {b} mtu {MTU}")
        for end, port in ((cable.a, cable.a_interface), (cable.b, cable.b_interface)):
            if end not in stations:
                yield f"link set {port} master {end} up"


def _inside(station: Station) -> Iterator[str]:
    yield "link set lo up"
    for interface in dict.fromkeys([station.interface, *(hop.interface for hop in station.hops)]):
        # One segment a packet: counters then see frames as a wire would, each with its headers.
        yield f"link set {interface} gso_max_segs 1 up"
    yield f"addr add {station.address}/32 dev {station.interface}"
    for hop in sorted(station.hops, key=lambda hop: bool(hop.via)):
        way = f"via {hop.via} dev {hop.interface} onlink" if hop.via else f"dev {hop.interface} scope link"
        yield f"route add {hop.to}/32 {way} src {station.address} initcwnd {FIRST_SEGMENTS} initrwnd {FIRST_SEGMENTS}"


def _shapes(wiring: Wiring) -> dict[str, list[str]]:
    """Lines for `tc` by namespace; "" is the one of the bridges."""
    stations = {s.name for s in wiring.stations}
    found: dict[str, list[str]] = {}
    for cable in wiring.cables:
        for end, interface, rate in _ends(cable):
            found.setdefault(end if end in stations else "", []).append(tbf(interface, rate))
    return found


def _ends(cable: Cable) -> tuple[tuple[str, str, float], ...]:
    """Each end with its interface, and what it may send."""
    return (cable.a, cable.a_interface, cable.ab_Bps), (cable.b, cable.b_interface, cable.ba_Bps)
