"""What a launcher is: one engine's way to start a group, and what it cannot express. One file per engine beside it."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options, Refusal
from linkwise.launch.types import Group, MultiNode, Process, Role, stand_in
from linkwise.model.types import Model

FRONT_PORT = 8000  # where requests go
START_S = 1800.0  # from a start until a group serves: hundreds of gigabytes are read and graphs captured


class Asked(NamedTuple):
    """What is to be started. weights: what the engine is given as the model; called: its name in the API.

    options: the engine's settings by the role of a group.

    hosts: addresses of the cluster's nodes in order; () = stand-ins. interface: of the nodes' network for rendezvous,
    "" = the libraries choose. prompt_tokens: of the longest usual prompt, for transfer buffers. far: every address is
    a stand-in, also on one node (pods). extra: words added to every engine command. router: "linkwise" = our own in
    front; "" = the engine's, where there are several groups. port: of the front.
    start_s: how long a group may take until it serves. keyed: requests need a key, which the environment holds.
    """

    model: Model
    weights: str
    called: str
    cluster: Cluster
    engine: Engine
    options: Mapping[Role, Options]
    groups: tuple[Group, ...]
    multi_node: MultiNode = "native"
    hosts: tuple[str, ...] = ()
    interface: str = ""
    connector: str = ""
    prompt_tokens: int = 0
    far: bool = False
    extra: tuple[str, ...] = ()
    router: str = ""
    port: int = FRONT_PORT
    start_s: float = START_S
    keyed: bool = False

    @property
    def nodes(self) -> tuple[int, ...]:
        """The plan's numbers of the nodes in use."""
        return tuple(sorted({self.cluster.node_of(d) for group in self.groups for d in group.devices}))

    @property
    def alone(self) -> bool:
        """Everything is on one node."""
        return len(self.nodes) == 1

    @property
    def near(self) -> bool:
        """The loopback address reaches everything: one node, which nobody names and Slurm does not choose."""
        return self.alone and not self.hosts and not self.far and self.multi_node != "slurm"

    def host(self, node: int) -> str:
        """A node's address for others."""
        if self.hosts:
            if node >= len(self.hosts):
                raise InputError(
                    f"{len(self.hosts)} names", where="--hosts", expected=f"at least {node + 1}: one for each node"
                )
            return self.hosts[node]
        return "127.0.0.1" if self.near else stand_in(node)

    @property
    def listen(self) -> str:
        """The address servers bind: all of a node's where others must reach them."""
        return "127.0.0.1" if self.near else "0.0.0.0"  # noqa: S104 - others must reach it


class Run(NamedTuple):
    """Ranks that follow each other on one node. ranks: the plan's, in the engine's order."""

    node: int
    ranks: tuple[int, ...]


def runs(asked: Asked, group: Group, order: Sequence[int]) -> list[Run]:
    """A group's ranks in an engine's order, cut where the node changes."""
    found: list[Run] = []
    for rank in order:
        node = asked.cluster.node_of(group.devices[rank])
        if found and found[-1].node == node:
            found[-1] = Run(node, (*found[-1].ranks, rank))
        else:
            found.append(Run(node, (rank,)))
    return found


def uneven(group: Group, found: Sequence[Run], engine: str) -> Refusal | None:
    """Engines give every node of a group the same number of ranks."""
    sizes = {len(run.ranks) for run in found}
    if len(sizes) == 1:
        return None
    listed = ", ".join(f"{len(run.ranks)} on node {run.node}" for run in found[:8])
    return Refusal(reason=f"{group.name} has {listed}: {engine} puts the same number of ranks on every node of a group")


def local(asked: Asked, group: Group, ranks: Sequence[int]) -> tuple[int, ...]:
    """Indices of the ranks' devices on their node."""
    return tuple(group.devices[rank] % asked.cluster.devices_per_node for rank in ranks)


class Ports:
    """Free ports by node, below the range systems give out by themselves (32768 up)."""

    _FIRST = {
        "http": 8100,
        "metrics": 9200,
        "rpc": 13400,
        "bootstrap": 18400,
        "nixl": 20400,
        "gcs": 25400,
        "dist": 29400,
    }
    _EACH = 1000

    def __init__(self, first: int | None = None) -> None:
        """first: the first port that answers requests, where it is the only one."""
        self._base = self._FIRST | ({"http": first} if first else {})
        self._next: dict[tuple[int, str], int] = defaultdict(int)

    @classmethod
    def given(cls, port: int) -> bool:
        """Whether it is one of those this gives out."""
        return any(first <= port <= last for first, last in cls.ranges())

    @classmethod
    def ranges(cls) -> list[tuple[int, int]]:
        """First and last port of each purpose."""
        return [(first, first + cls._EACH - 1) for first in sorted(cls._FIRST.values())]

    def take(self, kind: str, nodes: Sequence[int], count: int = 1) -> int:
        """The first of `count` ports in a row that are free on all these nodes. Raises InputError when they run out."""
        at = max(self._next[node, kind] for node in nodes)
        if at + count > self._EACH:
            raise InputError(
                f"more than {self._EACH} {kind} ports on node {nodes[0]}", where="launch", expected="fewer processes"
            )
        for node in nodes:
            self._next[node, kind] = at + count
        return self._base[kind] + at


def engine_words(asked: Asked, group: Group) -> list[str]:
    """The engine's own command of a group, with the words added to it."""
    return [*asked.engine.command(asked.weights, group.layout, asked.options[group.role]), *asked.extra]


def own_router(asked: Asked) -> Process:
    """Our own router before all groups, which reads where they are from deployment.json beside it."""
    return router_process(asked, ["linkwise", "launch", ".", "--route"])


class Launcher(ABC):
    """How one engine is started. Instances hold nothing."""

    name: str
    multi_node: tuple[MultiNode, ...] = ("native", "slurm")
    joins_replicas = False  # whether one server can hold a plan's replicas as its data-parallel ranks
    takes_key = False  # whether its servers can be told to ask for a key
    connectors: dict[str, str] = {}  # what it can join pools with: our name to the engine's
    # What it writes for some layouts or undoes what it writes, by every name the engine takes: nobody adds it by hand.
    flags: frozenset[str] = frozenset()

    def own_flags(self, asked: Asked) -> frozenset[str]:
        """Flags that `--engine-args` may not hold, with dashes."""
        return self.flags

    def refuses(self, asked: Asked, group: Group) -> Refusal | None:
        """Why these processes cannot be written although the engine has the layout; None when they can."""
        return None

    def differs(self, asked: Asked, layout: Layout) -> tuple[str, ...]:
        """What runs otherwise than the plan says, though on the same devices."""
        return ()

    def notes(self, asked: Asked) -> tuple[str, ...]:
        """What to know before scripts on nodes are started."""
        return ()

    def binds_ranks(self, asked: Asked) -> bool:
        """Whether a process that has devices of several NUMA nodes is told each rank's."""
        return False

    def files(self, asked: Asked) -> dict[str, str]:
        """Files beside the commands, name to text."""
        return {}

    @abstractmethod
    def processes(self, asked: Asked, group: Group, ports: Ports) -> tuple[Process, ...]:
        """The processes of one group, the one that answers requests first. Called once `refuses` has none."""

    @abstractmethod
    def router(self, asked: Asked, processes: Sequence[Process]) -> tuple[Process, dict[str, str]] | None:
        """What stands in front of these processes, and its files; None where one process answers for all."""


def router_process(asked: Asked, command: Sequence[str], environment: dict[str, str] | None = None) -> Process:
    """What stands in front, on the first node in use."""
    node = asked.nodes[0]
    return Process(
        name="router", group="", role="router", node=node, host=asked.host(node), command=tuple(command),
        environment=environment or {}, ports={"http": asked.port},
    )  # fmt: skip
