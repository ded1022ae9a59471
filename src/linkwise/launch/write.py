"""A Deployment as a folder, whole or not at all, and back from it."""

from pathlib import Path

from linkwise.core.errors import InputError
from linkwise.core.files import read_bytes, write_bytes
from linkwise.core.schema import decode_json, encode_json
from linkwise.launch.scripts import HOSTS, file_name, open_hosts, scripts
from linkwise.launch.types import KEY_VARIABLE, Deployment

DEPLOYMENT = "deployment.json"
MANIFEST = "manifest.yaml"
_MOST_BYTES = 64 * 2**20


def write(made: Deployment, folder: str | Path) -> tuple[str, ...]:
    """Write every file; returns their paths below the folder. What is there from a launch before is replaced.

    Raises InputError for a folder that holds something else, or cannot be written.
    """
    at = Path(folder)
    beside = {file_name(made, name): text for name, text in made.files.items()}
    found = {**scripts(made), **beside, "README.md": _readme(made)}
    try:
        at.mkdir(parents=True, exist_ok=True)
        others = [p.name for p in at.iterdir()]
        if others and DEPLOYMENT not in others:
            raise InputError("holds other files", where=str(at), expected="a new folder, or one of a launch before")
        (at / "processes").mkdir(exist_ok=True)
        for old in (at / "processes").glob("*.sh"):
            if f"processes/{old.name}" not in found:
                old.unlink()
    except OSError as error:
        raise InputError(f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(at)) from None
    for name, text in found.items():
        write_bytes(at / name, text.encode(), mode=0o777 if name.endswith(".sh") else 0o666, regular=True)
    write_bytes(at / DEPLOYMENT, encode_json(made), regular=True)
    return (*sorted(found), DEPLOYMENT)


def read(folder: str | Path) -> Deployment:
    """The deployment of a folder, validated: every device once, every rank on the device it is given."""
    path = Path(folder) / DEPLOYMENT if Path(folder).is_dir() else Path(folder)
    return decode_json(read_bytes(path, max_bytes=_MOST_BYTES), Deployment, where=str(path))


def write_manifest(text: str, folder: str | Path) -> Path:
    """Write manifests into a folder; returns the file's path. Raises InputError when it cannot."""
    at = Path(folder)
    try:
        at.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(at)) from None
    write_bytes(at / MANIFEST, text.encode(), regular=True)
    return at / MANIFEST


def _readme(made: Deployment) -> str:
    """What a person does with the folder."""
    lines = [f"# {made.called} on {made.engine} {made.engine_version}", ""]
    slurm = made.multi_node == "slurm"
    if open_hosts(made) and not slurm:
        lines.append(f"1. Write the addresses of the nodes into {HOSTS}, and copy this folder to each of them.")
    if slurm:
        lines.append(
            "1. `sbatch slurm.sh`" + (f", which writes the nodes' names into {HOSTS}" if open_hosts(made) else "")
        )
    else:
        for node, host in made.hosts.items():
            does = f"`./start.sh {node}`" if made.starts(node) else f"nothing: {made.started_from(node)}"
            lines.append(f"1. On node {node} ({host}): {does}")
    lines += ["1. `./health.sh` waits until it serves.", "1. `./bench.sh` sends the plan's workload.", ""]
    if made.keyed:
        lines += [f"Scripts and requests need the key in {KEY_VARIABLE}, which is in none of these files.", ""]
    lines += [f"Requests go to {made.front}/v1. `deployment.json` says the same for programs.", ""]
    for title, listed in (("What differs from the plan", made.differs), ("To know", made.notes)):
        lines += [f"## {title}", "", *(f"- {said}" for said in listed), ""] if listed else []
    return "\n".join(lines)
