"""How an engine batches, and how many replicas do it: what a pool of the simulator is made of."""

from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.simulate.tables import Tables

POLICIES = ("mixed", "prefill-first")
ROUTERS = ("random", "round-robin", "least", "prefix")
RECOVERY = ("elsewhere", "drop", "stay")
FAULT_KINDS = ("slow", "link", "down")
ROLES = ("both", "prefill", "decode")


class Rules(Frozen, frozen=True, kw_only=True):
    """How one replica batches.

    policy: "mixed" (prompts ride in decode steps) or "prefill-first" (prompts in steps of their own, ahead of rows).
    budget: most tokens of a step on a lane. chunked: whether a prompt may be cut to what is left of it.
    max_seqs: most requests of a lane. slots: batches in flight (pipeline microbatches). lanes: attention replicas.
    kv_blocks: of `block_tokens` tokens each, on a lane. reserve: share of the answer a request's blocks are taken for
    when it is admitted. prefix_cache: whether prompts' blocks are shared and kept; part_blocks: whether tokens of a
    block that is shared in part are found cached, in a copy.
    verify: tokens a row brings to a step (1, and drafted ones); acceptance: chance that a drafted one is kept.
    poll: steps of rows between two looks at the queue. hold: with several lanes, prompts start when every lane has one,
    or a lane has no rows, or in every hold-th step; 0 = at once. gather: most steps that prompts wait, while rows
    decode, until a step of at least gather_tokens tokens comes together; 0 = none. ahead: a step is put together while
    the one before it runs, without what comes meanwhile.
    front_s: from the client to the queue; front_each_s, front_prompt_s: of the one thread that takes requests in, for
    each of them and for each token of its prompt.
    """

    policy: str = "mixed"
    chunked: bool = True
    budget: int = 8192
    max_seqs: int = 256
    slots: int = 1
    lanes: int = 1
    block_tokens: int = 16
    kv_blocks: int = 1 << 30
    reserve: float = 0.0
    prefix_cache: bool = True
    part_blocks: bool = False
    verify: int = 1
    acceptance: float = 1.0
    poll: int = 1
    hold: int = 0
    gather: int = 0
    gather_tokens: int = 0
    ahead: bool = False
    front_s: float = 0.0
    front_each_s: float = 0.0
    front_prompt_s: float = 0.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(
                f"policy is {self.policy[:40]!r}", where="simulate", expected="one of " + ", ".join(POLICIES)
            )
        for field, low, high in (
            ("budget", 1, 1 << 20), ("max_seqs", 1, 1 << 20), ("slots", 1, 4096), ("lanes", 1, 4096),
            ("block_tokens", 1, 65_536), ("kv_blocks", 1, 1 << 40), ("reserve", 0, 1), ("verify", 1, 65),
            ("acceptance", 0, 1), ("poll", 1, 10_000), ("hold", 0, 10_000), ("gather", 0, 10_000),
            ("gather_tokens", 0, 1 << 20), ("front_s", 0, 1e3),
            ("front_each_s", 0, 1e3), ("front_prompt_s", 0, 10),
        ):  # fmt: skip
            value = getattr(self, field)
            if not low <= value <= high:  # NaN is refused as well
                raise InputError(f"{field} is {value}", where="simulate", expected=f"{low}..{high}")
        if self.budget < self.verify:
            raise InputError(f"budget is {self.budget}", where="simulate", expected=f"{self.verify}, a row's tokens")

    @property
    def slot_seqs(self) -> int:
        """Most requests of one slot on a lane: its share of the engine's, and no more rows than a step has tokens."""
        return min(-(-self.max_seqs // self.slots), self.budget // self.verify)


class Fault(Frozen, frozen=True, kw_only=True):
    """Something wrong with a replica from start_s to end_s.

    kind: "slow" (a rank computes `factor` times as long, and its group waits for it), "link" (its collectives and
    transfers take `factor` times as long), "down" (it is gone and comes back empty).
    """

    kind: str
    replica: int
    start_s: float
    end_s: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise InputError(f"kind is {self.kind[:40]!r}", where="fault", expected="one of " + ", ".join(FAULT_KINDS))
        if not 0 <= self.start_s < self.end_s <= 1e9:
            raise InputError(
                f"from {self.start_s} s to {self.end_s} s", where="fault", expected="0 <= start < end <= 1e9"
            )
        if not 1 <= self.factor <= 1e6:
            raise InputError(f"factor is {self.factor}", where="fault", expected="1 (as fast as before) .. 1e6")


class Pool(NamedTuple):
    """Replicas that are alike. role: "both" (prompts and answers), "prefill" or "decode"."""

    rules: Rules
    tables: Tables
    replicas: int = 1
    role: str = "both"
    label: str = ""


class Transfer(Frozen, frozen=True, kw_only=True):
    """Handing a prompt's KV over: seconds = base_s + token_s x prompt tokens on the slower side's route.

    fail: chance that a transfer has to be repeated; tries: how often its sender repeats it before it gives up.
    route: what limits it, in words.
    """

    base_s: float = 0.0
    token_s: float = 0.0
    fail: float = 0.0
    tries: int = 3
    route: str = ""

    def __post_init__(self) -> None:
        for field, high in (("base_s", 1e6), ("token_s", 1e3), ("fail", 1), ("tries", 1000)):
            if not 0 <= getattr(self, field) <= high:
                raise InputError(f"{field} is {getattr(self, field)}", where="transfer", expected=f"0..{high:g}")


class Run(Frozen, frozen=True, kw_only=True):
    """How the pools are driven. users: a closed loop of so many, each `think_s` after its last answer; 0 = as arrivals
    say. max_waiting: most requests in a lane's queue, more are refused; 0 = no limit. steps_kept: of the timeline."""

    seed: int = 0
    users: int = 0
    think_s: float = 0.0
    router: str = "least"
    recovery: str = "elsewhere"
    max_waiting: int = 0
    faults: tuple[Fault, ...] = ()
    transfer: Transfer = Transfer()
    steps_kept: int = 0

    def __post_init__(self) -> None:
        for field, known in (("router", ROUTERS), ("recovery", RECOVERY)):
            if getattr(self, field) not in known:
                raise InputError(
                    f"{field} is {getattr(self, field)[:40]!r}", where="simulate", expected="one of " + ", ".join(known)
                )
        for field, high in (
            ("seed", 2**63 - 1), ("users", 10_000_000), ("think_s", 1e6), ("max_waiting", 10**9),
            ("steps_kept", 10_000_000),
        ):  # fmt: skip
            if not 0 <= getattr(self, field) <= high:
                raise InputError(f"{field} is {getattr(self, field)}", where="simulate", expected=f"0..{high:g}")
