"""Kinds of manifests by the word a user gives."""

from collections.abc import Callable
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.launch.base import Asked, Launcher
from linkwise.launch.kubernetes import dynamo, images, llmd, lws, pods, schema
from linkwise.launch.kubernetes.notes import notes
from linkwise.launch.kubernetes.pods import Cast

_KINDS: dict[str, Callable[[Asked, Launcher, Cast], tuple[schema.Manifest, ...]]] = {
    "lws": lws.manifests,
    "llm-d": llmd.manifests,
    "dynamo": dynamo.manifests,
}
NAMES = tuple(_KINDS)
_DOORS = {
    "lws": "requests go to Service {name}-front, port {port}",
    "llm-d": "requests go through llm-d's gateway to InferencePool {name}",
    "dynamo": "requests go to the Frontend's service, port {port}",
}


class Written(NamedTuple):
    """A manifest. notes: what is left to the cluster, and where requests go."""

    text: str
    notes: tuple[str, ...]


def manifest(kind: str, asked: Asked, launcher: Launcher, cast: Cast) -> Written:
    """The YAML of a kind. Raises InputError for an unknown kind or a missing image, Refused as the kinds do."""
    if kind not in _KINDS:
        raise InputError(repr(kind[:40]), where="--kubernetes", expected="one of " + ", ".join(NAMES))
    pods.check_name(cast.name)
    image = images.Image(cast.image) if cast.image else images.published(launcher, asked)
    cast = cast._replace(image=image.name)
    said = [_DOORS[kind].format(name=cast.name, port=pods.PORT)]
    if image.holds:
        said.append(
            f"{image.name} holds {asked.engine.name} {image.holds}, the plan is of {asked.engine.version}: --image"
            " takes another"
        )
    text = schema.text(_KINDS[kind](asked, launcher, cast))
    return Written(text, (*said, *notes(asked, pods.sets(asked, launcher, cast))))
