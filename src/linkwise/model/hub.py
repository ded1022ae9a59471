"""A model's config from the Hugging Face hub: config.json and hf_quant_config.json, never weights."""

import queue
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object

MAX_CONFIG_BYTES = 32 * 2**20
TIMEOUT_S = 10.0  # of a connection or a read
WHOLE_S = 60.0  # of all of it
T = TypeVar("T")
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(f"{_PART}/{_PART}")


def is_id(name: str) -> bool:
    """Whether a name has the form of a hub id, `organisation/model`."""
    return bool(_ID.fullmatch(name)) and ".." not in name and "--" not in name


def check_id(name: str) -> None:
    """Refuse what cannot be a hub id: absolute paths, `..`, odd characters."""
    if not is_id(name):
        raise InputError(
            f"{name[:120]!r} is neither a folder, nor a config.json, nor a known model, nor a hub id",
            where="model",
            expected="organisation/model of letters, digits, '-', '_' and '.'",
            hint="Give the folder that holds its config.json",
        )


def fetch(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """config.json and, where it exists, hf_quant_config.json of a hub id.

    From the hub when it can be reached within seconds, else from the local cache. Raises InputError, whatever happens.
    """
    check_id(name)
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            f"{name} is not in the catalogue and huggingface_hub is not installed",
            where="model",
            hint="Give the folder that holds its config.json, or install linkwise[hub]",
        ) from None

    def both() -> tuple[dict[str, Any], dict[str, Any] | None]:
        config = _file(huggingface_hub, name, "config.json", required=True)
        assert config is not None  # noqa: S101 - required
        return config, _file(huggingface_hub, name, "hf_quant_config.json", required=False)

    return _within(WHOLE_S, both, name)


def _within(most_s: float, ask: Callable[[], T], name: str) -> T:
    """What is asked, or InputError when it takes longer: the library bounds each read alone, so that a server which
    sends a byte a second would hold it for ever. The thread that waits for it ends with the process."""
    done: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        found = done.get(timeout=most_s)
    except queue.Empty:
        raise InputError(
            f"the hub did not answer whole within {most_s:g} s", where=name, hint="Give the folder of its config.json"
        ) from None
    if isinstance(found, BaseException):
        raise found
    return found


def _file(library: Any, name: str, file: str, *, required: bool) -> dict[str, Any] | None:
    reason = ""
    online = False
    try:
        # Asked first since it neither retries nor downloads: offline it fails at once, and it tells the size.
        size = library.get_hf_file_metadata(library.hf_hub_url(name, file), timeout=TIMEOUT_S).size
        online = True
    except Exception as error:  # noqa: BLE001 - the library raises its transport's errors, which vary by version
        size, reason = None, f"{type(error).__name__}: {error}"
        if not required and "EntryNotFound" in reason:
            return None
    if size is not None and size > MAX_CONFIG_BYTES:
        raise InputError(f"{file} has {size} bytes", where=name, expected=f"at most {MAX_CONFIG_BYTES}")
    try:
        path = library.hf_hub_download(name, file, etag_timeout=TIMEOUT_S, local_files_only=not online)
    except Exception as error:  # noqa: BLE001 - as above
        if not required:
            return None
        raise InputError(
            f"{name} is not in the catalogue and its {file} could not be fetched ({reason or error})"[:400],
            where="model",
            hint="Give the folder that holds its config.json",
        ) from None
    return read_json_object(path, max_bytes=MAX_CONFIG_BYTES)
