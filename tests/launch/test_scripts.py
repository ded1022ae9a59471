"""Scripts read as bash runs them: bash itself, with a program `vllm` that writes its words down, says what is right."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from linkwise.core.errors import InputError
from linkwise.launch.expand import Text
from linkwise.launch.programs import Script
from linkwise.launch.walk import Launch, launches
from linkwise.launch.work import MOST_STEPS, Work

GIVEN = {"TP": "4", "SMALL": "1", "NAME": "a b", "EMPTY": ""}


def reading(script: str, given: dict[str, str] | None = None, arguments: tuple[str, ...] = ()) -> list[Launch]:
    variables = {n: Text(v) for n, v in (GIVEN if given is None else given).items()}
    return launches(Script(script, arguments), variables, Work())


def bash(tmp_path: Path, script: str, given: dict[str, str], arguments: tuple[str, ...] = ()) -> list[list[str]]:
    """The words of every `vllm` that bash starts."""
    out = tmp_path / "out"
    out.write_bytes(b"")
    # Nothing of the machine is touched: what ends, finds or installs is a program here that does nothing.
    for name in ("pkill", "pgrep", "ps", "logger", "pip", "killall"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for name in ("vllm", "numactl", "tini", "nohup"):
        # What stands before another program starts the words from the first that is no option.
        text = 'while case $1 in -*) true;; *) false;; esac; do shift; done; exec "$@"\n'
        (tmp_path / name).write_text(
            "#!/bin/sh\n" + (f"printf '%s\\0' \"$@\" >> {out}; printf '\\1\\0' >> {out}\n" if name == "vllm" else text)
        )
        (tmp_path / name).chmod(0o755)
    environment = {**given, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(
        ["bash", "-c", script + "\nwait", "bash", *arguments], env=environment, cwd=tmp_path, check=False, timeout=20,
        capture_output=True,
    )  # fmt: skip
    found: list[list[str]] = [[]]
    for word in out.read_text().split("\0")[:-1]:
        if word == "\1":
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def words(one: Launch) -> list[str]:
    return list(one.words[[w.rsplit("/", 1)[-1] for w in one.words].index("vllm") + 1 :])


READ = [
    'if [ "$TP" = 4 ]; then TP=8; else TP=2; fi; vllm serve m -tp $TP',
    'TP=8; if [ "$SMALL" = 1 ]; then TP=2; fi; vllm serve m -tp $TP',
    '[ "$SMALL" = 0 ] && TP=2\nvllm serve m -tp "$TP"',
    '[ "$SMALL" = 0 ] || TP=2\nvllm serve m -tp "$TP"',
    "TP=8; vllm serve m -tp $TP; TP=1",
    'ARGS="--a 1"; ARGS+=" --kv-cache-dtype fp8"; vllm serve m $ARGS',
    'ARGS=(--a "x y"); ARGS+=(--b 2)\nvllm serve m "${ARGS[@]}" ${#ARGS[@]}',
    'ARGS=(\n  --a 1  # said\n  --b "$NAME"\n)\nvllm serve m "${ARGS[@]}"',
    'A=(); [ -n "$EMPTY" ] && A+=(--x); vllm serve m "${A[@]}"',
    'vllm serve m $NAME "$NAME" $EMPTY "$EMPTY" x$NAME"y"',
    'vllm serve m ${EMPTY:-d} ${EMPTY-d} ${NAME:+e} "${NAME:+f g}" ${EMPTY:+h}',
    "unset TP; vllm serve m ${TP:-8} $((2 * SMALL + 3))",
    ": ${SIZE:=16}; vllm serve m -tp $SIZE",
    'start() { local TP=2; vllm serve "$1" -tp $TP; }\nstart m; vllm serve n -tp $TP',
    'log() { echo "$@"; }\nlog vllm serve no; log "vllm serve no"; vllm serve m',
    'case "$TP" in 1|2) X=a ;; 4) X=b ;; *) X=c ;; esac; vllm serve m $X',
    'case "$TP" in\n (1) X=a;;\n *) X=c\nesac\nvllm serve m $X',
    "if [[ $TP == 4 ]]; then vllm serve m; else vllm serve n; fi",
    "if [ $TP -ge 2 ]; then A=x; elif [ $TP -eq 1 ]; then A=y; fi; vllm serve m $A",
    'if [ -z "$TP" ]; then exit 1; fi; exec vllm serve m; vllm serve never',
    "if false; then vllm serve no; fi; true && vllm serve m; false && vllm serve no",
    "for i in 0 1 2; do vllm serve m --port $((8000 + i)); done",
    "for i in {0..1}; do CUDA_VISIBLE_DEVICES=$i vllm serve m --port 800$i; done",
    "for i in $(seq 2); do vllm serve m --rank $i; done",
    "(TP=1; vllm serve a -tp $TP); vllm serve b -tp $TP",
    "TP=1 | cat; vllm serve m -tp $TP",
    "{ TP=1; vllm serve m -tp $TP; } 2>&1 | cat",
    "export TP=2 X='a b' && vllm serve m -tp $TP \"$X\"",
    'set -- --a "1 2"; vllm serve m "$@" $#; shift; vllm serve m "$1"',
    'vllm serve m "$@" $2 ${1} $#',
    "bash -c 'vllm serve m -tp $TP'; Y=1; bash -c 'vllm serve m ${Y:-7}'",
    "bash <<'EOF'\nvllm serve m -tp $TP\nEOF",
    'TP=2\nbash -s a <<EOF\nvllm serve m -tp $TP \\$1 "q"\nEOF',
    'cat >/dev/null <<EOF\nvllm serve no "\nEOF\nvllm serve m',
    "cat >/dev/null <<-'EOF'\n\tit's\n\tEOF\nvllm serve m",
    'bash <<< "vllm serve m -tp $TP"',
    "eval \"vllm serve m -tp \\$TP --x 'a b'\"",
    "env A=1 nohup numactl --localalloc tini -- vllm serve m",
    "tini -- bash -c 'vllm serve m -tp $TP'",
    "nohup vllm serve m >log 2>&1 &",
    'pkill -f "vllm serve" ; pgrep -f vllm serve; ps aux | grep "vllm serve"; trap "vllm serve no" USR1; vllm serve m',
    "trap 'echo \"it stops\"; date' EXIT\nvllm serve m",
    "! true || vllm serve m; if ! false; then vllm serve n; fi",
    'vllm serve m --json \'{"a": "$TP"}\' --other "{\\"a\\": \\"$TP\\"}" \\\n  --last \\$TP',
    'f() { [ "$1" = a ] && return; vllm serve m $1; }\nf a; f b',
    "function g { vllm serve m; }\ng",
    "A=$TP B=$A; vllm serve m $B; TP=9 vllm serve n $TP",
    "vllm serve m # -tp 3\n# vllm serve no\nvllm serve n#1",
    "if ((TP > 1)); then :; fi; vllm serve m $TP",
    "while true; do vllm serve m; break; done; vllm serve n",
    "while true; do vllm serve m & wait; break; done",
    "A=1\\\n2; vllm serve m \\\n  --a$A\\\n  --b",
    'CMD=(vllm serve m -tp "$TP"); exec "${CMD[@]}"',
    'CMD="vllm serve m -tp $TP"; $CMD',
    'run() { "$@"; }; run vllm serve m "a b"',
    'ARGS=""; for a in x y; do ARGS="$ARGS --$a"; done; vllm serve m $ARGS',
    'set -euo pipefail; if [[ -n "${EMPTY}" ]]; then A=1; else A=2; fi; vllm serve m $A',
    "P=8000; for g in 0,1 2,3; do CUDA_VISIBLE_DEVICES=$g vllm serve m --port $P; P=$((P+1)); done",
    "f() ( TP=7 ); f; vllm serve m $TP; f() { TP=7; }; f; vllm serve m $TP",
    "while read -r l; do echo $l; done <<EOF\na b\nEOF\nvllm serve m",
    'vllm serve m if then fi "pre$@post" $1$2',
    "until vllm serve m; do sleep 1; done",
    "if [ $TP = 4 ] && [ $SMALL = 1 ]; then vllm serve m; fi",
    'vllm serve m ${TP:+--tp "$TP"} ${EMPTY:+--no "$TP"}',
    "vllm serve m $'a b' \"\" ''",
    "n=8; tp=$((n/2)); vllm serve m -tp $tp -dp $(( n - tp ))",
    'G=(0,1 "2 3"); for g in "${G[@]}" $# "$*" \'{a,b}\'; do vllm serve m --gpus "$g"; done',
    "[ $TP = 4 ] && A=$((TP / 2)) || A=1; vllm serve m $A; [ $TP = 5 ] && A=3 || A=$((TP * 2)); vllm serve m $A",
    "f() { g() { local A=1; return; }; for A in 1 2 3; do :; done; g; }; f; vllm serve m $A",
    'L=(); unset TP; vllm serve m ${TP-u} ${L-v} ${TP:-w} ${TP+x} "$TP" "${#TP}" $TP',
    "L=(); unset TP; TP+=8; vllm serve m $TP ${L=s} $L",
    "for g in ${EMPTY:-0,1 2,3}; do vllm serve m --gpus $g; done",
    'export VAR=1; unset VAR; vllm serve m "${VAR:-gone}"',
]


@pytest.mark.parametrize("script", READ)
def test_a_script_starts_what_bash_starts(script: str, tmp_path: Path) -> None:
    arguments = ("one", "two 2")
    expected = bash(tmp_path, script, GIVEN, arguments)
    assert expected
    found = [one for one in reading(script, arguments=arguments) if not one.refused]
    assert [words(one) for one in found] == expected


# What decides is not in the file: by its value bash starts other words, and what differs is named.
OPEN = [
    ('if [ "$BIG" = 1 ]; then TP=8; else TP=4; fi; vllm serve m $TP', "BIG", "TP is set under a condition"),
    ('TP=8; if [ -n "$BIG" ]; then TP=2; fi; vllm serve m $TP', "BIG", "TP is set under a condition"),
    ('TP=8; [ "$BIG" = 1 ] && TP=2; vllm serve m $TP', "BIG", "TP is set under a condition"),
    ('TP=8; [ "$BIG" = 1 ] || TP=2; vllm serve m $TP', "BIG", "TP is set under a condition"),
    ('ARGS="--a"; if [ -n "$BIG" ]; then ARGS="$ARGS --kv 8"; fi; vllm serve m $ARGS', "BIG", "ARGS is set under"),
    ('A=(--a); [ "$BIG" = 1 ] && A+=(--b); vllm serve m "${A[@]}"', "BIG", "A is set under a condition"),
    ('case "$BIG" in 1) TP=8;; *) TP=2;; esac; vllm serve m $TP', "BIG", "TP is set under a condition"),
    ("f() { TP=2; }\n[ \"$BIG\" = 1 ] && f; vllm serve m $TP", "BIG", "TP is set under a condition"),
    ('if [ "$BIG" = 1 ]; then set -- --x; fi; vllm serve m $@', "BIG", "@ is set under a condition"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "name", "said"), OPEN)
def test_what_a_condition_leaves_open_is_named(script: str, name: str, said: str, tmp_path: Path) -> None:
    one, other = (bash(tmp_path, script, {**GIVEN, name: value}) for value in ("1", ""))
    assert one != other
    (found,) = reading(script)
    left = [w for w in found.words if "$" in w]
    assert said in found.refused or said in " ".join(f"{w.strip('${}')} {found.unknown[w]}" for w in left)
    # Given the value, it is read.
    for value, expected in (("1", one), ("", other)):
        assert [words(each) for each in reading(script, {**GIVEN, name: value})] == expected


@pytest.mark.parametrize(
    "script",
    [
        'if [ "$BIG" = 1 ]; then TP=2; X=1; else X=2; TP=2; fi; vllm serve m $TP',
        'if [ "$BIG" = 1 ]; then exit 1; else TP=2; fi; vllm serve m $TP',
        "cd /nowhere && X=1; vllm serve m $TP",
        '[ "$BIG" = 1 ] && TP=8; TP=3; vllm serve m $TP',
        'f() { if [ "$BIG" = 1 ]; then return; fi; X=1; }\nf; vllm serve m $TP',
    ],
)
def test_conditions_that_change_nothing_of_the_command(script: str, tmp_path: Path) -> None:
    (expected,) = bash(tmp_path, script, GIVEN)
    (found,) = reading(script)
    assert (found.refused, words(found)) == ("", expected)


@pytest.mark.parametrize(
    "script",
    [
        'pkill -f "vllm serve"', 'nohup pkill -f "vllm serve"', 'logger "vllm serve m"', "trap 'vllm serve m' EXIT",
        "ps | grep vllm serve", "pip install vllm", "f() { vllm serve m; }", "echo vllm serve m", "which vllm serve",
        "timeout 5 echo vllm serve", "X=$(pgrep -f 'vllm serve m')",
    ],
)  # fmt: skip
def test_a_command_that_speaks_of_an_engine_starts_none(script: str, tmp_path: Path) -> None:
    assert not bash(tmp_path, script, GIVEN) or script.startswith("trap")  # at its end, which a server does not reach
    assert not reading(script)


def test_two_servers_run_together_and_branches_do_not() -> None:
    one, other = reading(
        "CUDA_VISIBLE_DEVICES=0-3 vllm serve m & CUDA_VISIBLE_DEVICES=4-7 vllm serve m --port 2 & wait"
    )
    assert one.together(other)
    one, other = reading('if [ "$BIG" = 1 ]; then vllm serve m --a & else vllm serve m & fi')
    assert not one.together(other)
    one, other = reading("vllm serve m --a || vllm serve m")
    assert not one.together(other)


def turned(script: str) -> str:
    """A script that is gone through 3,600 times."""
    return f"for i in {{1..60}}; do for j in {{1..60}}; do {script}\ndone; done"


@pytest.mark.parametrize(
    "script",
    [
        "A=x" * 20_000, "(" * 50_000, "$(" * 40_000, '"${A:-' * 10_000, "if a;then " * 9_000, "while a; do " * 8_000,
        "[ $A ] && B=1;" * 7_000, "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 5_000, "case $A in " * 9_000,
        "".join(f"A{n}=1;" for n in range(9_000)), "f() { f; f; }; f;" + " f;" * 20_000, "g() { eval g; }; g",
        "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }};" for n in range(3_000)) + "f0", "'" * 99_999, "a" * 100_001,
        "for i in {1..60}; do " * 30 + "a;" + "done;" * 30, "cat <<E\n" * 12_000, "A=$((" + "1+" * 45_000 + "1))",
        "`" * 99_999, "x=(" * 30_000, "eval eval " * 9_000, 'eval "' * 9_000, "\\\n" * 50_000, "$'" * 40_000,
        "".join(f"[ $X ] && A{n}=1;" for n in range(450)) + "if q; then A1=2; fi;" * 4_000, "a<<<b " * 15_000,
        "A" * 99_990 + "=1", "${A[" * 20_000,
        # What costs much and makes nothing; names and brackets that a pattern could go back over.
        turned(": " + '"" ' * 32_000), turned(": " + "''" * 49_000), turned("[[ " + '"" ' * 30_000 + "]]"),
        "f() { A=(" + '"" ' * 30_000 + "); }; " + turned("f"), "f() { return; " + "b;" * 45_000 + " }; " + turned("f"),
        turned("while false; do " + "b;" * 45_000 + " done"), turned("case a in " + '""|' * 30_000 + "b) c;; esac"),
        turned("cat <<< " + "''" * 45_000), turned("bash <<E\n" + "\\\n" * 45_000 + "\nE\n"),
        "while a; do " * 38 + "b;" * 40_000 + "done;" * 38,
        "".join(f"A{n}=1;" for n in range(480)) + "while a; do eval b; done;" * 3_500,
        "".join(f"a && f{n}() {{ b; }};" for n in range(4_900)), "".join(f"a && export A{n};" for n in range(5_500)),
        "for i in " + "{" * 99_000 + "; do a; done", "((" + "a" * 99_000 + "))", "(" * 20_000 + "a" + " )" * 20_000,
        "env " * 24_000, "A=1 " * 24_000 + "b", "a `b` " * 16_000, "a |" * 33_000, "x=(a " * 20_000,
        # Deep: calls in blocks in calls, functions of functions.
        "f()" * 30_000, "! " * 49_000 + "a", "a " + "$(b " * 38 + "c " * 40_000 + ")" * 38, "exec -a",
        "".join(f"f{n}() {{ {'{ ' * 35} f{n + 1}; {'};' * 35} }};" for n in range(29)) + "f0",
        "a " + "${A:-" * 38 + "c " * 40_000 + "}" * 38,
    ],
)  # fmt: skip
def test_hostile_scripts_end_soon(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work, counted in calls of functions, which are the same on every machine: at most 25 for a step, and steps are
    bounded: here by less than those of a whole file."""
    monkeypatch.setattr("linkwise.launch.work.MOST_STEPS", 300_000)
    calls, work = 0, Work()

    def count(_frame: FrameType, event: str, _given: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        with contextlib.suppress(InputError):
            assert not launches(Script(script, ()), {}, work)
    finally:
        sys.setprofile(None)
    assert calls <= 25 * work.steps + 1_000


def test_steps_of_a_file_are_far_above_those_of_scripts_in_use() -> None:
    work = Work()
    for script in READ:
        launches(Script(script, ()), {n: Text(v) for n, v in GIVEN.items()}, work)
    characters = sum(map(len, READ))
    assert work.steps < 10 * characters
    assert MOST_STEPS >= 10 * 500_000
