"""The hub: only two small files, bounded, and one clear error whatever the library raises."""

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linkwise.core.errors import InputError
from linkwise.model import hub
from linkwise.model.read import load

CONFIG = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


class EntryNotFoundError(Exception):
    """As huggingface_hub names it."""


class Library:
    """A stand-in for huggingface_hub that serves files of a folder and remembers what was asked."""

    def __init__(self, folder: Path, *, online: bool = True, size: int | None = None) -> None:
        self.folder, self.online, self.size = folder, online, size
        self.asked: list[str] = []

    def hf_hub_url(self, name: str, file: str) -> str:
        return file

    def get_hf_file_metadata(self, url: str, timeout: float) -> Any:
        if not self.online:
            raise ConnectionError("no route to host")
        if not (self.folder / url).exists():
            raise EntryNotFoundError("404")
        return SimpleNamespace(size=self.size or (self.folder / url).stat().st_size)

    def hf_hub_download(self, name: str, file: str, *, etag_timeout: float, local_files_only: bool) -> str:
        self.asked.append(file)
        if local_files_only and not (self.folder / "cached").exists():
            raise FileNotFoundError("not in the cache")
        return str(self.folder / file)


def _install(monkeypatch: pytest.MonkeyPatch, library: Library | None) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)


def test_only_the_config_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    library = Library(tmp_path)
    _install(monkeypatch, library)
    model = load("someone/small")
    assert (model.name, model.source) == ("someone/small", "hub someone/small")
    assert library.asked == ["config.json"]


def test_offline_the_cache_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "cached").touch()
    quant = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quant))
    _install(monkeypatch, Library(tmp_path, online=False))
    assert load("someone/small").quantization == "fp8"


def test_offline_without_a_cache_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, Library(tmp_path, online=False))
    with pytest.raises(InputError, match=r"could not be fetched \(ConnectionError.*Give the folder") as caught:
        load("someone/llama-3.1-8b-tuned")
    assert "llama-3.1-8b" in caught.value.hint


def test_a_huge_config_is_refused_before_it_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    library = Library(tmp_path, size=10**10)
    _install(monkeypatch, library)
    with pytest.raises(InputError, match="10000000000 bytes"):
        load("someone/small")
    assert library.asked == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, None)
    with pytest.raises(InputError, match="huggingface_hub is not installed.*Give the folder"):
        load("someone/small")


@pytest.mark.parametrize("name", ["a/..", "../a", "/a/b", "a//b", "a/b/c", "a/b--c", "a/-b", "a/b.", "a/" + "b" * 97])
def test_what_is_no_id(name: str) -> None:
    assert not hub.is_id(name)
    with pytest.raises(InputError, match="organisation/model"):
        hub.check_id(name)


def test_a_hub_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    _install(monkeypatch, Library(Path()))
    monkeypatch.setattr(hub, "WHOLE_S", 0.2)
    monkeypatch.setattr(hub, "_file", lambda *_, **__: waiting.wait(5))
    began = time.monotonic()
    with pytest.raises(InputError, match=r"did not answer whole within 0\.2 s"):
        hub.fetch("some/model")
    assert time.monotonic() - began < 2
    waiting.set()
