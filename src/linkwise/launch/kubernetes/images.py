"""Images that their makers publish, by engine and version."""

from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.engine.versions import version_key
from linkwise.launch.base import Asked, Launcher

# Tagged with the engine's own version.
_PLAIN = {
    "vllm": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
}
_DYNAMO = "nvcr.io/nvidia/ai-dynamo/{engine}-runtime:{tag}"
# Dynamo's releases and the engine version in their runtime images (docs.nvidia.com/dynamo, release artifacts, and
# docs/fern/assets/releases.json of its repository; read 2026-11-30).
_DYNAMO_HOLDS = {
    "vllm": {
        "0.8.1": "0.12.0", "0.9.0": "0.14.1", "1.0.1": "0.16.0", "1.1.1": "0.19.0", "1.2.0": "0.20.1",
        "1.3.0": "0.23.0", "1.6.0": "0.31.0", "1.7.0": "0.33.0",
    },
    "sglang": {
        "0.8.1": "0.5.6", "0.9.0": "0.5.8", "1.0.1": "0.5.9", "1.1.1": "0.5.10.post1", "1.2.0": "0.5.11",
        "1.3.0": "0.5.14", "1.6.0": "0.5.21", "1.7.0": "0.5.23",
    },
}  # fmt: skip


class Image(NamedTuple):
    """An image's name. holds: the engine version in it where that is not the plan's; "" = it is."""

    name: str
    holds: str = ""


def published(launcher: Launcher, asked: Asked) -> Image:
    """The image of a plan's engine: of its version, or of the next that there is one for.

    Raises InputError where none is known.
    """
    version, engine = asked.engine.version, asked.engine.name
    if "amd" in asked.cluster.accelerator.label.lower():
        raise InputError(f"no image of {launcher.name} is known for AMD", where="--image", expected="one that holds it")
    if launcher.name in _PLAIN:
        full = version if version.count(".") > 1 else f"{version}.0"
        return Image(_PLAIN[launcher.name].format(version=full))
    if launcher.name != "dynamo" or engine not in _DYNAMO_HOLDS:
        raise InputError(f"no image is known for {launcher.name}", where="--image", expected="an image that holds it")
    releases = _DYNAMO_HOLDS[engine]
    # A later engine knows the flags of an earlier one sooner than the other way round.
    tag = next((t for t, v in releases.items() if version_key(v) >= version_key(version)), list(releases)[-1])
    held = releases[tag]
    same = version_key(held)[: version.count(".") + 1] == version_key(version)[: version.count(".") + 1]
    return Image(_DYNAMO.format(engine=engine, tag=tag), "" if same else held)
