"""Kinds of manifests by the word a user gives."""

from collections.abc import Callable

from linkwise.core.errors import InputError
from linkwise.launch.base import Asked, Launcher
from linkwise.launch.kubernetes import dynamo, llmd, lws, pods, schema
from linkwise.launch.kubernetes.pods import Cast

_KINDS: dict[str, Callable[[Asked, Launcher, Cast], tuple[schema.Manifest, ...]]] = {
    "lws": lws.manifests,
    "llm-d": llmd.manifests,
    "dynamo": dynamo.manifests,
}
NAMES = tuple(_KINDS)
# Images their makers publish under the engine's version; others are to be given.
_IMAGES = {"vllm": "vllm/vllm-openai:v{version}", "sglang": "lmsysorg/sglang:v{version}"}


def manifest(kind: str, asked: Asked, launcher: Launcher, cast: Cast) -> str:
    """The YAML of a kind. Raises InputError for an unknown kind or a missing image, Refused as the kinds do."""
    if kind not in _KINDS:
        raise InputError(repr(kind[:40]), where="--kubernetes", expected="one of " + ", ".join(NAMES))
    pods.check_name(cast.name)
    image = cast.image or _image(launcher, asked)
    return schema.text(_KINDS[kind](asked, launcher, cast._replace(image=image)))


def _image(launcher: Launcher, asked: Asked) -> str:
    if launcher.name not in _IMAGES:
        raise InputError(f"no image is known for {launcher.name}", where="--image", expected="an image that holds it")
    version = asked.engine.version
    return _IMAGES[launcher.name].format(version=version if version.count(".") > 1 else f"{version}.0")
