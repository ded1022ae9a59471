"""A placement in the words of launchers: visible devices, rank files, host orders, NIC lists. Text, nothing is run.

Formats: Open MPI's rankfile (`rank N=host slot=socket:cores`, Open MPI 4 and 5); Slurm's SLURM_HOSTFILE, a host a line
in rank order, with `srun --distribution=arbitrary`; torchrun numbers ranks node by node, so it takes a host order only;
NCCL_IB_HCA, where a leading = asks for exact names.
"""

from collections.abc import Sequence

from linkwise.core.errors import InputError
from linkwise.plan.placement_types import HostRanks, Placement

KINDS = ("cuda", "rankfile", "slurm", "torchrun", "nics")


def text(placement: Placement, kind: str, replica: int = 0, hosts: Sequence[str] = ()) -> str:
    """One file or list for one replica. hosts: names of the cluster's nodes in order; without them node0, node1, ...

    Raises InputError for an unknown kind or replica, too few hosts, or an order torchrun cannot express.
    """
    if kind not in KINDS:
        raise InputError(repr(kind), where="--as", expected="one of " + ", ".join(KINDS))
    if not 0 <= replica < len(placement.rank_grid):
        raise InputError(f"replica {replica}", where="--replica", expected=f"0..{len(placement.rank_grid) - 1}")
    own = [part for part in placement.hosts if part.replica == replica]
    _check_hosts(own, hosts)
    write = {"cuda": _cuda, "rankfile": _rankfile, "slurm": _slurm, "torchrun": _torchrun, "nics": _nics}[kind]
    return "\n".join(write(placement, own, hosts)) + "\n"


def host(node: int, hosts: Sequence[str]) -> str:
    """Name of a node."""
    return hosts[node] if hosts else f"node{node}"


def visible(part: HostRanks) -> str:
    """The device list of a replica's ranks on one node: local rank k drives the k-th."""
    return "CUDA_VISIBLE_DEVICES=" + ",".join(map(str, part.devices))


def torchrun_refusal(parts: Sequence[HostRanks]) -> str:
    """Why torchrun cannot number ranks this way; empty when it can."""
    wide = len(parts[0].ranks)
    for at, part in enumerate(parts):
        if len(part.ranks) != wide:
            return f"node {part.node} has {len(part.ranks)} ranks, node {parts[0].node} has {wide}"
        if part.ranks != tuple(range(at * wide, (at + 1) * wide)):
            return f"ranks of node {part.node} are not one after the other: {', '.join(map(str, part.ranks[:8]))}"
    return ""


def _check_hosts(parts: Sequence[HostRanks], hosts: Sequence[str]) -> None:
    for name in hosts:
        # The names go into files that launchers read word by word.
        if not name or len(name) > 253 or not all(c.isalnum() or c in "-._:" for c in name):
            raise InputError(repr(name[:60]), where="--hosts", expected="host names, commas between them")
    most = max(part.node for part in parts)
    if hosts and most >= len(hosts):
        raise InputError(f"{len(hosts)} names", where="--hosts", expected=f"at least {most + 1}: one for each node")


def _by_rank(parts: Sequence[HostRanks]) -> list[tuple[int, HostRanks, int]]:
    """(rank, its node's part, local rank) in rank order."""
    return sorted((rank, part, local) for part in parts for local, rank in enumerate(part.ranks))


def _cuda(_: Placement, parts: Sequence[HostRanks], hosts: Sequence[str]) -> list[str]:
    # CUDA numbers devices by speed unless told otherwise; a topology file numbers them by bus.
    return [f"{host(part.node, hosts)}: CUDA_DEVICE_ORDER=PCI_BUS_ID {visible(part)}" for part in parts]


def _rankfile(_: Placement, parts: Sequence[HostRanks], hosts: Sequence[str]) -> list[str]:
    return [f"rank {r}={host(part.node, hosts)} slot={part.numa[local]}:*" for r, part, local in _by_rank(parts)]


def _slurm(_: Placement, parts: Sequence[HostRanks], hosts: Sequence[str]) -> list[str]:
    return [host(part.node, hosts) for _, part, _ in _by_rank(parts)]


def _torchrun(_: Placement, parts: Sequence[HostRanks], hosts: Sequence[str]) -> list[str]:
    refused = torchrun_refusal(parts)
    if refused:
        raise InputError(
            f"torchrun numbers ranks node by node; {refused}", where="--as torchrun", expected="--as rankfile or slurm"
        )
    wide = len(parts[0].ranks)
    shape = f"torchrun --nnodes={len(parts)} --nproc-per-node={wide}"
    return [f"{host(part.node, hosts)}: {visible(part)} {shape} --node-rank={i}" for i, part in enumerate(parts)]


def _nics(placement: Placement, parts: Sequence[HostRanks], hosts: Sequence[str]) -> list[str]:
    if not any(nics for part in parts for nics in part.nics):
        raise InputError("the cluster names no NICs", where="--as nics", expected="a cluster with nics")
    lines = []
    for rank, part, local in _by_rank(parts):
        names, own = placement.nic_names.get(part.node, ()), part.nics[local]
        said = f"NCCL_IB_HCA=={','.join(names[n] for n in own)}" if names else f"NICs {','.join(map(str, own))}"
        lines.append(f"rank {rank}: {host(part.node, hosts)} device {part.devices[local]} {said}")
    return lines
