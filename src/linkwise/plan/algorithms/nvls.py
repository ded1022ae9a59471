"""NVLink SHARP: the scale-up switch adds up what devices send and multicasts a device's write to all of them.

Each device owns 1/n of the tensor. Reduce: the switch reads that share from all n devices and gives its owner the sum.
Multicast: the owner writes it once and all n receive it. Between nodes (NVLS tree) owners of the same share run a tree.
"""

from collections.abc import Iterator

from linkwise.core.errors import InputError
from linkwise.plan.algorithms import tree
from linkwise.plan.algorithms.base import SWITCH, Call, Send, Site, equal_domains


def all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """Sends S to be added up and S/n to be multicast; receives S/n and S: S(1 + 1/n) each way."""
    _one_switch(where)
    yield from reduce_scatter(where, call)
    yield from all_gather(where, call)


def all_gather(where: Site, call: Call) -> Iterator[Send]:
    """A device writes its share once and receives the whole, its own share included."""
    _one_switch(where)
    yield from _multicast(where.devices, call)


def reduce_scatter(where: Site, call: Call) -> Iterator[Send]:
    """A device's whole tensor is read by the switch; the sum of its share comes back."""
    _one_switch(where)
    yield from _reduce(where.devices, call)


def tree_all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """NVLS inside each node, a double binary tree over the nodes for each local share S/m."""
    m = equal_domains(where, "nvls_tree")
    for members in where.domains:
        _one_switch(where.part(members))
        yield from _reduce(members, call)
        yield from _multicast(members, call)
    for local in zip(*where.domains, strict=True):
        yield from tree.all_reduce(where.part(local), call._replace(S=call.S / m))


def _reduce(members: tuple[int, ...], call: Call) -> Iterator[Send]:
    for member in members if len(members) > 1 else ():
        yield Send(member, SWITCH, call.S)
        yield Send(SWITCH, member, call.S / len(members))


def _multicast(members: tuple[int, ...], call: Call) -> Iterator[Send]:
    for member in members if len(members) > 1 else ():
        yield Send(member, SWITCH, call.S / len(members))
        yield Send(SWITCH, member, call.S)


def _one_switch(where: Site) -> None:
    if where.size > 1 and not where.switched:
        raise InputError(
            f"devices {', '.join(map(str, where.devices[:8]))} share no scale-up switch",
            where="nvls",
            expected="all members on one switched island",
            hint="Between nodes there is nvls_tree",
        )
