"""What a manifest leaves to the cluster it is applied to, said in words: a plan does not know it."""

from collections.abc import Iterator, Sequence

from linkwise.launch import key
from linkwise.launch.base import Asked
from linkwise.launch.kubernetes.pods import KEY_OBJECT, SECRET, SECRET_KEY, Set, by_path
from linkwise.launch.types import KEY_VARIABLE


def notes(asked: Asked, sets: Sequence[Set]) -> Iterator[str]:
    """One line each, of what applies to these pods."""
    if by_path(asked):
        yield (
            f"{asked.weights} must be a folder in every pod: no volume is mounted there, since which one holds it is"
            " not known"
        )
    else:
        yield (
            f"{asked.weights} is fetched by every pod, {asked.model.weight_bytes / 1e9:.0f} GB as the checkpoint has"
            " it: no volume for a shared cache is mounted"
        )
        yield f"a model behind a licence needs HF_TOKEN: it is read from Secret {SECRET}, key {SECRET_KEY}, if there is"
    if asked.keyed:
        yield f"requests need the key of Secret {KEY_OBJECT}, key {KEY_VARIABLE}: pods wait until it is there"
        yield from key.notes(asked.engine.name)
    across = any(one.size > 1 or one.role != "both" for one in sets)
    if across and asked.cluster.nics_per_node:
        yield (
            "no RDMA devices are asked for: what the cluster's device plugin calls them is not known, and without them"
            " NCCL, UCX and Mooncake take TCP. Add its resource, and IPC_LOCK, to the engines' containers"
        )
    if any(one.block for one in sets) and "amd" not in asked.cluster.accelerator.label.lower():
        yield (
            "pods of one NVLink domain reach each other's memory through an IMEX channel only: add a ComputeDomain"
            " (resource.nvidia.com) and a claim on its channel to the engines' pods"
        )
