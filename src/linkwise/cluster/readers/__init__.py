"""Which format is this? Topology files recognised by what is in them, never by their name.

A reader is a module with FORMAT, `recognises(text)` and `read(text, *, where)` (see base.py). To add one, write the
module and name it in READERS; order matters only where one format could pass for another.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import cast

from linkwise.cluster.readers import xml
from linkwise.cluster.readers.base import Reader
from linkwise.cluster.topology import Fabric, Machine
from linkwise.core.errors import InputError
from linkwise.core.files import MAX_YAML_BYTES, parse_json, parse_yaml, read_text

# rocm before smi: both print matrices of GPUs. A reader is imported when it is asked, so that none costs the others.
READERS = ("nccl_xml", "hwloc", "rocm", "smi", "ibnet", "topograph", "kubernetes", "slurm")

# A key alone on its line at the left margin, as the files of topograph, Slurm and Kubernetes in YAML begin.
_KEY = re.compile(r"^(switches|blocks|topologies|items|apiVersion|kind|metadata)[ \t]*:", re.MULTILINE)


def reader(name: str) -> Reader:
    """The reader of that name, one of READERS."""
    return cast(Reader, import_module(f"linkwise.cluster.readers.{name}"))


def read(path: str | Path) -> Machine | Fabric:
    """The machine or fabric a file describes. Raises InputError, naming the line, when it is none, cut or hostile."""
    return parse(read_text(path), where=str(path))


def parse(text: str, *, where: str) -> Machine | Fabric:
    """The machine or fabric a text describes; `where` names it in errors and becomes its source."""
    name = recognise(text)
    if name is not None:
        return reader(name).read(text, where=where)
    if text.lstrip()[:1] == "<":
        root = xml.parse(text, where=where)  # says what is wrong with it, when it is not even XML
        raise InputError(
            f"XML whose outermost element is <{root.tag[:60]}>",
            where=where,
            expected="<system> of NCCL, <topology> of hwloc",
        )
    _cut(text, where)
    raise InputError(
        "no topology format recognised" if text.strip() else "empty",
        where=where,
        expected="output of nvidia-smi topo, rocm-smi --showtopo, ibnetdiscover or topograph, NCCL or hwloc XML, "
        "Slurm's topology.conf or topology.yaml, or Kubernetes nodes",
    )


def _cut(text: str, where: str) -> None:
    """Refuse what looks like JSON or YAML with its end missing; the words that tell the format may be in that end."""
    end = text.count("\n") + 1
    expected = "a whole file"
    if text.lstrip()[:1] in ("{", "["):
        try:
            parse_json(text, where=where)
        except InputError as error:
            raise InputError(
                f"looks like cut or broken JSON: {error.message}", where=where, expected=expected
            ) from None
        return
    keys = _KEY.findall(text)
    if not keys or len(text) > MAX_YAML_BYTES:
        return
    if len({"switches", "blocks"} & set(keys)) == 1:
        has, lacks = ("switches", "blocks") if "switches" in keys else ("blocks", "switches")
        raise InputError(
            f"looks like cut YAML: it ends at line {end} with {has} and no {lacks}", where=where, expected=expected
        )
    try:
        parse_yaml(text, where=where)
    except InputError as error:
        raise InputError(f"looks like cut or broken YAML: {error.message}", where=where, expected=expected) from None


def recognise(text: str) -> str | None:
    """The name in READERS of the format a text is in, or None."""
    return next((name for name in READERS if reader(name).recognises(text)), None)
