"""Which accelerator is it? By the name a driver gave it, or by its link counts alone."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from linkwise.cluster import inside, known, presets
from linkwise.cluster.topology import Fabric, Machine
from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError

# Products whose name on the device is no alias of ours.
_PRODUCTS = {"h100-80gb-hbm3": "h100-sxm", "h100-sxm5-80gb": "h100-sxm", "h200-141gb-hbm3e": "h200-sxm"}

# What is no product: an architecture as NCCL's XML has it, or PCI numbers (hwloc, sysfs).
_ARCHITECTURE = re.compile(r"(gfx|sm)([0-9a-f]+)")
_NUMBERS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
# AMD's architectures by the products of ours that have them; RCCL also writes gfx90a as 910.
_GFX = {
    "90a": ("mi250x",),
    "910": ("mi250x",),
    "942": ("mi300x", "mi325x"),
    "950": ("mi355x",),
}


def identify(machines: Sequence[Machine], given: str | Accelerator | None, notes: list[str]) -> Accelerator:
    """What the machines' GPUs are: as given, as the files name them, or as their link counts suggest, with a note.

    Raises InputError when the files name several kinds, another than the one given, or nothing suggests one.
    """
    first = machines[0]
    _alike(machines)
    if isinstance(given, Accelerator):
        agree(machines, given, notes)
        return given
    if given is not None:
        device = presets.accelerator(given, where="--accelerator")
        agree(machines, device, notes)
    else:
        device = _named(machines, notes) or _guessed(first, notes)
    if any(inside.scaleup(machine).links for machine in machines) and not device.scaleup_Bps:
        bridged = known.names().get(f"{device.name}-bridged")
        if bridged is None:
            raise InputError(
                f"{device.name} has no NVLink, but the file shows links between GPUs",
                where="--accelerator",
                expected="an accelerator with NVLink or xGMI",
            )
        notes.append(f"the file shows links between {device.name}: bridged pairs")
        device = known.accelerator(bridged)
    if device.note:
        notes.append(f"{device.name}: {device.note}")
    return device


def labelled(fabric: Fabric, given: str | Accelerator | None, notes: list[str]) -> tuple[Accelerator, int]:
    """What the hosts of a fabric are when no node file says: as given, or by their labels; and GPUs of one, or 0.

    Raises InputError when labels differ, contradict what is given, or nothing says it.
    """
    for label, values in (("products", fabric.products), ("numbers of GPUs", fabric.gpus)):
        if len(values) > 1:
            raise InputError(
                f"hosts with different {label}: {', '.join(map(str, values[:8]))}",
                where=fabric.source,
                expected="hosts of one kind, or a node file of each",
            )
    said = fabric.products[0] if fabric.products else ""
    count = fabric.gpus[0] if fabric.gpus else 0
    if isinstance(given, Accelerator):
        raise InputError("no node file", where=fabric.source, expected="a node file too, or --accelerator NAME")
    if given is not None:
        device = presets.accelerator(given, where="--accelerator")
        if said and contradicts(said, device):
            raise _other(device, fabric.source, said)
        if said and product(said) is None:
            notes.append(_stands_for(said, device))
        return device, count
    if not said:
        states = f"only that a host has {count} GPUs" if count else "nothing of the machines"
        raise InputError(
            f"the file says {states}", where=fabric.source, expected="a node file too, or --accelerator NAME"
        )
    name = product(said)
    if name is None:
        raise _lacking(said, fabric.source)
    notes.append(f"accelerator {name}: the nodes are labelled {said}")
    return known.accelerator(name), count


def check_labels(fabric: Fabric, device: Accelerator, size: int) -> None:
    """Refuse labels of hosts that contradict their node files: another product, or another number of GPUs."""
    said = next((name for name in fabric.products if contradicts(name, device)), "")
    number = next((count for count in fabric.gpus if count != size), 0)
    if said or number:
        raise InputError(
            f"its hosts are labelled {said[:80] or f'with {number} GPUs'}, and the node files say "
            f"{device.name if said else f'{size} GPUs'}",
            where=fabric.source,
            expected="node files and a fabric of the same hosts",
        )


def _other(device: Accelerator, source: str, said: str) -> InputError:
    return InputError(
        f"{device.name} is given, but {source} says {said[:80]}",
        where="--accelerator",
        expected="the accelerator the file is of, or left out",
    )


def _stands_for(said: str, device: Accelerator) -> str:
    return f"the file says {said[:80]}, which is not in the catalogue: taken as {device.name}, as given"


def agree(machines: Sequence[Machine], device: Accelerator, notes: list[str]) -> None:
    """Refuse an accelerator that the files contradict: another product, architecture, or kind of link.

    A product the catalogue lacks contradicts nothing, and is said in a note.
    """
    for machine in machines:
        models = dict.fromkeys(gpu.model for gpu in machine.gpus if gpu.model)
        said = next((model for model in models if contradicts(model, device)), "")
        kinds = {wire.kind for wire in machine.wires if wire.kind in ("nvlink", "xgmi")}
        if not said and device.scaleup_kind and kinds and not device.scaleup_kind.lower().startswith(tuple(kinds)):
            said = f"{' and '.join('NVLink' if kind == 'nvlink' else 'xGMI' for kind in sorted(kinds))} between GPUs"
        if said := said or _link_counts(machine, device):
            raise _other(device, machine.source, said)
        if unknown := _unknown(machine):
            notes.append(_stands_for(unknown, device))
        elif inside.own_memory(machine) and device.host_link != "c2c":
            notes.append(f"the GPUs' own memory is a NUMA node, as beside Grace: taken as {device.name}, as given")


def measured_on(said: Iterable[str], device: Accelerator, where: str) -> tuple[str, ...]:
    """Notes on what drivers call the GPUs that figures for an accelerator were measured on.

    Raises InputError when they are known to be another one, or are several kinds. A name the catalogue lacks
    contradicts nothing, and is said.
    """
    names = list(dict.fromkeys(name.strip() for name in said if name.strip()))
    if len({product(name) or name for name in names}) > 1:
        raise InputError(
            f"measured on different GPUs: {', '.join(names)[:160]}", where=where, expected="GPUs of one kind"
        )
    if names and contradicts(names[0], device):
        raise InputError(
            f"measured on {names[0][:80]}", where=where, expected=f"{device.label} ({device.name}), as the cluster has"
        )
    return (_stands_for(names[0], device),) if names and product(names[0]) is None else ()


def _links(machine: Machine) -> tuple[int, bool]:
    """NVLinks of the GPU that has most, and whether all GPUs have as many into a switch."""
    found = inside.scaleup(machine)
    if any(wire.kind == "xgmi" for wire in machine.wires) or not found.links:
        return 0, False
    into = inside.switched(found)
    counts = [into.get(at, 0) if into else found.total(at) for at in range(len(machine.gpus))]
    return max(counts), bool(into) and len(set(counts)) == 1


def _nvlink(device: Accelerator) -> tuple[str, int]:
    """Generation and number of a device's NVLinks, those of its bridge where it has no others; ("", 0) without."""
    bridged = known.names().get(f"{device.name.lower()}-bridged")
    device = known.accelerator(bridged) if bridged and not device.scaleup_Bps else device
    return (device.scaleup_kind, device.scaleup_links) if device.scaleup_kind.startswith("nvlink") else ("", 0)


def _full_counts() -> dict[int, set[str]]:
    """Most NVLinks a GPU of each generation has into a switch, as the catalogue has them: number to generations."""
    most: dict[str, int] = {}
    for name in known.canonical_names():
        device = known.accelerator(name)
        kind, count = _nvlink(device)
        if device.scaleup_Bps and kind:
            most[kind] = max(most.get(kind, 0), count)
    return {count: {kind for kind, own in most.items() if own == count} for count in most.values()}


def _link_counts(machine: Machine, device: Accelerator) -> str:
    """What a machine's number of NVLinks says against an accelerator: more than it has, or all that another generation
    has; "" when it goes with it. Fewer are links that are down, or a product with fewer of them."""
    count, switched = _links(machine)
    kind, own = _nvlink(device)
    if not count or not own:
        return ""
    other = _full_counts().get(count, set())
    if count > own or (switched and count < own and other and kind not in other):
        return f"{count} NVLinks a GPU, and it has {own}"
    return ""


def _alike(machines: Sequence[Machine]) -> None:
    """Refuse files of GPUs with different numbers of NVLinks. A number no product has is links that are down."""
    whole = {_nvlink(known.accelerator(name))[1] for name in known.canonical_names()} - {0}
    first = machines[0]
    for machine in machines[1:]:
        one, other = _links(first)[0], _links(machine)[0]
        if one != other and {one, other} <= whole:
            raise InputError(
                f"different GPUs: {one} NVLinks a GPU in {first.source}, {other} here",
                where=machine.source,
                expected="one kind of accelerator in a cluster",
            )


def contradicts(model: str, device: Accelerator) -> bool:
    """Whether what a file calls a GPU is known to be something else. A file of facts of one's own has its own name."""
    if named := product(model):
        own = known.names().get(device.name.lower()) is None
        return not own and device.name.removesuffix("-bridged") != named
    if not (match := _ARCHITECTURE.fullmatch(model)):
        return False
    kind, number = match.groups()
    if kind == "sm":
        return device.scaleup_kind == "xgmi" or (device.capability > 0 and str(device.capability) != number)
    ours = {name for names in _GFX.values() for name in names}
    return device.capability > 0 or (device.name in ours and number in _GFX and device.name not in _GFX[number])


def _unknown(machine: Machine) -> str:
    """A product the file names and the catalogue lacks, or ""."""
    models = (gpu.model.strip() for gpu in machine.gpus)
    return next(
        (m for m in models if m and not (product(m) or _ARCHITECTURE.fullmatch(m) or _NUMBERS.fullmatch(m))), ""
    )


def _lacking(model: str, where: str) -> InputError:
    """The refusal of a product the catalogue does not have."""
    return InputError(
        f"the file says {model[:80]}, which is not in the catalogue",
        where=where,
        expected="--accelerator cluster.yaml with its facts, or the NAME of one that can stand for it",
        hint="`linkwise hardware` lists the names",
    )


def _named(machines: Sequence[Machine], notes: list[str]) -> Accelerator | None:
    """The accelerator the files themselves name."""
    models = Counter(gpu.model for machine in machines for gpu in machine.gpus if gpu.model)
    found = {name for model in models if (name := product(model))}
    if len(found) > 1:
        raise InputError(
            f"different GPUs: {', '.join(sorted(models))}",
            where=machines[0].source,
            expected="one kind of accelerator in a cluster",
        )
    if not found:
        return None
    name = found.pop()
    notes.append(f"accelerator {name}: the file says {next(iter(models))}")
    return known.accelerator(name)


def product(model: str) -> str | None:
    """Canonical name of a product as a driver prints it ("NVIDIA H100 80GB HBM3"); None when it is not known."""
    # GPU time-slicing adds -SHARED to the label of a node.
    plain = model.strip().lower().removesuffix("-shared")
    for brand in ("nvidia", "geforce", "tesla", "amd", "instinct"):
        plain = plain.removeprefix(brand).strip(" -_")
    plain = "-".join(plain.replace("_", " ").split())
    return known.names().get(_PRODUCTS.get(plain, plain))


def _guessed(machine: Machine, notes: list[str]) -> Accelerator:
    """An accelerator by its link counts alone, said in a note; refused when they suggest none."""
    if unknown := _unknown(machine):
        raise _lacking(unknown, machine.source)
    if inside.own_memory(machine):
        beside = [name for name in known.canonical_names() if known.accelerator(name).host_link == "c2c"]
        raise InputError(
            "the GPUs' own memory is a NUMA node, as beside Grace; the file does not say which accelerator it is",
            where=machine.source,
            expected=f"--accelerator {' or '.join(beside)}, or cluster.yaml with the facts of another",
        )
    found = inside.scaleup(machine)
    into = set(inside.switched(found).values())
    totals = {found.total(gpu) for gpu in range(len(machine.gpus))} if found.direct and not into else set()
    xgmi = any(wire.kind == "xgmi" for wire in machine.wires)
    guess = ("", "")
    if xgmi and totals == {7} and len(machine.gpus) == 8:
        guess = "mi300x", "MI325X and MI355X have as many xGMI links"
    elif not xgmi and 18 in into | totals:
        guess = "h100-sxm", "H200, H20, B200 and GB200 have 18 NVLinks too"
    elif not xgmi and 12 in into | totals:
        guess = "a100-80gb-sxm", "the 40 GB model has 12 NVLinks too"
    elif not xgmi and into == {8}:
        guess = "h800-sxm", "it is the one with 8 NVLinks into a switch"
    name, why = guess
    if not name:
        raise InputError(
            "the file does not say which accelerator it is",
            where=machine.source,
            expected="--accelerator NAME, such as --accelerator l40s",
            hint="`linkwise hardware` lists the names",
        )
    notes.append(f"accelerator guessed from link counts: {name} ({why}); --accelerator says which it is")
    return known.accelerator(name)
