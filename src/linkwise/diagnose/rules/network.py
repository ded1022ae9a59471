"""What transports, ports and kernels report: errors, loss that grows, and ways that should not have been taken."""

from collections.abc import Iterator

from linkwise.core.units import show_figure
from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.counters import grown
from linkwise.diagnose.places import lines, one
from linkwise.diagnose.rules.towards import Accused, accused
from linkwise.diagnose.types import Cause, Fault, Finding
from linkwise.trace.facts import Fact

# Completion statuses of InfiniBand verbs (rdma-core, enum ibv_wc_status). A flush is what all other requests of a
# connection get once one has failed: no fault of its own.
_FLUSHED = "5"
_STATUS = {
    "1": "local length error", "2": "local QP operation error", "4": "local protection error",
    "6": "memory window bind error", "8": "bad response", "9": "remote invalid request", "10": "remote access error",
    "11": "remote operation error", "12": "no answer within the retries", "13": "receiver not ready, retries exceeded",
}  # fmt: skip
_GID = (
    "show_gids and ibv_devinfo on every host: the GID index (NCCL_IB_GID_INDEX, RoCE v2 is often 3), its subnet, and"
    " the routes between the NICs; ib_write_bw between two hosts"
)
_ACS = "lspci -vvv | grep ACSCtl on the host: turn ACS off on the bridges (BIOS, pci=noacs, setpci ECAP_ACS+6.w=0)"

# Counters that only errors move, with how much growth is more than noise. The first lot is of the link itself.
LINK = {
    "ib.symbol_error": 10, "ib.link_error_recovery": 1, "ib.link_downed": 1, "ib.port_rcv_errors": 10,
    "ib.local_link_integrity_errors": 1, "ib.rx_icrc_encapsulated": 10,
}  # fmt: skip
LOSS = {
    "ib.local_ack_timeout_err": 10, "ib.packet_seq_err": 100, "ib.out_of_sequence": 100, "ib.rnr_nak_retry_err": 10,
    "ib.req_cqe_error": 10, "ib.resp_cqe_error": 10, "ib.roce_adp_retrans_to": 10,
    "ib.excessive_buffer_overrun_errors": 1, "ib.port_xmit_discards": 1_000,
}  # fmt: skip
RETRANSMITTED = 0.01  # of the segments sent: beyond it TCP's rate falls to a small part of the link's
MIN_SEGMENTS = 1_000


def find(case: Case) -> Iterator[Finding]:
    """Errors of transports, sick links and lossy paths, unexpected transports."""
    acs = [fact for fact in case.facts("setting", "pcie_acs") if fact.value > 0 or fact.label("value") == "on"]
    yield from _completions(case, acs)
    yield from _ports(case)
    yield from _growing(case)
    yield from _retransmits(case)
    yield from _ways(case)
    yield from _peer_to_peer(case, acs)


def _completions(case: Case, acs: list[Fact]) -> Iterator[Finding]:
    """Requests that NICs gave back with an error, by their status."""
    by_status: dict[tuple[str, str], list[Fact]] = {}
    for fact in case.facts("network", "ib.completion."):
        status, _, vendor = fact.name.removeprefix("ib.completion.").partition(".")
        by_status.setdefault((status, vendor), []).append(fact)
    for (status, vendor), found in by_status.items():
        if status == _FLUSHED and len(by_status) > 1:
            continue
        words = f"completion with status {status} ({_STATUS.get(status, 'an error')}), vendor error {vendor or 'none'}"
        if status == "4":
            yield _protection(case, found, acs, words)
            continue
        if towards := accused(case, found):
            yield _one_end(case, found, towards, words)
            continue
        broken = _broken_ports(case, found)
        alone = status == "12" and not broken and len({(fact.host, fact.rank) for fact in found}) == 1
        # Over RoCE an address and a route of IP must fit; InfiniBand's subnet manager makes its own.
        fabric = {fact.label("link") or fact.label("link_layer") for fact in case.facts("place", "nic", "port")} - {""}
        cause: Cause = "network" if broken or status != "12" or fabric == {"InfiniBand"} else "configuration"
        why = (
            f"the port {one(fact.device for fact in broken) or 'of a NIC'} is not well"
            if broken
            else _one_said(found)
            if alone
            else "the NICs do not reach each other: GID index, subnet or route, on all ranks alike"
            if cause == "configuration"
            else "a request between two NICs failed"
        )
        yield Finding(
            class_="network_error",
            summary=f"network: {words}: {why}",
            original_fault=_where(broken) if broken else Fault(),
            cause="" if alone else cause,
            first_reporter=_reporter(found),
            confidence=0.85 if broken else 0.5 if alone else 0.75,
            decided=not alone,
            evidence=(*lines(found, 4), *lines(broken, 4)),
            would_decide="the other ranks' logs (NCCL_DEBUG=INFO): whom they get no answer from; dmesg and ibstat of"
            " both hosts"
            if alone
            else "",
            next=_GID,
            recovery="restart group",
        )


def _one_end(case: Case, found: list[Fact], towards: Accused, words: str) -> Finding:
    """Requests that all have one host at one end. Where processes of it ended, others tell why."""
    ended = not towards.sick and any(fact.host == towards.host for fact in case.facts("exit"))
    others = sorted({fact.rank for fact in found if fact.rank >= 0 and fact.host != towards.host})
    who = ranks_text(others) if others else "others"
    told = ", ".join(dict.fromkeys(_SICK.get(fact.name, fact.name) for fact in towards.sick))
    which = f"NIC {towards.link}" if towards.link else "NICs"
    why = (
        f", whose {which} reports: {told}"
        if towards.sick
        else " and nobody else: its NIC, its link, or its process, which may have ended"
    )
    return Finding(
        class_="network_error",
        summary=f"network: {words}: {who} {'has' if len(others) == 1 else 'have'} {towards.host} at the other end{why}",
        original_fault=Fault(host=towards.host, link=towards.link),
        cause="network" if towards.sick else "",
        first_reporter=_reporter(found),
        confidence=0.9 if towards.sick else 0.4 if ended else 0.65,
        decided=not ended,
        evidence=(*lines(towards.sick, 4), *lines(found, 4)),
        would_decide="" if towards.sick else f"dmesg, ibstat and the ranks' last lines on {towards.host}",
        next=f"ibstat, mlxlink and dmesg on {towards.host}: the cable and the transceiver",
        recovery="restart group",
    )


_SICK = {
    "ib.port_down": "link down", "net.link_down": "link down", "ib.async_event": "an event of the port",
    "nic_cable": "cable unplugged or faulty", "nic_health": "its firmware is not well",
    "nic_power": "too little power from its slot",
}  # fmt: skip


def _one_said(found: list[Fact]) -> str:
    """The two ends of requests that one rank speaks of alone."""
    peers = sorted({fact.label("peer_host") or fact.label("peer") for fact in found} - {""})
    who = f"rank {found[0].rank}" if found[0].rank >= 0 else found[0].host or "a rank"
    towards = f" from {', '.join(peers[:4])}" if peers else ""
    return (
        f"{who} gets no answer{towards}, as it alone says: a NIC, a link or a GID at either end, the route, or a"
        " process that ended"
    )


def _protection(case: Case, found: list[Fact], acs: list[Fact], words: str) -> Finding:
    """A NIC may not touch the GPU's memory: GPUDirect goes wrong on its way through the host's PCIe."""
    gdr = [fact for fact in case.facts("setting") if _switch(fact) == "gdr_off"]
    hosts = {fact.host for fact in acs} or {fact.host for fact in found}
    return Finding(
        class_="network_error",
        summary=f"host PCIe configuration: {words}: GPUDirect RDMA is broken"
        + (" by ACS, which is on" if acs else ", usually by ACS on the host's PCIe bridges"),
        original_fault=Fault(host=one(hosts)),
        cause="configuration",
        first_reporter=_reporter(found),
        confidence=0.9 if acs else 0.7,
        evidence=(*lines(found, 3), *lines(acs, 3), *lines(gdr, 2)),
        would_decide="" if acs else "lspci -vvv of the hosts; whether NCCL_NET_GDR_LEVEL=0 makes it work",
        next=_ACS,
        recovery="restart group",
    )


def _reporter(found: list[Fact]) -> str:
    timed = sorted((fact for fact in found if fact.unix_ns), key=lambda fact: fact.unix_ns) or found
    ranks = [fact.rank for fact in timed if fact.rank >= 0]
    return f"rank {ranks[0]}" if ranks else timed[0].host


def _broken_ports(case: Case, found: list[Fact]) -> list[Fact]:
    """Ports of these facts' NICs that are down, had an event, or count errors of the link."""
    devices = {fact.device.partition(":")[0] for fact in found if fact.device}
    sick = case.facts("network", "ib.port_down", "ib.async_event")
    sick += [last for last, more in grown(case, *LINK) if more >= LINK[last.name]]
    return [fact for fact in sick if fact.device.partition(":")[0] in devices]


def _where(facts: list[Fact]) -> Fault:
    return Fault(host=one(fact.host for fact in facts), link=one(fact.device for fact in facts))


def _ports(case: Case) -> Iterator[Finding]:
    """Ports that are down and should not be: something else speaks of them, or the same port is up on other hosts."""
    up = [fact for fact in case.facts("gauge", "ib.port_state") if fact.value > 0]
    lost = {fact.device for fact, more in grown(case, "ib.link_downed") if more >= 1}
    events = {fact.device.partition(":")[0] for fact in case.facts("network", "ib.async_event")}
    used = {fact.label("nic").partition(":")[0] for fact in case.facts("transport") + case.facts("place")} - {""}
    for fact in {(f.host, f.device): f for f in case.facts("network", "ib.port_down", "net.link_down")}.values():
        nic = fact.device.partition(":")[0]
        elsewhere = [other for other in up if other.device == fact.device and other.host != fact.host]
        if not (elsewhere or fact.device in lost or nic in events or nic in used):
            continue  # a port nobody uses is down on most machines
        yield Finding(
            class_="network_error",
            summary=f"port {fact.device}{f' of {fact.host}' if fact.host else ''} is down",
            original_fault=Fault(host=fact.host, link=fact.device),
            cause="network",
            confidence=0.8,
            evidence=lines([fact, *elsewhere[:2]]),
            next="ibstat and the cable; dmesg for link events",
            recovery="restart group",
        )


def _growing(case: Case) -> Iterator[Finding]:
    """Counters of errors that grew while the evidence was taken. One look at a counter since boot says nothing."""
    by_port: dict[tuple[str, str], list[tuple[Fact, float]]] = {}
    for fact, more in grown(case, *LINK, *LOSS):
        if more >= (LINK | LOSS).get(fact.name, 10):
            by_port.setdefault((fact.host, fact.device), []).append((fact, more))
    for (host, device), found in by_port.items():
        link = [fact for fact, _ in found if fact.name in LINK]
        what = ", ".join(f"{fact.name.removeprefix('ib.')} by {show_figure(more, 6)}" for fact, more in found[:6])
        yield Finding(
            class_="network_error",
            summary=f"{'link' if link else 'path'} of port {device or '?'}{f' on {host}' if host else ''}"
            f" {'has errors' if link else 'loses packets'}: {what}",
            original_fault=Fault(host=host, link=device),
            cause="network",
            confidence=0.8 if link else 0.7,
            evidence=(f"grew between two looks: {what}", *lines(fact for fact, _ in found)),
            next="the cable and the transceiver (ibdiagnet)" if link else "drops and pauses of the switch; PFC and ECN",
            recovery="none",
        )


def _retransmits(case: Case) -> Iterator[Finding]:
    """Hosts whose TCP sends more than a hundredth twice."""
    sent = {(f.host, f.rank): (f, more) for f, more in grown(case, "tcp.out_segs", since_start=True)}
    for fact, more in grown(case, "tcp.retrans_segs", since_start=True):
        total, segments = sent.get((fact.host, fact.rank), (None, 0.0))
        if total is None or segments < MIN_SEGMENTS or more < RETRANSMITTED * segments:
            continue
        # A single look is at all since the machine started, whatever that was.
        sure = bool(fact.label("snapshot")) or more >= 2 * RETRANSMITTED * segments
        yield Finding(
            class_="network_error",
            summary=f"TCP{f' of {fact.host}' if fact.host else ''} sends {show_figure(100 * more / segments, 2)} % of"
            " its segments twice: the path loses packets",
            original_fault=Fault(host=fact.host, ranks=(fact.rank,) if fact.rank >= 0 else ()),
            cause="network",
            confidence=0.75 if fact.label("snapshot") else 0.6 if sure else 0.4,
            decided=sure,
            would_decide="" if sure else "a second look at the counters: whether it goes on",
            evidence=(f"{show_figure(more)} of {show_figure(segments)} segments sent again", *lines([fact, total])),
            next="ss -ti towards the peers: which connection; drops of the interface and the switch",
            recovery="none",
        )


def _switch(fact: Fact) -> str:
    """What a setting turns off: gdr_off, ib_off, p2p_off; "" for others."""
    name, value = fact.name.upper(), fact.label("value").upper() or f"{fact.value:g}"
    if name.endswith("NET_GDR_LEVEL") and value in {"0", "LOC"}:
        return "gdr_off"
    if name.endswith("IB_DISABLE") and value not in {"0", ""}:
        return "ib_off"
    return "p2p_off" if name.endswith("P2P_DISABLE") and value not in {"0", ""} else ""


def _ways(case: Case) -> Iterator[Finding]:
    """Ranks that reach others over a slower way than their peers do, or than the machine has."""
    by_rank: dict[int, dict[str, Fact]] = {}
    for fact in case.facts("transport"):
        if fact.rank >= 0:
            by_rank.setdefault(fact.rank, {}).setdefault(fact.name, fact)
    off = {_switch(fact): fact for fact in case.facts("setting")}
    socket = [rank for rank, names in by_rank.items() if "net.socket" in names]
    staged = [rank for rank, names in by_rank.items() if "net.ib" in names and "net.ib.gdr" not in names]
    direct = [rank for rank, names in by_rank.items() if "net.ib.gdr" in names]
    nics = [fact for fact in case.facts("place", "nic", "port") if _fabric(fact)]
    over_ib = [rank for rank, names in by_rank.items() if any(name.startswith("net.ib") for name in names)]
    if socket and (over_ib or nics):
        told = [names["net.socket"] for names in by_rank.values() if "net.socket" in names]
        why = "turned off by a setting" if "ib_off" in off else "though there are InfiniBand or RoCE NICs"
        yield _way(socket, by_rank, f"over TCP sockets {why}", told, [*nics[:2], *_known(off, "ib_off")])
    if staged and direct:
        told = [by_rank[rank]["net.ib"] for rank in staged]
        yield _way(
            staged,
            by_rank,
            f"through host memory: {ranks_text(direct)} use GPUDirect RDMA, they do not",
            told,
            [by_rank[direct[0]]["net.ib.gdr"], *_known(off, "gdr_off")],
        )
    shm = [rank for rank, names in by_rank.items() if "shm" in names and "p2p" not in names]
    p2p = [rank for rank, names in by_rank.items() if "p2p" in names]
    if shm and len(p2p) > len(shm):
        told = [by_rank[rank]["shm"] for rank in shm]
        yield _way(shm, by_rank, f"through shared memory where {ranks_text(p2p)} use peer to peer", told, [])


def _fabric(fact: Fact) -> bool:
    """A NIC for verbs: InfiniBand, or one of a make that speaks RoCE, by what its labels or its name say."""
    told = " ".join((fact.device, *(value for _, value in fact.labels))).lower()
    return any(word in told for word in ("infiniband", "roce", "mlx5", "connectx"))


def _known(off: dict[str, Fact], name: str) -> list[Fact]:
    return [off[name]] if name in off else []


def _way(ranks: list[int], by_rank: dict[int, dict[str, Fact]], how: str, told: list[Fact], why: list[Fact]) -> Finding:
    everyone = len(ranks) == len(by_rank)
    return Finding(
        class_="transport_unexpected",
        summary=f"{'all ranks talk' if everyone else ranks_text(ranks) + ' talk'} {how}",
        original_fault=Fault(ranks=() if everyone else tuple(sorted(ranks)), host=one(fact.host for fact in told)),
        cause="configuration",
        confidence=0.8,
        evidence=(*lines(told, 4), *lines(why, 4)),
        next="NCCL_DEBUG=INFO: which NICs NET/IB finds, whether nvidia_peermem or DMA-BUF is there, NCCL_NET_GDR_LEVEL",
        recovery="none",
    )


def _peer_to_peer(case: Case, acs: list[Fact]) -> Iterator[Finding]:
    """Everybody arrived in a call over peer to peer and nobody left, while ACS sends that traffic elsewhere."""
    if not acs or case.facts("network", "ib.completion."):
        return
    hosts = {fact.host for fact in acs}
    p2p = [fact for fact in case.facts("transport", "p2p") if not fact.host or "" in hosts or fact.host in hosts]
    stuck = case.facts("watchdog")
    hangs = list(case.found("hang"))
    if not p2p or not (stuck or hangs) or any(hung.decided for hung in hangs):
        return
    yield Finding(
        class_="transport_unexpected",
        summary="host PCIe configuration: GPUs talk peer to peer and ACS on the PCIe bridges sends that through the"
        " IOMMU: the collective never completes",
        original_fault=Fault(host=one(fact.host for fact in acs)),
        cause="configuration",
        first_reporter="all ranks",
        confidence=0.75,
        evidence=(
            *lines(acs, 3),
            *lines(p2p, 3),
            *(line for hung in hangs for line in hung.evidence[:2]),
            *lines(stuck, 2),
        ),
        next=_ACS + "; NCCL_P2P_DISABLE=1 going through confirms it",
        recovery="restart group",
    )
