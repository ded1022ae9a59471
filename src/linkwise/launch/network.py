"""Environment of a process: which devices it sees, which NICs its libraries use, which NUMA node it is bound to."""

import re
from collections.abc import Sequence

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.engine.base import Refusal
from linkwise.launch.base import Asked, local
from linkwise.launch.types import Group

# Names Linux gives RDMA devices: by driver (mlx5_0, bnxt_re0), or by bus (rocep24s0, ibp3s0f0, rdmap16s27).
_RDMA = re.compile(
    r"(mlx[45]_(bond_)?\d+|bnxt_re(_bond)?\d+|irdma\d+|hfi1_\d+|hns_\d+|ionic_\d+|mana_\d+|efa_\d+"
    r"|(roce|ib|rdma)(p\d+)?[a-z0-9]*)"
)
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
# Makers whose devices are chosen by another variable than these launchers write.
_OTHER_MAKERS = ("gaudi", "tpu", "trainium", "inferentia")


def check_interface(name: str) -> str:
    """A network interface as Linux names it. Raises InputError."""
    if name and not _INTERFACE.fullmatch(name):
        raise InputError(repr(name[:40]), where="--interface", expected="a network interface, such as eth0")
    return name


def visible_refusal(cluster: Cluster) -> Refusal | None:
    """Why devices cannot be assigned to processes; None when they can."""
    named = f"{cluster.accelerator.name} {cluster.accelerator.label}".lower()
    if any(maker in named for maker in _OTHER_MAKERS):
        return Refusal(
            reason=f"{cluster.accelerator.label}: how a process is given some of a node's devices is not known"
        )
    return None


def environment(asked: Asked, group: Group, node: int, ranks: Sequence[int]) -> dict[str, str]:
    """What the libraries of a process read. ranks: the plan's, in the order the process numbers its devices."""
    found: dict[str, str] = {}
    if asked.interface:
        found = {"NCCL_SOCKET_IFNAME": asked.interface, "GLOO_SOCKET_IFNAME": asked.interface}
    if asked.far:  # which devices and NICs a pod gets is not ours to say
        return found
    devices = ",".join(map(str, local(asked, group, ranks)))
    # CUDA numbers devices by speed unless told otherwise; a topology file numbers them by bus.
    found |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices}
    if "amd" in asked.cluster.accelerator.label.lower():
        found["HIP_VISIBLE_DEVICES"] = devices
    across = len({asked.cluster.node_of(d) for d in group.devices}) > 1
    nics = rdma(asked.cluster, [group.devices[rank] for rank in ranks])
    if across and nics:
        found["NCCL_IB_HCA"] = "=" + ",".join(nics)  # the sign asks for exact names
    if group.role != "both" and nics:
        found["UCX_NET_DEVICES"] = ",".join(f"{name}:1" for name in nics)
    return found


def is_address(host: str) -> bool:
    """Whether it has the form of an IPv4 address."""
    return _ADDRESS.fullmatch(host) is not None


def own_address(asked: Asked, node: int) -> str:
    """The node's own IPv4 address where it is known; engines guess it otherwise."""
    host = asked.host(node)
    return host if is_address(host) else ""


def rdma(cluster: Cluster, devices: Sequence[int]) -> tuple[str, ...]:
    """Names of the RDMA devices nearest to these devices of one node; () where no file names them all."""
    detail = cluster.detail_of(cluster.node_of(devices[0]))
    if detail is None or not detail.nic_names:
        return ()
    names = dict.fromkeys(detail.nic_names[nic] for device in devices for nic in cluster.nics_of(device))
    return tuple(names) if all(_RDMA.fullmatch(name) for name in names) else ()


def unnamed(asked: Asked) -> tuple[str, ...]:
    """What to say of NICs and interfaces that are not set."""
    said = []
    wide = any(len({asked.cluster.node_of(d) for d in g.devices}) > 1 or g.role != "both" for g in asked.groups)
    if wide and asked.cluster.nics_per_node:
        first = [group.devices[0] for group in asked.groups]
        if not all(rdma(asked.cluster, [device]) for device in first):
            said.append(
                "no topology file names RDMA devices: NCCL and UCX choose NICs by themselves (linkwise cluster read"
                " makes a cluster that names them)"
            )
    if not asked.alone and not asked.interface:
        said.append("no --interface: NCCL and Gloo choose the network interface for rendezvous by themselves")
    return tuple(said)


def numa(asked: Asked, group: Group, node: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """NUMA node of each rank's device; () unless a topology file states all of them."""
    detail = asked.cluster.detail_of(node)
    if detail is None or not detail.numa or asked.far:
        return ()
    found = tuple(detail.numa[index] for index in local(asked, group, ranks))
    return () if -1 in found else found


def unbound(asked: Asked, engine: str) -> tuple[str, ...]:
    """What to say of NUMA nodes that are known and not set. engine: one that does not bind the ranks of a process."""
    for group in asked.groups:
        for node in dict.fromkeys(asked.cluster.node_of(d) for d in group.devices):
            ranks = [rank for rank, d in enumerate(group.devices) if asked.cluster.node_of(d) == node]
            numbers = sorted(set(numa(asked, group, node, ranks)))
            if len(numbers) > 1:
                listed = ", ".join(map(str, numbers))
                return (
                    f"{engine} is not told NUMA nodes: {group.name} has devices of nodes {listed} on node {node}, and"
                    " one process starts their ranks",
                )
    return ()


def bound(numbers: Sequence[int]) -> tuple[str, ...]:
    """numactl in front of a process whose devices share a NUMA node; () otherwise."""
    if len(set(numbers)) != 1:
        return ()
    return ("numactl", f"--cpunodebind={numbers[0]}", f"--membind={numbers[0]}")
