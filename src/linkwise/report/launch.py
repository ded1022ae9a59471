"""The first screen of `launch`: what runs where, and what to do next."""

from linkwise.launch.types import Deployment

MOST_LINES = 40


def screen(made: Deployment, folder: str, files: int) -> list[str]:
    """What was written. folder: where; files: how many."""
    devices, groups, nodes = sum(len(p.devices) for p in made.processes), len(made.groups), len(made.hosts)
    lines = [
        f"{made.called} on {made.engine} {made.engine_version} · {groups} group{'s' * (groups > 1)} ·"
        f" {devices} device{'s' * (devices > 1)} on {nodes} node{'s' * (nodes > 1)}",
        "",
    ]
    for p in made.processes[:MOST_LINES]:
        seen = f"devices {','.join(map(str, p.devices))}" if p.devices else "no device"
        lines.append(f"  node {p.node}  {p.name:<22} {seen:<26} {p.url}".rstrip())
    if len(made.processes) > MOST_LINES:
        lines.append(f"  and {len(made.processes) - MOST_LINES} more")
    return [*lines, "", f"written    {files} files in {folder}", f"start      {folder}/README.md says how"]
