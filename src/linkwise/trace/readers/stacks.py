"""Where threads stand: dumps of py-spy, of gdb (`thread apply all bt`, gstack) and of Python's faulthandler.

The innermost frame that means something names the place: a collective, the proxy queue of NCCL, a lock, a wait.
"""

import re
from typing import NamedTuple

from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.shared import Block, Found, placed, placed_by_path
from linkwise.trace.readers.sieve import Sieve

FORMAT = "thread stacks"

MAX_THREADS = 4_096
MAX_FRAMES = 256  # of a thread, the innermost
SHOWN = 12
GAP = 200  # lines of something else after which a process's dump is over
# Words of which every line of a dump holds one, also behind what launchers and engines put before a line.
WORDS = (
    "\n  ", ")   ", "Z   ", "Z  F", "]:  ", "Thread ", "Process ", "Fatal Python", "rank", "Rank", "RANK", "yspy dump",
    *(f"\n#{number} " for number in range(10)), *(f"\n#{number}" for number in range(10, 100)),
)  # fmt: skip

_PROCESS = re.compile(r"^Process (\d{1,10}): (.{0,2000})")  # py-spy
_ABOUT = re.compile(r"\bPyspy dump for PID (\d{1,10})")  # SGLang srt/utils: before each dump of its watchdog
_PYSPY = re.compile(r'^Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(((?:active|idle)[^)]{0,20})\)(?:: "(.{0,200})")?')
_FAULT = re.compile(r"^(Current thread|Thread) 0x[0-9a-fA-F]{1,16}(?: \[([^\]]{0,100})\])? \(most recent call first\)")
_GDB = re.compile(r'^Thread (\d{1,6}) \((?:Thread 0x[0-9a-fA-F]{1,16} )?\(?LWP (\d{1,10})\)(?: "([^"]{0,100})")?\)?')
_FATAL = re.compile(r"^Fatal Python error: (.{1,300})")
_HEADING = re.compile(r"^\W*(?:global[_ ])?rank\s*[:=#]?\s*(\d{1,6})\W*$", re.IGNORECASE)
_FAULT_FRAME = re.compile(r'^\s+File "([^"]{1,500})", line (\d{1,7}|\?\?\?) in (\S{1,200})')
_GDB_FRAME = re.compile(r"^#\d{1,4}\s+(?:0x[0-9a-fA-F]{1,16} in )?(?=\S)")

_PROXY = re.compile(r"ncclLocalOpAppend|SaveProxy|ncclProxy(?:Save|Start|Post)", re.IGNORECASE)
_OPS = tuple(
    (re.compile(pattern, re.IGNORECASE), op)
    for pattern, op in (
        (r"all_?reduce", "all_reduce"),
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all", "all_to_all"),
        (r"broadcast(?!_(?:tensors|shapes|to|arrays|in_dim|batch)$)|bcast", "broadcast"),
        (r"barrier", "barrier"),
        (r"\bRecvWork\b|ncclRecv|MPI_I?Recv", "recv"),
        (r"\bSendWork\b|ncclSend|MPI_I?Send", "send"),
    )
)
# Plain words that mean a collective only where torch or an engine keeps its process groups.
_PLAIN = re.compile(
    r"i?(send|recv)(?:_object|_tensor_dict|_object_list)?|(reduce|gather|scatter)(?:_object|_object_list)?"
)
_GROUPS = re.compile(r"torch/distributed/|distributed_c10d|parallel_state|process_group|communicator|pynccl")
_LOCK = re.compile(r"baton|flock|lock_?file|^acquire$|take_gil|acquire_lock$", re.IGNORECASE)
_LOCK_FILE = re.compile(r"baton|filelock")
_IDLE = re.compile(
    r"^(?:select|poll|epoll_wait|accept4?|sleep|recv_multipart|zmq_poll|zmq_msg_recv|acquire_read|acquire_write|dequeue|"
    r"collective_rpc|wait_for_response_threads|_recv_bytes|_recv)$"
)
_IDLE_AT = (("get", "queue"), ("wait", "threading.py"), ("recv", "multiprocessing"), ("recv", "zmq"), ("poll", "zmq"))
_DEVICE = re.compile(
    r"(?:cuda|cu|hip)(?:Stream|Event|Device|Ctx)Synchronize|WorkNCCL::|_local_scalar_dense|wait_tensor"
)
_DEVICE_AT = re.compile(r"torch/(?:cuda|accelerator|xpu|npu)")
# What a thread does while it waits for something that an outer frame tells.
_PRIMITIVE = re.compile(
    r"pthread_|futex|__lll|poll$|^read$|^recv$|_wait$|nanosleep|syscall|^0x|clone|\?\?|^gloo::|^c10d?::|^pybind11|^Py|_Py"
)
_FOREIGN = re.compile(
    r"(?:^|/)(?:torch|multiprocessing|asyncio|concurrent|cupy|mpi4py|ray|zmq)(?:/|$)|"
    r"(?:^|/)(?:threading|contextlib|functools|queue|selectors|socket|subprocess|shm_broadcast)\.py|"
    r"lib[\w+.-]*\.so|\.cc$|\.cpp$|\.c$|\.h$|_contextlib|^<|^$"
)
_GENERIC = re.compile(
    r"^(?:wrapper|__call__|__init__|_call_impl|_wrapped_call_impl|decorate_context|<\w+>|_?inner|run)$"
)


class Frame(NamedTuple):
    """A frame: function, file without its line, and line."""

    function: str
    file: str
    line: str


class _Thread(NamedTuple):
    name: str
    main: bool
    state: str
    at: int
    frames: list[Frame]


class Stacks:
    """Takes a log's lines one by one and keeps the threads of one process at a time."""

    def __init__(self, found: Found, place: tuple[int, dict[str, str]] = (-1, {})) -> None:
        self.found, self.place = found, place
        self._section = place
        self._by_pid: dict[str, tuple[int, dict[str, str]]] = {}
        self._title, self._pid = "", ""
        self._said: tuple[int, dict[str, str]] | None = None
        self._threads: list[_Thread] = []
        self._frames: list[Frame] | None = None
        self._last, self._unix_ns = 0, 0

    def wants(self, text: str) -> bool:
        """Whether a line can be of a dump: what is indented opens none, a heading with a rank aside."""
        return self._frames is not None or not text[:1].isspace() or "ank" in text

    def feed(self, line: int, text: str, *, said: tuple[int, dict[str, str]] | None = None, unix_ns: int = 0) -> bool:
        """Whether the line is of a dump. said: place that the log says of the line; unix_ns: its time."""
        row = text[: shared.MAX_LINE].rstrip()
        if self._threads and line - self._last > GAP:
            self.flush()
        if self._frames is not None and (frame := _frame(row)):
            if len(self._frames) < MAX_FRAMES:
                self._frames.append(frame)
            self._last = line
            return True
        if row[:1] in "PTCF=#*-rRgG " and self._opens(line, row, said, unix_ns):
            self._last = line
            return True
        if about := _ABOUT.search(row):
            if said and len(self._by_pid) < MAX_THREADS:
                self._by_pid[about[1]] = said
            self._unix_ns = unix_ns or self._unix_ns
            return True
        return False

    def _opens(self, line: int, row: str, said: tuple[int, dict[str, str]] | None, unix_ns: int) -> bool:
        if process := _PROCESS.match(row):
            self.flush()
            self._pid, self._title, self._said, self._unix_ns = process[1], process[2], said, unix_ns or self._unix_ns
        elif heading := _HEADING.match(row):
            self.flush()
            self._section = (int(heading[1]), {})
        elif fatal := _FATAL.match(row):
            self.flush()
            self._said, self._unix_ns = said, unix_ns
            rank, labels = self._who()
            about = labels | {"reason": fatal[1]}
            self.found.add("error", "fatal_python_error", line=line, rank=rank, labels=about, text=row, unix_ns=unix_ns)
        elif thread := _PYSPY.match(row):
            main = thread[3] == "MainThread" or thread[1] == self._pid
            self._open(line, thread[3] or thread[1], main, thread[2])
        elif thread := _FAULT.match(row):
            if said is not None and said != self._said:
                self.flush()
                self._said, self._unix_ns = said, unix_ns
            self._open(line, thread[2] or "", thread[1] == "Current thread", "")
        elif thread := _GDB.match(row):
            number = int(thread[1])
            if self._threads and self._threads[-1].name.startswith("gdb ") and number >= int(self._last_number()):
                self.flush()
            self._pid = thread[2] if number == 1 else self._pid
            self._open(line, f"gdb {number} {thread[3] or ''}".strip(), number == 1, "")
        else:
            return False
        return True

    def _last_number(self) -> str:
        return self._threads[-1].name.split()[1]

    def _open(self, line: int, name: str, main: bool, state: str) -> None:
        frames: list[Frame] = []
        if len(self._threads) < MAX_THREADS:
            self._threads.append(_Thread(name, main, state, line, frames))
        self._frames = frames

    def _who(self) -> tuple[int, dict[str, str]]:
        """The process's place by its own title, by what the log said of its id, by a heading, or by the file's name."""
        titled = placed(self._title, dp_inside="sglang" in self._title)
        if titled[0] >= 0:
            return titled
        for known in (self._by_pid.get(self._pid), self._said, self._section, self.place):
            if known and (known[0] >= 0 or known[1]):
                return known[0], known[1] | titled[1]
        return titled

    def flush(self) -> None:
        """The process is over: a fact of its main thread, and of others that stand in a collective."""
        threads = [thread for thread in self._threads if thread.frames]
        main = next((t for t in threads if t.main), None) or (
            threads[-1 if not self._title else 0] if threads else None
        )
        rank, labels = self._who()
        about = labels | {"pid": self._pid, "process": self._title[:120]}
        others = 0
        for thread in threads:
            name, place = standing(thread.frames)
            beside = thread is not main
            if beside and (others >= 4 or name not in _COLLECTIVES):
                continue
            others += beside
            caller = _caller(thread.frames, place)
            more = {
                "frames": " < ".join(f.function for f in _named(thread.frames)[:SHOWN]),
                "within": _outer(thread.frames, place) if name == "nccl_proxy" else "",
                "caller": caller.function if caller else "",
                "at": f"{caller.file}:{caller.line}" if caller else "",
                "thread": thread.name if beside else "main",
                "state": thread.state,
            }
            text = " < ".join(f"{frame.function} ({frame.file})" for frame in _named(thread.frames)[:4])
            self.found.add(
                "stack", name, line=thread.at, rank=rank, labels=about | more, text=text, unix_ns=self._unix_ns
            )
        self._threads, self._frames, self._title, self._pid, self._said = [], None, "", "", None


_COLLECTIVES = {op for _, op in _OPS} | {"reduce", "gather", "scatter", "nccl_proxy"}


def _named(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if not frame.function.startswith(("0x", "??"))]


def _frame(row: str) -> Frame | None:
    """A frame of any of the three forms, taken apart from its end, as C++ functions hold every sign."""
    if row[:1] == "#":
        found = _GDB_FRAME.match(row)
        if not found:
            return None
        function, closed, place = row[found.end() :].rpartition(") at ")
        if not closed:
            function, closed, place = row[found.end() :].rpartition(") from ")
        return Frame(_short(function if closed else place), *_at(place if closed else ""))
    if fault := _FAULT_FRAME.match(row):
        return Frame(_short(fault[3]), fault[1], fault[2])
    function, opened, place = row.rpartition(" (")
    if opened and row[:2] == "  " and place.endswith(")") and function.strip() and len(place) < 400:
        return Frame(_short(function.strip()), *_at(place[:-1]))
    return None


def _at(place: str) -> tuple[str, str]:
    file, colon, line = place.rpartition(":")
    return (file, line) if colon and line.isdecimal() and len(line) < 8 else (place[:300], "")


def _short(function: str) -> str:
    """A function without its arguments and templates."""
    return re.split(r"[(<]", function, maxsplit=1)[0].strip()[:80] or function[:80]


def standing(frames: list[Frame]) -> tuple[str, int]:
    """What a thread does, and the frame that says it: the innermost collective, unless a wait or lock is within."""
    waits, inner = ("", len(frames)), True
    for place, frame in enumerate(frames):
        if op := _op(frame):
            return (op, place) if not waits[0] or waits[0] == "device_wait" else waits
        wait = _wait(frame) if inner else ""
        if wait and not waits[0]:
            waits = (wait, place)
        # Beyond the first function of the engine's own, waits are of the loops that called it.
        inner = inner and (bool(wait) or ".py" not in frame.file or bool(_FOREIGN.search(frame.file)))
    if waits[0]:
        return waits
    primitive = bool(frames) and all(_PRIMITIVE.search(frame.function) for frame in frames)
    return ("idle" if primitive else "compute"), 0


def _op(frame: Frame) -> str:
    if _PROXY.search(frame.function):
        return "nccl_proxy"
    if frame.file.endswith("shm_broadcast.py") or "shm_broadcast" in frame.function:
        return ""  # the queue between an engine and its workers, no collective
    for pattern, op in _OPS:
        if pattern.search(frame.function):
            return op
    plain = _PLAIN.fullmatch(frame.function)
    return (plain[1] or plain[2]) if plain and _GROUPS.search(frame.file) else ""


def _outer(frames: list[Frame], place: int) -> str:
    """The collective on whose behalf a thread is in the proxy queue."""
    return next((op for op in map(_op, frames[place + 1 :]) if op not in {"", "nccl_proxy"}), "")


def _wait(frame: Frame) -> str:
    if _LOCK.search(frame.function) or _LOCK_FILE.search(frame.file):
        return "lock"
    if _DEVICE.search(frame.function) or (frame.function == "synchronize" and _DEVICE_AT.search(frame.file)):
        return "device_wait"
    python = frame.file.endswith(".py") or ".py" in frame.file
    idle = any(frame.function == function and part in frame.file for function, part in _IDLE_AT)
    return "idle" if idle or (python and _IDLE.match(frame.function)) else ""


def _caller(frames: list[Frame], place: int) -> Frame | None:
    """The engine's function: the first outside libraries that names no collective itself, else the last that does."""
    own = [f for f in frames[place + 1 :] if not _FOREIGN.search(f.file) and not _GENERIC.match(f.function)]
    return next((f for f in own if not _op(f)), own[-1] if own else None)


_SIEVE = Sieve(*WORDS)


def fits(title: str, head: str) -> bool:
    """A thread's heading of one of the three, with a frame below it."""
    lines = head.splitlines()
    opened = False
    for line in lines:
        if any(pattern.match(line) for pattern in (_PYSPY, _FAULT, _GDB)):
            opened = True
        elif opened and _frame(line.rstrip()[: shared.MAX_LINE]):
            return True
    return False


def recognises(source: Source) -> bool:
    """By a thread's heading and a frame."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Facts `stack`: of the main thread of each process, and of its threads that stand in a collective."""
    stacks = Stacks(found, placed_by_path(block.title))
    for line, text in block.sifted(_SIEVE):
        stacks.feed(line, text)
    stacks.flush()
