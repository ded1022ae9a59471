"""Direct sends: every member to every other, one message from one to another, or all to one."""

from collections.abc import Iterator

from linkwise.core.errors import InputError
from linkwise.core.quantity import Num
from linkwise.plan.algorithms.base import Call, Send, Site


def one_shot_all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """Every member reads every other's whole tensor and adds up by itself."""
    return _pairs(where, call.S)


def two_shot_all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """Each member collects and adds its 1/n, then every other reads the sum: twice S/n per pair."""
    return _pairs(where, 2 * call.S / where.size)


def all_gather(where: Site, call: Call) -> Iterator[Send]:
    """Each member's share to every other."""
    return _pairs(where, call.S / where.size)


reduce_scatter = all_gather  # to every other its share


def all_to_all(where: Site, call: Call) -> Iterator[Send]:
    """Every member to every other: S/n, or `sizes[j]` to member j (from member j when the exchange is in reverse)."""
    bound = bound_for(where, call)
    for i, source in enumerate(where.devices):
        for j, target in enumerate(where.devices):
            if i != j:
                yield Send(target, source, bound[j]) if call.back else Send(source, target, bound[j])


def send_recv(where: Site, call: Call) -> Iterator[Send]:
    """One message from the first member to the second."""
    if where.size != 2:
        raise InputError(f"{where.size} members", where="send_recv", expected="2: who sends, who receives")
    source, target = where.devices
    yield Send(source, target, call.S)


def gather(where: Site, call: Call) -> Iterator[Send]:
    """Every other member's share to the root."""
    root = where.devices[call.root]
    yield from (Send(member, root, call.S / where.size) for member in where.devices if member != root)


def bound_for(where: Site, call: Call) -> tuple[Num, ...]:
    """Bytes one member has for each member."""
    if not call.sizes:
        return (call.S / where.size,) * where.size
    if len(call.sizes) != where.size:
        raise InputError(f"{len(call.sizes)} sizes", where="all_to_all", expected=f"{where.size}, one a member")
    return call.sizes


def _pairs(where: Site, each: Num) -> Iterator[Send]:
    yield from (Send(a, b, each) for a in where.devices for b in where.devices if a != b)
