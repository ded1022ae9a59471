"""`nvidia-smi topo`: the matrices of -m, -mp and -p2p, as printed, pasted, wrapped or cut.

A matrix states the path class of each pair in nvidia-smi's words; NODE (between host bridges of one NUMA node) is
NCCL's PHB. It names no speeds and no PCI addresses. What a cut matrix still says is kept, `partial`, with the line in a
note: rows say the same from both ends, so a missing row usually costs only the pairs among missing rows.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from linkwise.cluster.readers.base import MAX_DEVICES, bounded, check_devices, numa_list, plain, worse
from linkwise.cluster.readers.bonds import bonds
from linkwise.cluster.readers.smi_words import (
    AFTER,
    ALL_WORDS,
    CELL,
    GPU,
    LABEL,
    MAX_LINKS,
    MERGED,
    NAME,
    NOT_LINKS,
    NV,
    PEER_WORDS,
    WORDS,
    begins,
    continues,
    leading,
    like_cell,
)
from linkwise.cluster.topology import Machine, Part, PathClass, pair
from linkwise.core.errors import InputError
from linkwise.core.printable import printable

FORMAT = "smi"
MAX_MATRICES = 64
_LEGEND = re.compile(r"\s*(NIC\d{1,4})\s*:\s*(\S{1,60})\s*")
_COMMAND = re.compile(r"nvidia-smi\s+topo\b.*")
_TRAILING = re.compile(r"(CPU|NUMA)\s+Affinity|GPU\s+NUMA\s+ID|\b(?:CPU|NUMA)\b|\bAffinity\b")


def recognises(text: str) -> bool:
    """Whether some line begins a matrix: GPU0, then nothing, more labels or the affinity columns."""
    return any(begins(line.split()) for line in plain(text[: 2**21]).splitlines() if "GPU" in line)


def read(text: str, *, where: str) -> Machine:
    """A machine from the first matrix of a file; further ones join it if they are of the same GPUs and another kind."""
    blocks = _blocks(bounded(text, where=where).splitlines(), where)
    if not blocks:
        raise InputError("no matrix that begins with GPU0", where=where, expected="output of nvidia-smi topo -m")
    if len(blocks) > MAX_MATRICES:
        raise InputError(f"{len(blocks)} matrices", where=where, expected=f"at most {MAX_MATRICES}")
    for block in blocks:
        block.settle()
    return _machine(blocks, where)


@dataclass(slots=True)
class _Row:
    label: str
    line: int
    cells: list[str]
    rest: list[str]
    tabbed: bool


@dataclass(slots=True)
class _Block:
    """One matrix. columns: a column may stand for several devices when their labels ran together."""

    where: str
    line: int
    heading: list[str]
    command: str
    rows: list[_Row] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    columns: list[tuple[str, ...]] = field(default_factory=list)
    trailing: list[str] = field(default_factory=list)
    last: int = 0  # of the file's lines with something on it
    elided: bool = False
    partial: bool = False

    @property
    def labels(self) -> list[str]:
        return [label for column in self.columns for label in column]

    @property
    def peer(self) -> bool:
        words = {cell for row in self.rows for cell in row.cells}
        return bool(words & set(PEER_WORDS)) and not words - set(PEER_WORDS) - {"X"}

    def note(self, line: int, text: str, *, cut: bool = False) -> None:
        self.notes.append(f"line {line}: {text}")
        self.partial = self.partial or cut

    def header(self) -> None:
        """Columns and affinity columns from the heading's lines, joined."""
        heading = " ".join(self.heading)
        match = _TRAILING.search(heading)
        devices, trailing = (heading[: match.start()], heading[match.start() :]) if match else (heading, "")
        self.trailing = [word for word in ("CPU", "NUMA Affinity", "GPU NUMA ID") if word in " ".join(trailing.split())]
        for word in devices.split():
            if word == "...":
                self.elided = True
                continue
            merged = MERGED.fullmatch(word) is not None
            self.columns.append(tuple(LABEL.findall(word)) if merged else (word,))
        labels = self.labels
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise InputError(f"line {self.line}: column {twice} twice", where=self.where, expected="each device once")
        if len(labels) > MAX_DEVICES:
            raise InputError(f"{len(labels)} GPUs and NICs", where=self.where, expected=f"at most {MAX_DEVICES}")
        if not any(GPU.fullmatch(label) for label in labels):
            raise InputError(f"line {self.line}: no GPU column", where=self.where, expected="GPU0, GPU1, ...")

    def settle(self) -> None:
        """Read the header and split each row into cells and affinity, noting what is cut."""
        self.header()
        split: list[tuple[str, ...]] = [(label,) for label in self.labels]
        if self.rows and len(split) > len(self.columns) and all(len(r.cells) == len(split) for r in self.rows):
            self.columns = split  # only the labels ran together, every device has its cell
        merged = [" and ".join(column) for column in self.columns if len(column) > 1]
        if merged:
            self.note(
                self.line, f"the labels of {', '.join(merged)} run together over one cell, taken for each of them"
            )
        known = set(self.labels)
        seen: set[str] = set()
        for row in self.rows:
            if row.label not in known:
                raise InputError(
                    f"line {row.line}: row {row.label} has no column",
                    where=self.where,
                    expected=", ".join(self.labels)[:200],
                )
            if row.label in seen:
                raise InputError(f"line {row.line}: row {row.label} twice", where=self.where, expected="each row once")
            seen.add(row.label)
            if len(row.cells) > len(self.columns):
                raise InputError(
                    f"line {row.line}: row {row.label} has {len(row.cells)} cells under {len(self.columns)} columns",
                    where=self.where,
                    expected="one cell per column of the header",
                )
            self._check_next(row)
            if len(row.cells) < len(self.columns):
                self.note(
                    row.line, f"row {row.label} ends after {len(row.cells)} of {len(self.columns)} cells", cut=True
                )
        missing = [label for label in self.labels if GPU.fullmatch(label) and label not in seen]
        if missing:
            last = max((row.line for row in self.rows), default=self.line)
            self.note(last, f"the matrix ends here without rows {', '.join(missing)}", cut=True)
        if self.elided:
            self.note(self.line, "columns left out (...): NICs and affinity are not in this file", cut=True)

    def _check_next(self, row: _Row) -> None:
        """Refuse what stands in a column after a row's last cell and is neither a cell nor what follows the cells."""
        place = len(row.cells)
        if place >= len(self.columns) or not any(row.rest) or row.rest[0] == "...":
            return
        word, more = row.rest[0], row.rest[1:]
        column = " and ".join(self.columns[place])
        cut = row.line == self.last and not more and any(known.startswith(word) for known in (*ALL_WORDS, "NV", "N/A"))
        after = self.trailing and AFTER.fullmatch(word)
        if any(CELL.fullmatch(text) for text in more) or (word and not after and not cut):
            raise InputError(
                f"line {row.line}: row {row.label}, column {column}: {printable(word[:20])!r}",
                where=self.where,
                expected=f"X, NV1..NV{MAX_LINKS}, {', '.join(ALL_WORDS)}",
            )

    def pairs(self) -> dict[tuple[str, str], tuple[str, int]]:
        """The word and line of each pair, both ways round where both rows are there."""
        return {
            (row.label, label): (cell, row.line)
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=False)
            for label in column
            if label != row.label
        }


def _blocks(lines: list[str], where: str) -> list[_Block]:
    blocks: list[_Block] = []
    block: _Block | None = None  # the one whose rows may still come
    command = ""
    last = max((number for number, line in enumerate(lines, start=1) if line.strip(" \t`")), default=0)
    for number, line in enumerate(lines, start=1):
        tokens = line.split()
        if called := _COMMAND.search(line):
            command, block = called[0], None
        elif legend := _LEGEND.fullmatch(line):
            if blocks:
                blocks[-1].names[legend[1]] = legend[2]
            block = None
        elif block is not None and _row(block, line, tokens, number):
            continue
        elif begins(tokens):
            block = _Block(where, number, [line.replace("\t", " ")], command, last=last)
            blocks.append(block)
            command = ""
        elif block is not None and not block.rows and continues(tokens):
            block.heading.append(line)
        elif tokens and block is not None and block.rows:
            block = None
    return [found for found in blocks if found.rows or len(found.heading) + len(found.heading[0].split()) > 2]


def _row(block: _Block, line: str, tokens: list[str], number: int) -> bool:
    """Take a line as a row of the block, or as the rest of its last row; False when it is neither."""
    if not tokens:
        return False
    named = len(tokens) > 1 and NAME.fullmatch(tokens[0]) and tokens[0] != "X"
    fits = named and (CELL.fullmatch(tokens[1]) or _garbled(block, tokens))
    alone = len(tokens) == 1 and LABEL.fullmatch(tokens[0]) and block.rows and tokens[0].startswith(("GPU", "NIC"))
    if fits or alone:
        cells = leading(tokens[1:])
        rest, tabbed = tokens[1 + len(cells) :], False
        fields = [part.strip() for part in line.strip(" \n").split("\t")]
        led = len(leading(fields[1:]))
        # A column without a word among them: what follows it must not move up.
        if fields[0] == tokens[0] and len(fields) > 1 and (led == len(cells) or fields[1 + led : 2 + led] == [""]):
            cells, rest, tabbed = cells[:led], fields[1 + led :], True
        block.rows.append(_Row(tokens[0], number, cells, rest, tabbed))
        return True
    last = block.rows[-1] if block.rows else None
    if last and not any(last.rest) and last.line == number - 1 and like_cell(tokens[0]) and "=" not in tokens:
        more = leading(tokens)
        last.cells += more
        last.rest, last.tabbed, last.line = tokens[len(more) :], False, number
        return True
    return False


def _garbled(block: _Block, tokens: list[str]) -> bool:
    """Whether a line that begins with a label of the matrix is a row whose first cell is none."""
    if not (LABEL.fullmatch(tokens[0]) or any(tokens[0] in line.split() for line in block.heading)):
        return False
    prose = tokens[1] == "..." or any(c.islower() for c in tokens[1])
    return bool(NOT_LINKS.fullmatch(tokens[1])) or (not prose and any(map(CELL.fullmatch, tokens[2:])))


def _machine(blocks: list[_Block], where: str) -> Machine:
    first = blocks[0]
    joined = [first]
    notes = []
    for block in blocks[1:]:
        kinds = {other.peer for other in joined}
        if block.labels == first.labels[: len(block.labels)] and block.peer not in kinds:
            joined.append(block)
        elif block.peer and block.labels == first.labels and all(other.peer for other in joined):
            joined.append(block)  # -p2p r, then -p2p w
        else:
            notes.append(
                f"line {block.line}: another matrix, of {len(block.labels)} devices: not read, a file holds one machine"
            )
    ids = _ids(first)
    paths, raw, counts, peer = _Relations(ids, notes).of(joined)
    parts, affinity = _parts(first, ids, notes)
    check_devices(parts, where=where)
    switches, wires = bonds(counts, notes)
    shown = any(cell.startswith("NV") for block in joined for row in block.rows for cell in row.cells)
    if not shown and any(not block.peer for block in joined):
        hidden = "topo -mp shows PCIe alone" if "-mp" in first.command else "topo -mp never shows any"
        notes.append(f"no NVLink in this matrix ({hidden})")
    return Machine(
        format=FORMAT,
        source=where,
        parts=(*parts, *switches),
        wires=tuple(wires),
        paths=paths,
        raw=raw,
        affinity=affinity,
        peer=peer,
        partial=any(block.partial for block in joined),
        notes=(*(note for block in joined for note in block.notes), *notes),
    )


def _ids(block: _Block) -> dict[str, str]:
    """Our id of each label: GPU3 is gpu3; NIC3 is nic3, and NICs that go by a name are numbered in column order."""
    nics = [label for label in block.labels if not GPU.fullmatch(label)]
    numbered = all(re.fullmatch(r"NIC\d+", label) for label in nics)
    ids = {label: f"gpu{int(match[1])}" for label in block.labels if (match := GPU.fullmatch(label))}
    ids |= {label: f"nic{int(label[3:]) if numbered else order}" for order, label in enumerate(nics)}
    return ids


@dataclass(slots=True)
class _Relations:
    """Pairs of all joined matrices as path classes, file words, NVLink counts and peer status."""

    ids: dict[str, str]
    notes: list[str]

    def of(self, blocks: list[_Block]) -> tuple[dict[str, PathClass], dict[str, str], dict[str, int], dict[str, str]]:
        paths: dict[str, PathClass] = {}
        raw: dict[str, str] = {}
        counts: dict[str, int] = {}
        peer: dict[str, str] = {}
        for block in blocks:
            found = block.pairs()
            for (a, b), (word, line) in found.items():
                key = pair(self.ids[a], self.ids[b])
                if not key.startswith("gpu") or word == "X":
                    continue
                if word in PEER_WORDS:
                    peer[key] = word if peer.get(key, "OK") == "OK" else peer[key]
                    continue
                back, back_line = found.get((b, a), (word, line))
                if back != word and line < back_line:
                    self.notes.append(
                        f"line {line}: {a} says {word} of {b}, line {back_line} says {back}: the worse is taken"
                    )
                self.add(key, word, paths, raw, counts)
        return paths, raw, counts, peer

    @staticmethod
    def add(key: str, word: str, paths: dict[str, PathClass], raw: dict[str, str], counts: dict[str, int]) -> None:
        """Enter a word; where the two ends differ the farther class stays, and the fewer NVLinks."""
        links = NV.fullmatch(word)
        path = PathClass.NVL if links else WORDS[word]
        if key in paths and (worse(path, paths[key]) != path or (path == paths[key] and not links)):
            return
        if links and key in counts and counts[key] <= int(links[1]):
            return
        paths[key] = path
        counts.pop(key, None)
        raw.pop(key, None)
        if links:
            counts[key] = int(links[1])
        if word != path:
            raw[key] = word


def _parts(block: _Block, ids: dict[str, str], notes: list[str]) -> tuple[list[Part], dict[str, str]]:
    rows = {row.label: row for row in block.rows}
    parts, affinity, memory = [], {}, []
    for label, name in ids.items():
        kind: Literal["gpu", "nic"] = "gpu" if name.startswith("gpu") else "nic"
        numa = None
        if kind == "gpu" and label in rows:
            cpus, near, own = _affinity(block, rows[label], notes)
            numa, several = numa_list(near)
            if several:
                notes.append(f"line {rows[label].line}: NUMA nodes {near} of {name}: the first is taken as its node")
            if cpus:
                affinity[name] = cpus
            if own.isdigit():
                memory.append(f"{name} {own}")
        model = block.names.get(label, "" if re.fullmatch(r"(GPU|NIC)\d+", label) else label)
        parts.append(Part(id=name, kind=kind, index=int(name[3:]), numa=numa, model=model))
    if memory:
        notes.append(f"the GPUs' own memory is a NUMA node: {', '.join(memory)}")
    numas = sorted({part.numa for part in parts if part.numa is not None})
    parts += [Part(id=f"numa{numa}", kind="cpu", index=numa, numa=numa) for numa in numas]
    return parts, affinity


def _affinity(block: _Block, row: _Row, notes: list[str]) -> tuple[str, str, str]:
    """`(CPU list, NUMA nodes, GPU's own NUMA node)` of a row, "" for what it does not state."""
    columns, rest = block.trailing, [word for word in row.rest if word != "..."]
    if not columns or not any(rest):
        return "", "", ""
    if row.tabbed:
        # nvidia-smi sets a second tab after NUMA Affinity: the last field is the last column's.
        fields = [*rest, "", "", ""]
        own = next((text for text in reversed(rest[2:]) if text), "") if len(columns) > 2 else ""
        found = (fields[0], fields[1] if len(columns) > 1 else "", own)
    elif len(rest) == len(columns):
        padded = [*rest, "", ""]
        found = (padded[0], padded[1], padded[2])
    else:
        notes.append(f"line {row.line}: {len(rest)} values under {len(columns)} affinity columns: not read")
        return "", "", ""
    cpus, near, own = (text if text != "N/A" else "" for text in found)
    return (cpus if re.fullmatch(r"[\d,-]{1,4000}", cpus) else ""), near, own
