"""The words of an `nvidia-smi topo` matrix, and the lines they make: headers, and the cells a row begins with."""

import re

from linkwise.cluster.topology import PathClass

WORDS = {
    "SYS": PathClass.SYS,
    "SOC": PathClass.SYS,  # before 2017
    "NODE": PathClass.PHB,
    "PHB": PathClass.PHB,
    "PXB": PathClass.PXB,
    "PIX": PathClass.PIX,
    "PSB": PathClass.PIX,  # two GPUs of one board, before 2017
}
PEER_WORDS = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
ALL_WORDS = (*WORDS, *PEER_WORDS)
NV = re.compile(r"NV([1-9]\d?)")
MAX_LINKS = 64  # of one pair: NVML has room for 18 (NVML_NVLINK_MAX_LINKS), and more may come
CELL = re.compile(rf"X|NV(?:[1-9]|[1-5]\d|6[0-4])|{'|'.join(ALL_WORDS)}")
GPU = re.compile(r"GPU(\d{1,4})")
MERGED = re.compile(r"(?:(?:GPU|NIC)\d{1,4}){2,}|(?:mlx\d_\d{1,3}){2,}")
LABEL = re.compile(r"(?:GPU|NIC)\d{1,4}|mlx\d_\d{1,3}(?=mlx|$)")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,40}")
# A count of links that nobody has, or none, in place of a cell.
NOT_LINKS = re.compile(r"NV|[Nn][Vv][-+#.\d]\S*")
# What may stand after the last cell of a row, cut or not: affinity, or columns left out.
AFTER = re.compile(r"\d[\d,-]*|N/A|\.{3}")


def begins(tokens: list[str]) -> bool:
    """Whether a line of these words is a header: GPU<n>, not followed by a cell."""
    if not tokens:
        return False
    first = LABEL.match(tokens[0])
    if first is None or not tokens[0].startswith("GPU") or (tokens[0] != first[0] and not MERGED.fullmatch(tokens[0])):
        return False
    return (
        len(tokens) == 1
        or tokens[1] in ("CPU", "NUMA", "...")
        or bool(NAME.fullmatch(tokens[1]) and not like_cell(tokens[1]) and any(c.isdigit() for c in tokens[1]))
    )


def like_cell(token: str) -> bool:
    """A cell, or a count of NVLinks that nobody has."""
    return bool(CELL.fullmatch(token) or NOT_LINKS.fullmatch(token))


def continues(tokens: list[str]) -> bool:
    """Whether a line carries on a header that was wrapped: only labels and words of the affinity columns."""
    words = ("CPU", "NUMA", "GPU", "Affinity", "ID", "...")
    return bool(tokens) and all(
        token in words or (NAME.fullmatch(token) and token[-1].isdigit() and not like_cell(token)) for token in tokens
    )


def leading(tokens: list[str]) -> list[str]:
    """The cells a list of words begins with."""
    count = next((i for i, token in enumerate(tokens) if not CELL.fullmatch(token)), len(tokens))
    return tokens[:count]
