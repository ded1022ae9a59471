"""What one pass over the events of a PyTorch profiler trace keeps: little enough for millions of them.

Facts: pytorch/pytorch torch/csrc/profiler/util.cpp (saveNcclMeta: the names of arguments, lists cut after 30 entries,
Src and Dst Rank as world ranks), pytorch/kineto libkineto/src/output_json.cpp (copied to the kernel; ts in us).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from linkwise.trace.readers import kineto_names as names
from linkwise.trace.readers.kineto_columns import MAX_THREADS, Launches, Work, ns

MAX_CALLS = 1_000_000  # of each kind
MAX_NAMES = 50_000  # kernel names remembered
MAX_NAME = 400  # characters of a name that are looked at
MAX_US = 2**61 // 1000  # of a time
MAX_MEMBERS = 65_536
MAX_ELEMENTS = 2**56

_Id = Annotated[int, Meta(ge=-1, le=2**62)] | None
_Elements = Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)] | None


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`; ts, dur in us."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Raw = Raw(b"{}")


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "collective": "Collective name", "inside": "In msg nelems", "outside": "Out msg nelems", "size": "Group size",
        "name": "Process Group Name", "description": "Process Group Description", "ranks": "Process Group Ranks",
        "seq": "Seq", "src": "Src Rank", "dst": "Dst Rank", "start": "Global rank start",
        "stride": "Global rank stride", "external": "External id", "dims": "Input Dims", "types": "Input type",
    },
):  # fmt: skip
    """What `args` say of a collective."""

    collective: str | None = None
    dtype: str | None = None
    inside: _Elements = None
    outside: _Elements = None
    size: _Id = None
    name: str | int | None = None
    description: str | None = None
    ranks: str | None = None
    seq: _Id = None
    src: _Id = None
    dst: _Id = None
    start: _Id = None
    stride: _Id = None
    external: _Id = None
    correlation: _Id = None
    dims: Raw = Raw(b"[]")
    types: Raw = Raw(b"[]")


_EVENT, _ARGS = msgspec.json.Decoder(Event), msgspec.json.Decoder(Args)
_DIMS, _TYPES = msgspec.json.Decoder(list[Any]), msgspec.json.Decoder(list[Any])
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError, OverflowError)
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "runtime"})


class Call(msgspec.Struct):
    """A collective as one event tells of it: a kernel, or a thread that asks for it. Times in ns of the trace."""

    op: str
    begin: int
    end: int
    tid: int | str | None
    dtype: str = ""
    S_bytes: int = 0
    group: str = ""
    seq: int = -1
    peer: int = -1
    role: str = ""
    external: int = -1
    correlation: int = -1
    share: bool = False  # S_bytes is of this rank's share of what is gathered


class Window(NamedTuple):
    """An annotation that is a step of the run. rank: how well it names one."""

    begin: int
    end: int
    rank: int
    number: int


class Groups:
    """Process groups by key, description and name: the same words on every member."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, name: str, description: str | None, members: tuple[int, ...], size: int) -> str:
        key = f"{description or ('default_pg' if name == '0' else 'undefined')}:{name}"[:200]
        if len(self.sizes) < 4096 or key in self.sizes:
            if members and not self.members.get(key):
                self.members[key] = members
            self.sizes[key] = max(size, len(members), self.sizes.get(key, 0))
        return key

    @property
    def only(self) -> str:
        """The key of the one group there is; empty when there are several."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 else ""


class Scan:
    """What one pass over all events keeps."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.events = self.odd = self.dropped = 0
        self.latest_us = 0.0
        self.kernels: list[Call] = []  # collectives on the device
        self.params: list[Call] = []  # record_param_comms with arguments
        self.marks: list[Call] = []  # annotations nccl:...
        self.gloo: list[Call] = []  # annotations gloo:...
        self.asked: list[Call] = []  # operators c10d::...
        self.launches = Launches()
        self.windows: dict[bool, list[Window]] = {False: [], True: []}  # by whether on the device
        self.device = Work()
        self.host: dict[int | str, Work] = {}
        self.devices: Counter[int] = Counter()
        self.pids: Counter[int] = Counter()
        self._kernels: dict[str, tuple[tuple[str, str, str] | None, int]] = {}
        self._operators: dict[str, int] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._looks: Mapping[str, Callable[[Event], None]] = {
            "kernel": self._kernel, "gpu_memcpy": self._copy, "gpu_memset": self._copy,
            "cpu_op": self._operator, "operator": self._operator,
            "user_annotation": self._mark, "gpu_user_annotation": self._step,
        } | dict.fromkeys(_RUNTIME, self._launch)  # fmt: skip

    def take(self, raw: Raw) -> None:
        """One event; one that is not understood is counted and left out."""
        self.events += 1
        try:
            event = _EVENT.decode(raw)
            if event.ph == "X":
                self._complete(event)
        except _BROKEN:
            self.odd += 1

    def _complete(self, event: Event) -> None:
        if event.ts is None or not 0 <= event.ts < MAX_US or not 0 <= (event.dur or 0) < MAX_US:
            raise ValueError("a time beyond the bounds")
        self.latest_us = event.ts
        category = event.cat or ""
        look = self._looks.get(category) or self._looks.get(category.lower())
        if look is not None:
            look(event)

    def _kernel(self, event: Event) -> None:
        name = event.name[:MAX_NAME]
        known = self._kernels.get(name)
        if known is None:
            if len(self._kernels) >= MAX_NAMES:
                self._kernels.clear()
            known = self._kernels[name] = names.kernel_call(name), names.work(name)
        if isinstance(event.pid, int) and 0 <= event.pid < 2**16:
            self.devices[event.pid] += 1
        if known[0] is None:
            self.device.add(event.ts or 0.0, event.dur or 0.0, known[1])
        elif self._room(self.kernels):
            op, dtype, role = known[0]
            self.kernels.append(self._call(event, op, dtype, role))

    def _copy(self, event: Event) -> None:
        self.device.add(event.ts or 0.0, event.dur or 0.0, names.MEMCPY)

    def _operator(self, event: Event) -> None:
        name = event.name[:MAX_NAME]
        if name == "record_param_comms":
            if b"Collective name" in bytes(event.args) and self._room(self.params):
                call = self._call(event, "")
                if call.op not in names.NO_CALLS:
                    self.params.append(call)
            return
        if name.startswith("c10d::"):
            if self._room(self.asked):
                self.asked.append(self._call(event, names.op(name)))
            return
        kind = self._operators.get(name)
        if kind is None:
            if len(self._operators) >= MAX_NAMES:
                self._operators.clear()
            kind = self._operators[name] = names.work(name)
        tid = -1 if event.tid is None else event.tid
        work = self.host.get(tid)
        if work is None:
            if len(self.host) >= MAX_THREADS:
                return
            work = self.host[tid] = Work()
        work.add(event.ts or 0.0, event.dur or 0.0, kind)
        if isinstance(event.pid, int) and 0 <= event.pid < 2**31 and (event.pid in self.pids or len(self.pids) < 64):
            self.pids[event.pid] += 1

    def _mark(self, event: Event) -> None:
        backend, _, op = event.name[:MAX_NAME].partition(":")
        if backend in {"nccl", "gloo"} and op:
            kept = self.marks if backend == "nccl" else self.gloo
            if self._room(kept):
                kept.append(self._call(event, names.op(op)))
        else:
            self._step(event, on_device=False)

    def _step(self, event: Event, on_device: bool = True) -> None:
        found = names.step(event.name[:MAX_NAME])
        if found and self._room(self.windows[on_device]):
            self.windows[on_device].append(Window(*_span(event), *found))

    def _launch(self, event: Event) -> None:
        found = _ARGS.decode(event.args).correlation if "aunch" in event.name else None
        if found is not None and found > 0:
            self.launches.add(found, _span(event)[0], event.tid)

    def _room(self, rows: list[Any]) -> bool:
        if len(rows) < MAX_CALLS:
            return True
        self.dropped += 1
        return False

    def _call(self, event: Event, op: str, dtype: str = "", role: str = "") -> Call:
        args = _ARGS.decode(event.args)
        begin, end = _span(event)
        found = Call(
            op, begin, end, event.tid, dtype, role=role, external=_or(args.external), correlation=_or(args.correlation)
        )
        if args.collective is not None:
            self._named(found, args)
        else:
            _shaped(found, args)
            whole = event.name.startswith("c10d::") and ("_base" in event.name or "_into_tensor" in event.name)
            found.share = found.op in {"all_gather", "gather"} and not whole
        return found

    def _named(self, call: Call, args: Args) -> None:
        """Arguments of `record_param_comms`, on it or copied to the kernel."""
        call.op = names.op((args.collective or "")[:MAX_NAME])
        call.dtype, width = names.dtype((args.dtype or "")[:60])
        sent, got, size = args.inside or 0, args.outside or 0, max(args.size or 0, 0)
        elements = {
            "all_gather": got, "gather": max(got, sent * size), "scatter": max(sent, got * size), "barrier": 0,
            "reduce_scatter": sent, "all_to_all": sent,
        }.get(call.op, max(sent, got))  # fmt: skip
        call.S_bytes = min(elements * width, 2**62)
        call.seq = _or(args.seq)
        call.peer = _or(args.dst if call.op == "send" else args.src if call.op == "recv" else None)
        if args.name is not None:
            members = self._members(args)
            call.group = self.groups.add(str(args.name)[:150], (args.description or "")[:40], members, size)

    def _members(self, args: Args) -> tuple[int, ...]:
        """World ranks; () where the list is cut ([0, 1, ..., 29, ...]) and the group has no even stride."""
        text = args.ranks or ""
        if "..." in text:
            start, stride, size = args.start, args.stride, args.size
            even = start is not None and stride is not None and size is not None and 0 < size <= MAX_MEMBERS
            if not even or start < 0 or stride < 1 or start + stride * size >= 2**20:  # type: ignore[operator]
                return ()
            return tuple(range(start, start + stride * size, stride))  # type: ignore[operator,arg-type]
        if text not in self._ranks:
            self._ranks[text] = members(text) if len(self._ranks) < MAX_NAMES else ()
        return self._ranks[text]


def members(text: str) -> tuple[int, ...]:
    """Ranks of a text like [0, 1]; () for what is none."""
    found = re.findall(r"\d{1,7}", text[: 8 * MAX_MEMBERS])
    return tuple(map(int, found)) if len(found) <= MAX_MEMBERS and max(map(int, found), default=0) < 2**20 else ()


def _span(event: Event) -> tuple[int, int]:
    begin = ns(event.ts or 0.0)
    return begin, begin + round((event.dur or 0.0) * 1000)


def _or(number: int | None) -> int:
    return -1 if number is None else number


def _shaped(call: Call, args: Args) -> None:
    """Size of a call from `Input Dims`, which a trace with record_shapes has: of tensors the call was given."""
    shapes = [shape for shape in map(_elements, _DIMS.decode(args.dims)[:2]) if shape is not None]
    kinds = [names.dtype(kind) for kind in _TYPES.decode(args.types)[:2] if isinstance(kind, str)]
    known = [kind for kind in kinds if kind[0]]
    if not shapes or not known:
        return
    call.dtype, width = known[0]
    # The `_base` operators name their output first: the larger one is the gathered tensor, or the one to be reduced.
    call.S_bytes = min((shapes[-1] if call.op == "all_to_all" else max(shapes)) * width, 2**62)


def _elements(shape: Any) -> int | None:
    """Elements of a tensor, or of a list of tensors; None for what is no shape."""
    if not isinstance(shape, list) or not shape or len(shape) > 4096:
        return None
    if all(isinstance(one, list) for one in shape):
        inner = [_elements(one) for one in shape if all(isinstance(part, int) for part in one)]
        return min(sum(one or 0 for one in inner), MAX_ELEMENTS)
    count = 1
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_ELEMENTS:
            return None
        count = min(count * size, MAX_ELEMENTS)
    return count
