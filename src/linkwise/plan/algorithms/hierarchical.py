"""Two levels: inside a node over its fast links, between nodes among members of the same place."""

from collections.abc import Iterator

from linkwise.core.quantity import Num, total
from linkwise.plan.algorithms import ring
from linkwise.plan.algorithms.base import Call, Send, Site, equal_domains
from linkwise.plan.algorithms.direct import bound_for


def all_reduce(where: Site, call: Call) -> Iterator[Send]:
    """Reduce-scatter inside each node, all-reduce of each share S/m between nodes, all-gather inside."""
    m = equal_domains(where, "hierarchical")
    inner = call._replace(channels=None)
    for members in where.domains:
        inside = where.part(members)
        yield from ring.reduce_scatter(inside, inner)
        yield from ring.all_gather(inside, inner)
    for local in zip(*where.domains, strict=True):
        yield from ring.all_reduce(where.part(local), inner._replace(S=call.S / m))


def all_to_all(where: Site, call: Call) -> Iterator[Send]:
    """Node-limited exchange: a token crosses once to each node it has business on, then fans out inside it.

    It lands on the member of that node in the sender's place (the same rail), which passes it on to the members that
    need it. `crossing` and `fan_out` say what is left of the bytes after those who travel together are counted once.
    """
    bound = dict(zip(where.devices, bound_for(where, call), strict=True))
    for home in where.domains:
        for place, source in enumerate(home):
            for domain in where.domains:
                # On its own node a token is where it starts: no crossing, it fans out at once.
                landing = source if domain is home else domain[place % len(domain)]
                if landing != source:
                    yield _send(source, landing, call.crossing * total(bound[x] for x in domain), call.back)
                for target in domain:
                    if target != landing:
                        yield _send(landing, target, call.fan_out * bound[target], call.back)


def _send(a: int, b: int, size: Num, back: bool) -> Send:
    return Send(b, a, size) if back else Send(a, b, size)
