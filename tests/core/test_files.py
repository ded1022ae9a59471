"""Files are hostile until validated: bounded, regular, decodable, and the error says which of these failed."""

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from linkwise.core import files
from linkwise.core.errors import InputError


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_reads_a_json_object(tmp_path: Path) -> None:
    path = _write(tmp_path / "config.json", b'\xef\xbb\xbf{"hidden_size": 8192, "limit": Infinity}')
    assert files.read_json_object(path) == {"hidden_size": 8192, "limit": float("inf")}


def test_reads_a_yaml_mapping(tmp_path: Path) -> None:
    path = _write(tmp_path / "cluster.yaml", b"nodes: 2\nname: lab\n")
    assert files.read_yaml_object(path) == {"nodes": 2, "name": "lab"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "the top level is a list; expected a JSON object"),
        (b"null", "the top level is a NoneType; expected a JSON object"),
        (b'{"a": 1', "not valid JSON at line 1 column 8"),
        (b"", "not valid JSON at line 1 column 1"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16 text"),
        (b"[" * 100_000, "not valid JSON: RecursionError"),
        (gzip.compress(b"{}"), "a gzip file"),
        (bz2.compress(b"{}"), "a bzip2 file"),
        (lzma.compress(b"{}"), "a xz file"),
    ],
    ids=["list", "null", "truncated", "empty", "binary", "utf-16", "nested", "gzip", "bzip2", "xz"],
)
def test_bad_json_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = _write(tmp_path / "config.json", content)
    with pytest.raises(InputError) as caught:
        files.read_json_object(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2\n", "the top level is a list; expected a YAML mapping"),
        (b"a: [1, 2\n", "not valid YAML at line"),
        (b"a: &x 1\nb: *x\n", "aliases are not accepted"),
        (b"a: &x [*x]\n", "aliases are not accepted"),
        (b"a: " + b"[" * 100_000, "not valid YAML"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"", "the top level is a NoneType"),
        (b"a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
    ],
    ids=["list", "truncated", "alias", "recursive alias", "nested", "two documents", "empty", "object"],
)
def test_bad_yaml_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = _write(tmp_path / "cluster.yaml", content)
    with pytest.raises(InputError) as caught:
        files.read_yaml_object(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def _loop(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def _huge(folder: Path) -> Path:
    # Ten gigabytes that take no space: what is asked of the size must come before any reading.
    path = folder / "huge"
    with path.open("wb") as file:
        file.truncate(10 * 10**9)
    return path


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "absent", "no such file"),
        (lambda folder: folder, "not a regular file"),
        (_loop, "a loop of symbolic links"),
        (_huge, "10000000000 bytes; expected at most 33554432 bytes"),
        (_fifo, "not a regular file"),
        (lambda folder: str(folder) + "/nul\0byte", "not a usable path"),
        (lambda folder: folder / ("x" * 5000), "file name too long"),
    ],
    ids=["absent", "folder", "symlink loop", "10 GB", "fifo", "nul", "long name"],
)
def test_what_is_not_a_small_regular_file_is_refused(
    tmp_path: Path, make: Callable[[Path], Path | str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        files.read_bytes(make(tmp_path))


def test_the_bound_is_the_callers(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.json", json.dumps({"a": "x" * 100}).encode())
    with pytest.raises(InputError, match="expected at most 50 bytes"):
        files.read_json_object(path, max_bytes=50)
    assert len(files.read_bytes(path, max_bytes=path.stat().st_size)) == path.stat().st_size


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    files.write_bytes(path, b"old")
    files.write_bytes(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_writing_follows_a_link_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write_bytes(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_device_is_written_to_not_replaced() -> None:
    files.write_bytes(os.devnull, b"x")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("where", ["absent/plan.json", "folder", "nul\0byte"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        files.write_bytes(f"{tmp_path}/{where}", b"x")


@pytest.mark.parametrize("word", ["010", "0o10", "0x10", "0b1", "1:30", "1_000", "yes", "no", "on", "2024-01-01", "="])
def test_yaml_words_that_look_like_something_else_stay_text(word: str) -> None:
    # YAML 1.1 would make these 8, 90, 1000, true, a date ...: a reader sees none of that.
    assert files.parse_yaml_object(f"a: {word}", where="f.yaml") == {"a": word}


@pytest.mark.parametrize(
    ("word", "value"),
    [("7", 7), ("-7", -7), ("0", 0), ("3.5", 3.5), ("3.35e12", 3.35e12), (".5", 0.5), ("true", True), ("null", None)],
)
def test_yaml_words_that_are_json_mean_what_json_means(word: str, value: object) -> None:
    found = files.parse_yaml_object(f"a: {word}", where="f.yaml")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"at line 3: field 'a' is given twice"),
        ("t: {x: 1, x: 2}", r"at line 1: field 'x' is given twice"),
        ("a: 1\n<<: {b: 2}", r"at line 2: merge keys \(<<\) are not accepted"),
        ('a: !!int "010"', "tag .* is not accepted"),
        ("a: !!set {b}", "tag .* is not accepted"),
    ],
)
def test_yaml_that_hides_which_value_counts_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        files.parse_yaml_object(text, where="f.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "field 'a' is given twice"),
        ('{"a": [{"b": 1, "c": 2, "b": 3}]}', "field 'b' is given twice"),
        ('{"a": ' + "9" * 41 + "}", "an integer of 41 digits"),
    ],
)
def test_json_that_hides_which_value_counts_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        files.parse_json(text, where="f.json")


def test_a_config_may_hold_infinity_and_our_own_files_may_not() -> None:
    assert files.parse_json('{"a": Infinity}', where="f") == {"a": float("inf")}
    with pytest.raises(InputError, match="the number Infinity; expected finite numbers"):
        files.parse_json('{"a": Infinity}', where="f", finite=True)


def test_writing_never_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="a loop of symbolic links"):
        files.write_bytes(tmp_path / "loop", b"x")
    assert (tmp_path / "loop").is_symlink()
    (tmp_path / "dangling").symlink_to(tmp_path / "target")
    files.write_bytes(tmp_path / "dangling", b"x")
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_writing_never_waits_for_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="nobody reads this pipe"):
        files.write_bytes(tmp_path / "pipe", b"x")
    with pytest.raises(InputError, match="not a regular file"):
        files.write_bytes(tmp_path / "pipe", b"x", regular=True)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_bytes(tmp_path / "pipe", b"x")
    assert os.read(reader, 10) == b"x"
    os.close(reader)
