"""What a launch is made of: groups as the plan puts them, processes as an engine starts them, and the whole of it."""

import re
from typing import Literal

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen

DEPLOYMENT_SCHEMA = "linkwise.deployment/1"
Role = Literal["both", "prefill", "decode", "router"]
MultiNode = Literal["native", "ray", "slurm"]

# What becomes part of file names and of words a shell reads.
NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
STAND_IN = re.compile(r"\$\{HOST_([0-9]{1,5})\}")
KEY_VARIABLE = "LINKWISE_API_KEY"
KEY = f"${{{KEY_VARIABLE}}}"  # stands for the key that requests need
EXPANDED = re.compile(f"{STAND_IN.pattern}|{re.escape(KEY)}")  # all that a script expands
MAX_WORD = 20_000


def stand_in(node: int) -> str:
    """What stands for a node's address until a script fills it in from hosts.env or from Slurm."""
    return f"${{HOST_{node}}}"


def check_host(name: str, where: str) -> str:
    """A host name or IPv4 address, nothing a shell or a URL reads differently. Raises InputError."""
    if not _HOST.fullmatch(name):
        raise InputError(repr(name[:80]), where=where, expected="host names or IPv4 addresses, commas between them")
    return name


def check_word(word: str, where: str) -> str:
    """A word of a command: one line of printable text. Raises InputError."""
    if len(word) > MAX_WORD or not word.isprintable():
        raise InputError(f"{word[:80]!r}", where=where, expected=f"at most {MAX_WORD} printable characters")
    return word


def check_given(word: str, where: str) -> str:
    """A word a user gives: as `check_word`, and nothing that the files expand. Raises InputError."""
    if found := EXPANDED.search(word):
        raise InputError(f"{found[0]} in {word[:80]!r}", where=where, expected="a name without it: the files expand it")
    return check_word(word, where)


class Group(Frozen, frozen=True, kw_only=True):
    """One serving group. devices: numbers of the cluster's devices in the plan's rank order."""

    name: str
    role: Role
    layout: Layout
    devices: tuple[int, ...]


class Process(Frozen, frozen=True, kw_only=True):
    """One process that a script starts on one node.

    group: the group's name; "" for a router. node: the plan's number of the node, host: its address, or a stand-in.
    devices: indices on the node in the order the process numbers them; ranks: the plan's ranks on them, in that order.
    before: a command that has to end well before `command` starts; () = none.
    ports: by purpose; "http" where it answers requests. started_by: the process whose command starts this one too
    (mpirun); "" = a script starts it.
    """

    name: str
    group: str
    role: Role
    node: int
    host: str
    devices: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    command: tuple[str, ...]
    before: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    ports: dict[str, int] = {}
    started_by: str = ""

    def __post_init__(self) -> None:
        where = f"process {self.name[:60]!r}"
        if not NAME.fullmatch(self.name):
            raise InputError("the name", where=where, expected="lower-case letters, digits and dashes")
        if not STAND_IN.fullmatch(self.host):
            check_host(self.host, where)
        if not self.command:
            raise InputError("no command", where=where, expected="at least one word")
        for word in (*self.command, *self.before):
            check_word(word, where)
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name):
                raise InputError(f"environment: {name[:60]!r}", where=where, expected="the name of a variable")
            check_word(value, where)
        for name, port in self.ports.items():
            if not 1 <= port <= 65_535:
                raise InputError(f"port {name[:40]} is {port}", where=where, expected="1..65535")
        if len(self.devices) != len(self.ranks) or len(set(self.devices)) != len(self.devices):
            raise InputError("devices and ranks do not match", where=where, expected="one device for each rank")

    @property
    def url(self) -> str:
        """Where it answers; "" when it does not."""
        return f"http://{self.host}:{self.ports['http']}" if "http" in self.ports else ""


class Served(Frozen, frozen=True, kw_only=True):
    """What a benchmark asks for: mean lengths in tokens, arrivals or requests at once."""

    isl_tokens: int
    osl_tokens: int
    rate_per_s: float | None = None
    concurrency: int | None = None


class Deployment(Frozen, frozen=True, kw_only=True):
    """Everything that is started, as a program reads it (deployment.json).

    model: what the engine is given; called: its name in the API. front: where requests go. hosts: address by the plan's
    node number, the nodes in use. start_s: how long a group may take until it serves. keyed: requests need a key.
    differs: what the files do otherwise than the plan has it; notes: what to know.
    """

    schema: str = DEPLOYMENT_SCHEMA
    version: str
    engine: str
    engine_version: str
    model: str
    called: str
    multi_node: MultiNode
    groups: tuple[Group, ...]
    devices_per_node: int
    hosts: dict[int, str]
    processes: tuple[Process, ...]
    front: str
    connector: str = ""
    start_s: float = 1800.0
    keyed: bool = False
    served: Served
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: dict[str, str] = {}

    def __post_init__(self) -> None:
        where = "deployment"
        if self.schema != DEPLOYMENT_SCHEMA:
            raise InputError(f"schema {self.schema[:60]!r}", where=where, expected=DEPLOYMENT_SCHEMA)
        names = [p.name for p in self.processes]
        if len(set(names)) != len(names):
            raise InputError("a process twice", where=where, expected="each name once")
        for process in self.processes:
            if process.started_by and process.started_by not in names:
                raise InputError(f"started_by {process.started_by[:60]!r}", where=where, expected="a process")
            if process.node not in self.hosts:
                raise InputError(f"node {process.node}", where=where, expected="one of hosts")
        if self.front not in {p.url for p in self.processes if p.url}:
            raise InputError(f"front {self.front[:80]!r}", where=where, expected="the address of a process")
        for name in self.files:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,80}", name):
                raise InputError(f"file {name[:80]!r}", where=where, expected="a plain file name")
        self._check_devices(where)

    def _check_devices(self, where: str) -> None:
        """Each device once, each group's ranks exactly on the devices the plan names."""
        by_name = {group.name: group for group in self.groups}
        found: dict[str, dict[int, int]] = {group.name: {} for group in self.groups}
        used: set[int] = set()
        for process in self.processes:
            if process.ranks and process.group not in by_name:
                raise InputError(f"group {process.group[:60]!r}", where=where, expected="one of groups")
            for device, rank in zip(process.devices, process.ranks, strict=True):
                number = process.node * self.devices_per_node + device
                if number in used or rank in found[process.group]:
                    raise InputError(f"device {number} or rank {rank} twice", where=where, expected="each once")
                used.add(number)
                found[process.group][rank] = number
        for group in self.groups:
            if tuple(found[group.name].get(rank, -1) for rank in range(group.layout.size)) != group.devices:
                raise InputError(f"group {group.name}", where=where, expected="every rank on the device it is given")

    def starts(self, node: int) -> tuple[Process, ...]:
        """What a script starts on a node."""
        return tuple(p for p in self.processes if p.node == node and not p.started_by)

    @property
    def starting(self) -> tuple[int, ...]:
        """Nodes on which a script starts something."""
        return tuple(node for node in self.hosts if self.starts(node))

    def started_from(self, node: int) -> str:
        """The processes elsewhere that start what runs on a node."""
        by = dict.fromkeys(p.started_by for p in self.processes if p.node == node and p.started_by)
        from_nodes = {p.name: p.node for p in self.processes}
        return ", ".join(f"{name} on node {from_nodes[name]} starts it" for name in by)

    def serving(self, role: Role) -> tuple[Process, ...]:
        """Processes of a role that answer requests."""
        return tuple(p for p in self.processes if p.role == role and p.url)
