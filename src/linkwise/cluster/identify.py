"""Which accelerator is it? By the name a driver gave it, or by its link counts alone."""

from collections import Counter
from collections.abc import Sequence

from linkwise.cluster import inside, known, presets
from linkwise.cluster.topology import Machine
from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError

# Products whose name on the device is no alias of ours.
_PRODUCTS = {"h100-80gb-hbm3": "h100-sxm", "h100-sxm5-80gb": "h100-sxm", "h200-141gb-hbm3e": "h200-sxm"}


def identify(machines: Sequence[Machine], given: str | Accelerator | None, notes: list[str]) -> Accelerator:
    """What the machines' GPUs are: as given, as the files name them, or as their link counts suggest, with a note.

    Raises InputError when the files name several kinds, or nothing suggests one.
    """
    first = machines[0]
    if isinstance(given, Accelerator):
        return given
    if given is not None:
        device = presets.accelerator(given, where="--accelerator")
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
    plain = model.strip().lower()
    for brand in ("nvidia", "geforce", "tesla", "amd", "instinct"):
        plain = plain.removeprefix(brand).strip()
    plain = "-".join(plain.replace("_", " ").split())
    return known.names().get(_PRODUCTS.get(plain, plain))


def _guessed(machine: Machine, notes: list[str]) -> Accelerator:
    """An accelerator by its link counts alone, said in a note; refused when they suggest none."""
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
