"""Scripts in containers and pools of a pair, read from manifests: layouts worked out by hand from their flags."""

import json
from pathlib import Path

import pytest
from tests.launch.made import asked, deployment
from tests.launch.test_existing import read
from tests.launch.test_kubernetes import CAST

import linkwise
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.launch import registry as launchers
from linkwise.launch.expand import by_kubernetes
from linkwise.launch.kubernetes import registry
from linkwise.launch.manifest import choose, load
from linkwise.launch.types import Group
from linkwise.launch.work import Work
from linkwise.launch.write import write


def container(command: str, arguments: str) -> str:
    pod = f"{{containers: [{{name: m, image: i, command: {command}, args: {arguments}}}]}}"
    return f"kind: Deployment\nmetadata: {{name: m}}\nspec: {{template: {{spec: {pod}}}}}\n"


# bash(1): single-letter options can be one word, -c's string is the first argument after all options, then $0 and $1.
@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        ('["/bin/bash", "-lc"]', "", ""),
        ('["/bin/sh", "-ec"]', "", ""),
        ('["bash", "-euxo", "pipefail", "-c"]', "", ""),
        ('["bash", "--login", "-ce"]', "", ""),
        ('["/usr/bin/env", "bash", "-c"]', "", ""),
        ('["bash", "-c"]', "pip install vllm==0.30.0 && ", ""),
        ('["bash", "-c"]', "ulimit -l unlimited; echo vllm serve starts; ", " 2>&1 | tee run.log"),
        ('["bash", "-c"]', "exec ", " & wait"),
        ('["bash", "-c"]', "cat >c.yaml <<EOF\nvllm serve other\nEOF\n", " || exit 1"),
        ('["bash", "-c"]', "export TP=4 && ", ""),
        ('["bash", "-c"]', "ulimit -n 9999 && exec bash -c '", "'"),
        ('["bash", "-c"]', "if ! command -v vllm; then exit 1; fi\n", " # -tp 8"),
    ],
)
def test_scripts_in_containers(tmp_path: Path, command: str, before: str, after: str) -> None:
    tp = "$TP" if "TP=" in before else "4"
    text = f"{before}vllm serve Qwen/Qwen3-8B -tp {tp} --max-num-seqs 7{after}"
    (one,) = load(read(tmp_path, container(command, json.dumps([text]))))
    found = one.parse()
    assert (found.model, found.layout, found.options.max_seqs) == ("Qwen/Qwen3-8B", Layout(tp=4), 7)


def test_words_behind_a_script_are_its_arguments(tmp_path: Path) -> None:
    words = '["bash", "-c", "exec \\"$@\\"", "--", "vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2"]'
    (one,) = load(read(tmp_path, container(words, "[]")))
    assert one.parse().layout == Layout(tp=2)


BRANCHES = """
if [ "$LWS_WORKER_INDEX" = "0" ]; then
  exec vllm serve Qwen/Qwen3-8B -tp 8 -pp 2 --nnodes 2 --node-rank 0 --master-addr $LWS_LEADER_ADDRESS
else
  exec vllm serve Qwen/Qwen3-8B -tp 8 -pp 2 --nnodes 2 --node-rank $LWS_WORKER_INDEX \\
    --master-addr $LWS_LEADER_ADDRESS --headless
fi
"""


def test_of_branches_the_one_that_answers_is_read(tmp_path: Path) -> None:
    (one,) = load(read(tmp_path, container('["bash", "-c"]', json.dumps([BRANCHES]))))
    assert one.parse().layout == Layout(tp=8, pp=2)
    two = "case $SIZE in small) vllm serve a/b -tp 1 ;; *) vllm serve a/b -tp 8 ;; esac"
    path = read(tmp_path, container('["bash", "-c"]', json.dumps([two])))
    with pytest.raises(InputError, match=r"2 different commands in m.*Branches of a script are not chosen"):
        choose(load(path), "", str(path))
    with pytest.raises(InputError, match="balanced quotes"):
        load(read(tmp_path, container('["bash", "-c"]', json.dumps(["vllm serve 'a"]))))


@pytest.mark.parametrize(
    ("engine", "prefill", "decode"),
    [
        ("vllm serve", '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_producer"}', None),
        ("sglang serve --model-path", "--disaggregation-mode prefill", "--disaggregation-mode decode"),
        ("trtllm-serve", "--server_role CONTEXT", "--server_role GENERATION"),
        ("python3 -m dynamo.vllm --model", "--is-prefill-worker", "--is-decode-worker"),
        ("python3 -m dynamo.sglang --model-path", "--disaggregation-mode prefill", "--disaggregation-mode decode"),
    ],
)
def test_pools_of_one_layout_are_not_replicas_of_one_plan(
    tmp_path: Path, engine: str, prefill: str, decode: str | None
) -> None:
    """The words by which each engine is told its pool (sources: launch/roles.py)."""
    decode = decode or prefill.replace("producer", "consumer")
    parts = (("a", prefill), ("b", decode))
    each = [container(json.dumps(f"{engine} Qwen/Qwen3-8B {words}".split()), "[]") for _, words in parts]
    path = read(
        tmp_path,
        "---\n".join(text.replace("name: m}", f"name: {n}}}", 1) for text, (n, _) in zip(each, parts, strict=True)),
    )
    with pytest.raises(InputError, match="2 different commands.*NAME one of a, b"):
        choose(load(path), "", str(path))
    for name in ("decode", "b"):
        one = choose(load(path), name, str(path))
        assert (one.pool, one.replicas) == ("decode", 1)
        assert "the decode pool of a pair" in one.parse().notes[-1]


@pytest.mark.parametrize(
    ("engine", "connector"), [("vllm", "nixl"), ("sglang", "sglang_mooncake"), ("trtllm", "trtllm")]
)
def test_our_own_pools_are_read_back_as_pools(tmp_path: Path, engine: str, connector: str) -> None:
    """Two prefill and two decode groups of one layout."""
    layout = Layout(tp=4)
    groups = tuple(
        Group(name=f"{role}-{n}", role=role, layout=layout, devices=tuple(range(first + 4 * n, first + 4 * n + 4)))
        for role, first in (("prefill", 0), ("decode", 8))
        for n in range(2)
    )
    given = asked("llama-3.3-70b", engine, [range(4)], layout, connector=connector)._replace(groups=groups)
    write(deployment(given), tmp_path / "d")
    with pytest.raises(InputError, match="different commands.*NAME one of prefill, decode"):
        choose(load(tmp_path / "d"), "", "d")
    one = choose(load(tmp_path / "d"), "prefill", "d")
    assert (one.pool, one.replicas, one.parse().layout) == ("prefill", 2, layout)
    if engine != "trtllm":
        path = read(tmp_path, registry.manifest("llm-d", given, launchers.get(engine), CAST).text)
        with pytest.raises(InputError, match="different commands.*NAME one of it-prefill, it-decode"):
            choose(load(path), "", str(path))
        assert choose(load(path), "decode", str(path)).parse().replicas == 2


def test_a_role_that_only_a_label_says(tmp_path: Path) -> None:
    """llm-d labels pods with llm-d.ai/role; a connector that takes kv_both does not say it."""
    words = '["vllm", "serve", "Qwen/Qwen3-8B", "--kv-transfer-config", "{\\"kv_role\\": \\"kv_both\\"}"]'
    text = container(words, "[]").replace("template: {", "template: {metadata: {labels: {llm-d.ai/role: decode}}, ")
    (one,) = load(read(tmp_path, text))
    assert one.pool == "decode"


def test_a_pool_in_a_pasted_command_is_said() -> None:
    command = "sglang serve --model-path Qwen/Qwen3-8B --tp 2 --disaggregation-mode decode"
    plan = linkwise.plan(on="8xh100-sxm", from_command=command, isl=1000, osl=100)
    assert any("the command is the decode pool of a pair" in note for note in plan.notes)


def test_variables_that_grow_without_end_are_refused() -> None:
    with pytest.raises(InputError, match="too long"):
        by_kubernetes("$(A)" * 1000, {"A": "x" * 1000}, Work())


def test_what_scripts_take_is_bounded_for_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that may be read alone may not be read a hundred times."""
    monkeypatch.setattr("linkwise.launch.work.MOST_STEPS", 50_000)
    script = "for i in {1..60}; do a; done; vllm serve Qwen/Qwen3-8B -tp 2"
    one = container('["bash", "-c"]', json.dumps([script]))
    assert len(load(read(tmp_path, one))) == 1
    with pytest.raises(InputError, match="more than 50000 steps"):
        load(read(tmp_path, "---\n".join([one] * 100)))


def test_engines_and_variables_of_one_container_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linkwise.launch.work.MOST_STEPS", 1_000_000)
    script = "".join(f"vllm serve m{n} &\n" for n in range(1_000))
    with pytest.raises(InputError, match="steps"):
        load(read(tmp_path, container('["bash", "-c"]', json.dumps([script]))))
    pairs = [{"name": "A0", "value": "x" * 1000}]
    pairs += [{"name": f"A{n}", "value": f"$(A{min(n, 8) - 1})" * 2} for n in range(1, 1_000)]
    text = container('["vllm", "serve", "m"]', "[]").replace("command:", f"env: {json.dumps(pairs)}, command:")
    with pytest.raises(InputError, match="steps"):
        load(read(tmp_path, text))


def started(tmp_path: Path, script: str, *, name: str = "m", more: str = "") -> Path:
    """A Deployment whose container runs a script."""
    text = container('["bash", "-c"]', json.dumps([script])).replace("args:", f"{more}args:")
    return read(tmp_path, text.replace("metadata: {name: m}", f"metadata: {{name: {name}}}"))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('if [ "$BIG" = 1 ]; then TP=8; else TP=4; fi; vllm serve a/b -tp $TP', r"-tp.*TP is set under a condition"),
        ("TP=$(nvidia-smi -L | wc -l); vllm serve a/b -tp $TP", r"TP is set from \$\(nvidia-smi\.\.\.\)"),
        ("vllm serve a/b -tp $TP", "TP is set nowhere in the file"),
        ("read TP; vllm serve a/b -tp $TP", "TP is read while the script runs"),
        ('A="-tp 2"; [ "$X" = 1 ] && A="-tp 4"; vllm serve a/b $A', "A is set under a condition"),
        ('A=(-tp 2); [ "$X" = 1 ] && A+=(-pp 2); vllm serve a/b "${A[@]}"', "A is set under a condition"),
        ("for i in $LIST; do vllm serve a/b --port $i & done", "a loop starts it"),
        ("while [ $i -lt 2 ]; do vllm serve a/b & i=$((i + 1)); done; wait", "a loop starts it"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(tmp_path: Path, script: str, said: str) -> None:
    (one,) = load(started(tmp_path, script))
    with pytest.raises(InputError, match=said) as error:
        one.parse()
    assert "--from-command" in (error.value.hint or "")
    assert "not expanded" not in str(error.value)


def test_variables_that_refer_elsewhere_are_not_known(tmp_path: Path) -> None:
    """A default stands for a variable that is not set, and this one is."""
    reference = "env: [{name: TP, valueFrom: {configMapKeyRef: {name: c, key: tp}}}], "
    (one,) = load(started(tmp_path, "vllm serve a/b -tp ${TP:-2}", more=reference))
    with pytest.raises(InputError, match="TP is set by a reference"):
        one.parse()
    text = container('["vllm", "serve", "a/b", "-tp", "$(TP)"]', "[]").replace("args:", f"{reference}args:")
    (one,) = load(read(tmp_path, text))
    with pytest.raises(InputError, match="TP.* is set by a reference"):
        one.parse()


@pytest.mark.parametrize("init", ['"/usr/bin/tini", "--", ', '"tini", "-s", "-g", "--", ', '"/usr/bin/dumb-init", '])
def test_an_init_before_a_shell(tmp_path: Path, init: str) -> None:
    (one,) = load(read(tmp_path, container(f'[{init}"bash", "-c"]', '["TP=2; exec vllm serve a/b -tp $TP"]')))
    assert one.parse().layout == Layout(tp=2)
    (one,) = load(read(tmp_path, container(f'[{init}"vllm", "serve"]', '["a/b", "-tp", "4"]')))
    assert one.parse().layout == Layout(tp=4)


DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  services:
    ONE:
      SUB
      replicas: 1
      extraPodSpec: {mainContainer: {image: i, command: [python3, -m, dynamo.vllm],
        args: [--model, a/b, --tensor-parallel-size, "4"FLAG]}}
    OTHER:
      replicas: 2
      extraPodSpec: {mainContainer: {image: i, command: [python3, -m, dynamo.vllm],
        args: [--model, a/b, --tensor-parallel-size, "8"]}}
"""


@pytest.mark.parametrize(
    ("one", "sub", "flag", "other"),
    [
        ("Worker", "subComponentType: prefill", "", "Second"),
        ("Worker", "", ", --is-prefill-worker", "Second"),
        ("Worker", "", ", --disaggregation-mode, prefill", "Second"),
        ("Worker", "", ", --disaggregation-mode=prefill", "Second"),
        ("VllmPrefillWorker", "", "", "VllmDecodeWorker"),
    ],
)
def test_pools_of_an_older_dynamo_graph(tmp_path: Path, one: str, sub: str, flag: str, other: str) -> None:
    """Dynamo's operator (api/v1alpha1): subComponentType; names as in its examples."""
    text = DYNAMO.replace("ONE", one).replace("SUB", sub).replace("FLAG", flag).replace("OTHER", other)
    path = read(tmp_path, text)
    found = choose(load(path), "prefill", str(path))
    assert (found.name, found.pool, found.parse().layout) == (one, "prefill", Layout(tp=4))
    assert "the prefill pool of a pair" in found.parse().notes[-1]
    if other == "VllmDecodeWorker":
        assert choose(load(path), "decode", str(path)).parse().replicas == 2


@pytest.mark.parametrize(
    ("name", "flags", "pool"),
    [
        ("chunked-prefill", "--enable-chunked-prefill", ""),
        ("m-decode", "", ""),
        ("m-decode", '--kv-transfer-config {"kv_role":"kv_both"}', "decode"),
        ("prefill-decode", '--kv-transfer-config {"kv_role":"kv_both"}', ""),
    ],
)
def test_a_name_is_a_pool_beside_its_counterpart_or_a_hand_over(
    tmp_path: Path, name: str, flags: str, pool: str
) -> None:
    words = json.dumps(["vllm", "serve", "a/b", *flags.split()])
    (one,) = load(read(tmp_path, container(words, "[]").replace("metadata: {name: m}", f"metadata: {{name: {name}}}")))
    assert one.pool == pool


@pytest.mark.parametrize("label", ["prefill-decode", "both"])
def test_a_label_that_says_both(tmp_path: Path, label: str) -> None:
    text = container('["vllm", "serve", "a/b"]', "[]")
    text = text.replace("template: {", f"template: {{metadata: {{labels: {{llm-d.ai/role: {label}}}}}, ")
    (one,) = load(read(tmp_path, text))
    assert one.pool == ""


def test_two_servers_of_one_container_share_its_devices(tmp_path: Path) -> None:
    each = "CUDA_VISIBLE_DEVICES={} vllm serve a/b -tp 4 --port {} &"
    script = each.format("0-3", 8000) + each.format("4-7", 8001) + " wait"
    gpus = 'resources: {limits: {nvidia.com/gpu: "8"}}, '
    path = started(tmp_path, script, more=gpus)
    one = choose(load(path), "", str(path))
    assert (one.parse().layout, one.parse().replicas) == (Layout(tp=4), 2)
    assert not [note for note in one.parse().notes if "devices" in note]
    path = started(tmp_path, script.replace("-tp 4", "-tp 2"), more=gpus)
    assert "pods ask for 8 devices, its 2 commands use 4" in choose(load(path), "", str(path)).parse().notes[-1]
    # Of two branches one runs: one server, which leaves devices unused.
    path = started(
        tmp_path, 'if [ "$X" ]; then vllm serve a/b -tp 4; else vllm serve a/b -tp 4 --port 1; fi', more=gpus
    )
    one = choose(load(path), "", str(path))
    assert one.parse().replicas == 1
    assert "pods ask for 8 devices, the command uses 4" in one.parse().notes[-1]


def test_pools_in_one_scripts_branches_and_names_that_are_not_there(tmp_path: Path) -> None:
    command = 'vllm serve a/b --kv-transfer-config \'{"kv_role":"kv_ROLE"}\''
    pair = [command.replace("ROLE", role) for role in ("producer", "consumer")]
    path = started(tmp_path, f'if [ "$ROLE" = p ]; then {pair[0]} -tp 2; else {pair[1]} -tp 4; fi')
    with pytest.raises(InputError, match="FILE:prefill or FILE:decode"):
        choose(load(path), "", str(path))
    assert choose(load(path), "decode", str(path)).parse().layout == Layout(tp=4)
    with pytest.raises(InputError, match="no command of 'x'.*NAME one of m"):
        choose(load(path), "x", str(path))


def test_a_script_is_read_whole_or_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"100\d\d\d characters"):
        load(started(tmp_path, "# " + "x" * 100_000 + "\nvllm serve a/b -tp 2"))


def test_a_file_that_a_script_sources_is_said(tmp_path: Path) -> None:
    (one,) = load(started(tmp_path, "source /opt/env.sh; . /opt/venv/bin/activate; vllm serve a/b"))
    assert [note for note in one.parse().notes if "not read" in note] == [
        "/opt/env.sh is not read: what it sets is not known"
    ]
