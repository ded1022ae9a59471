"""The degrees of one serving group, and the rank grid every process group is a slice of (DESIGN §3)."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_DEGREE = 65_536


class Layout(Frozen, frozen=True, kw_only=True):
    """Degrees of one group. Group size = pp · cp · dp_attn · tp, rank order outer to inner in that order.

    tp: tensor parallel of attention. cp: context parallel that adds ranks. dp_attn: attention replicas inside the group
    that share its experts. dcp divides tp and adds no ranks: it splits the tokens of a tensor group's KV.
    ep: expert parallel over the cp·dp_attn·tp ranks of a stage; the rest of a stage is moe_tp.
    sequence_sharded: between tp blocks the tokens are sharded (reduce-scatter + all-gather in place of all-reduce).
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp_attn: int = 1
    dcp: int = 1
    ep: int = 1
    sequence_sharded: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "dp_attn", "dcp", "ep"):
            degree = getattr(self, name)
            if type(degree) is not int:  # 2.0 and True pass for numbers, but make no rank grid
                raise InputError(f"{name} is {degree!r}"[:80], where="layout", expected="an int")
            if not 1 <= degree <= MAX_DEGREE:
                raise InputError(f"{name} is {degree}", where="layout", expected=f"1..{MAX_DEGREE}")
        if not isinstance(self.sequence_sharded, bool):
            raise InputError(f"sequence_sharded is {self.sequence_sharded!r}"[:80], where="layout", expected="a bool")
        if self.size > MAX_DEGREE:
            factors = " x ".join(f"{n} {getattr(self, n)}" for n in ("pp", "cp", "dp_attn", "tp"))
            raise InputError(f"{factors} = {self.size} ranks", where="layout", expected=f"at most {MAX_DEGREE} ranks")
        if self.tp % self.dcp:
            raise InputError(f"dcp {self.dcp} does not divide tp {self.tp}", where="layout", expected="dcp divides tp")
        if self.stage_size % self.ep:
            raise InputError(
                f"ep {self.ep} does not divide the stage: cp {self.cp} x dp_attn {self.dp_attn} x tp {self.tp}"
                f" = {self.stage_size}",
                where="layout",
                expected="ep divides cp x dp_attn x tp",
            )

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
        return self.cp * self.dp_attn * self.tp

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.pp * self.stage_size

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert."""
        return self.stage_size // self.ep

    def __str__(self) -> str:
        shown = [f"{n}{d}" for n, d in self.degrees().items() if d > 1 or n == "tp"]
        return " x ".join(shown) + (" seq-sharded" if self.sequence_sharded else "")

    def degrees(self) -> dict[str, int]:
        """The degrees by name, outer to inner."""
        return {n: getattr(self, n) for n in ("pp", "cp", "dp_attn", "tp", "dcp", "ep")}


_DEGREES = ("tp", "pp", "cp", "dp_attn", "dcp", "ep")


def parse_layout(text: str, where: str = "--layout") -> Layout:
    """A layout from `tp=2,pp=2`; `sequence_sharded` alone is a word of it."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name in given:
            raise InputError(f"{name} twice in {text[:80]!r}", where=where, expected="each degree once")
        if name == "sequence_sharded" and not equals:
            given[name] = True
        elif name in _DEGREES and value.isascii() and value.isdigit() and len(value) <= 20:
            given[name] = int(value)
        else:
            raise InputError(
                f"{part.strip()[:40]!r}",
                where=where,
                expected=f"tp=2,pp=2: of {', '.join(_DEGREES)}, each 1..{MAX_DEGREE}, and sequence_sharded",
            )
    try:
        return Layout(**given)
    except InputError as error:
        raise InputError(error.message, where=where, expected=error.expected) from None


def layout_words(layout: Layout) -> str:
    """What `parse_layout` reads back: tp=2,pp=2."""
    words = [f"{name}={degree}" for name in _DEGREES if (degree := getattr(layout, name)) > 1]
    if layout.sequence_sharded:
        words.append("sequence_sharded")
    return ",".join(words) or "tp=1"


def check_product(layout: Layout, ranks: int, *, where: str = "layout") -> None:
    """Refuse a layout whose degrees do not multiply to the ranks given; the error prints the product."""
    if layout.size != ranks:
        raise InputError(
            f"pp {layout.pp} x cp {layout.cp} x dp_attn {layout.dp_attn} x tp {layout.tp} = {layout.size}",
            where=where,
            expected=f"{ranks} ranks",
        )


@lru_cache(maxsize=1024)
def _grid(layout: Layout) -> "npt.NDArray[np.int64]":
    import numpy as np  # a tenth of a second, which reading a cluster does not pay

    return np.arange(layout.size).reshape(layout.pp, layout.cp, layout.dp_attn, layout.tp)


AXES = ("pp", "cp", "dp_attn", "tp", "dcp", "ep", "moe_tp", "stage")


def groups(layout: Layout, axis: str) -> list[tuple[int, ...]]:
    """Every process group of an axis as tuples of group ranks; each axis partitions the group's ranks.

    axis: pp, cp, dp_attn, tp, dcp (contiguous parts of a tensor group), ep and moe_tp (a stage regridded as
    ep outer, moe_tp inner), stage (all ranks of a pipeline stage).
    """
    import numpy as np

    grid = _grid(layout)
    if axis in {"pp", "cp", "dp_attn", "tp"}:
        position = ("pp", "cp", "dp_attn", "tp").index(axis)
        rows = np.moveaxis(grid, position, -1).reshape(-1, grid.shape[position])
    elif axis == "dcp":
        rows = grid.reshape(-1, layout.dcp)
    elif axis == "stage":
        rows = grid.reshape(layout.pp, -1)
    elif axis in {"ep", "moe_tp"}:
        regrid = grid.reshape(layout.pp, layout.ep, layout.moe_tp)
        rows = regrid.reshape(-1, layout.moe_tp) if axis == "moe_tp" else regrid.swapaxes(1, 2).reshape(-1, layout.ep)
    else:
        raise InputError(f"unknown axis {axis!r}", where="layout", expected="one of " + ", ".join(AXES))
    return [tuple(row) for row in rows.tolist()]


def coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """The place of a rank on every axis."""
    import numpy as np

    pp, cp, dp, tp = (int(x) for x in np.unravel_index(rank, _grid(layout).shape))
    inside = rank % layout.stage_size
    return {
        "pp": pp,
        "cp": cp,
        "dp_attn": dp,
        "tp": tp,
        "dcp": tp % layout.dcp,
        "ep": inside // layout.moe_tp,
        "moe_tp": inside % layout.moe_tp,
    }
