"""What the page shows, as one frozen value that is readable as JSON: the page draws it and computes nothing.

Units stand in names. Numbers that depend on the batch are lists, one entry for each of `batches`.
"""

from linkwise.core.schema import Frozen

PAGE_SCHEMA = "linkwise.page/1"


class Book(Frozen, frozen=True, kw_only=True):
    """Chains of all figures, every step of them written once.

    words: texts that steps share. steps: (name, formula, source, note) as places in words, then the value as shown and
    the formula in numbers ("" = nothing new). chains: steps of a chain, inputs first, the figure last.
    """

    words: tuple[str, ...]
    steps: tuple[tuple[int, int, int, int, str, str], ...]
    chains: tuple[tuple[int, ...], ...]


class Figure(Frozen, frozen=True, kw_only=True):
    """A figure at every batch: its value, and its chain as a place in `Book.chains`. One entry = the same at all.

    A batch without the figure, such as one whose step has no such op, has None and -1.
    """

    path: str
    unit: str
    values: tuple[int | float | None, ...]
    chains: tuple[int, ...]


class Taught(Frozen, frozen=True, kw_only=True):
    """A figure under the textbook's convention, at the plan's batch. chain: a place in `Book.chains`.

    differences: what makes it differ from the engine's own.
    """

    value: int | float
    chain: int
    differences: tuple[str, ...]


class Wire(Frozen, frozen=True, kw_only=True):
    """What a drawn line stands for. kind: island, peers, slot, host, sockets, nic, switch, core.

    a, b: vertices, the device's side first. out, back: places in `Picture.links` of the links from a to b and back:
    several where a device's links to its peers are one line.
    """

    kind: str
    a: str
    b: str
    out: tuple[int, ...]
    back: tuple[int, ...]


class Node(Frozen, frozen=True, kw_only=True):
    """Nodes that carry the same at every step and batch, drawn once as the first. nodes: their numbers.

    devices: those of the drawn one. vertices: its islands, hosts, slots and NICs.
    """

    nodes: tuple[int, ...]
    devices: tuple[int, ...]
    vertices: tuple[str, ...]
    wires: tuple[Wire, ...]


class Link(Frozen, frozen=True, kw_only=True):
    """A directed link of a drawn node, or between switches. source: where its bandwidth is from."""

    name: str
    kind: str
    spec_Bps: float
    effective_Bps: float
    source: str


class Carried(Frozen, frozen=True, kw_only=True):
    """What alike links carry in a step. like: the link that was counted; parts: (role, group, bytes) by size.

    busy_s: of one such link. chain: of `like`, a place in `Book.chains`; -1 = not kept.
    """

    like: str
    bytes: float
    busy_s: float
    parts: tuple[tuple[str, str, float], ...]
    chain: int = -1


class Load(Frozen, frozen=True, kw_only=True):
    """One step at one batch. of: for each of `Picture.links` its place in `carried`, -1 = nothing.

    over_s: what utilisation is the share of: the time in which the step's bytes cross. busiest: by time, `src>dst`.
    """

    step: str
    batch: int
    over_s: float
    carried: tuple[Carried, ...]
    of: tuple[int, ...]
    busiest: str
    busiest_s: float


class Picture(Frozen, frozen=True, kw_only=True):
    """Nodes, links and what they carry. ranks: by device, (replica, rank), -1 = free. core: between switches.

    hidden: nodes that carry something else than those drawn, more than a picture holds.
    """

    devices_per_node: int
    ranks: tuple[tuple[int, int], ...]
    nodes: tuple[Node, ...]
    core: tuple[Wire, ...]
    links: tuple[Link, ...]
    loads: tuple[Load, ...]
    hidden: int = 0


class OpTime(Frozen, frozen=True, kw_only=True):
    """An op of a stage. call_s: the price of one call; exposed_s: what all of them add to the step, under the constants
    that the engine's steps were fitted with."""

    role: str
    kind: str
    group: str
    size: int
    algorithm: str
    calls: int
    S_bytes: float
    call_s: float
    exposed_s: float


class StageTime(Frozen, frozen=True, kw_only=True):
    """Stages that take the same: parts of the computation in seconds, then exposed ops, then the host."""

    stages: tuple[int, ...]
    parts: dict[str, float]
    ops: tuple[OpTime, ...]
    host_s: float
    step_s: float


class StepTime(Frozen, frozen=True, kw_only=True):
    """One step at one batch: a token's way through all stages, and the busiest stage's turn."""

    step: str
    batch: int
    token_s: float
    interval_s: float
    in_flight: int
    stages: tuple[StageTime, ...]


class State(Frozen, frozen=True, kw_only=True):
    """A state of a rank: bytes, how it is split, and the figure it is (its path; "" = none of its own)."""

    name: str
    bytes: int
    note: str
    in_budget: bool
    path: str = ""


class RankMemory(Frozen, frozen=True, kw_only=True):
    """Memory of ranks that hold the same."""

    label: str
    ranks: str
    states: tuple[State, ...]
    device_bytes: int
    budget_bytes: int
    kv_bytes: int
    tightest: bool


class Tried(Frozen, frozen=True, kw_only=True):
    """A layout of the search. verdict: chosen, runner-up, feasible, rejected. points: (batch, tokens/s a user,
    tokens/s a device), empty when it cannot run. reason: why it was rejected; resource: of what it is short."""

    layout: str
    devices: int
    verdict: str
    points: tuple[tuple[int, float, float], ...] = ()
    resource: str = ""
    reason: str = ""


class Observed(Frozen, frozen=True, kw_only=True):
    """One role (or kind) over all ranks of a trace. None: not known. Times: of one call, the median seen."""

    role: str
    kind: str
    planned_calls: int | None
    planned_bytes: float | None
    planned_s: float | None
    observed_calls: int
    observed_bytes: float
    observed_s: float | None


class ObservedLink(Frozen, frozen=True, kw_only=True):
    """Bytes that a counter saw leave or enter over a NIC, against the links of the plan."""

    counter: str
    links: str
    planned_bytes: float
    observed_bytes: float


class Comparison(Frozen, frozen=True, kw_only=True):
    """A trace against the plan. ranks: records in it."""

    ranks: int
    steps: int
    ops: tuple[Observed, ...]
    links: tuple[ObservedLink, ...] = ()
    notes: tuple[str, ...] = ()


class Fault(Frozen, frozen=True, kw_only=True):
    """A finding, and where it is in the picture: devices, links and nodes it marks."""

    title: str
    summary: str
    where: str
    confidence: float
    decided: bool
    evidence: tuple[str, ...]
    first_reporter: str
    next: str
    devices: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()


class Page(Frozen, frozen=True, kw_only=True):
    """Everything on the page. plan: where the plan's own batch stands in `batches`. lead: the plan in words.

    textbook: by path, figures of the plan's batch under the textbook's convention. used: what stands beside the plan,
    and what of it is on the page.
    """

    schema: str = PAGE_SCHEMA
    version: str
    title: str
    lead: tuple[tuple[str, str], ...]
    calibration: str
    batches: tuple[int, ...]
    plan: int
    steps: tuple[str, ...]
    figures: tuple[Figure, ...]
    textbook: dict[str, Taught]
    book: Book
    picture: Picture
    times: tuple[StepTime, ...]
    memory: tuple[RankMemory, ...]
    layouts: tuple[Tried, ...]
    layouts_left_out: int
    targets: tuple[tuple[str, float], ...]
    observed: Comparison | None = None
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
