"""What `import linkwise` offers: a name added or lost here is a decision, not an accident."""

import re
import subprocess
import sys
from pathlib import Path

import linkwise

CALLS = {"fit", "plan", "explain", "compare", "handoff", "models", "hardware", "engines", "load", "save"}
CALLS |= {"traffic", "place", "diagnose", "simulate", "capacity", "autoscale", "launch", "calibrate"}
ALONE = {"lab", "measure", "check", "run", "serve", "weights", "trace", "watch", "report", "ui"}
VALUES = {"Fit", "Placement", "Plan", "NoPlan", "__version__"}
ERRORS = {"LinkwiseError", "InputError", "NotUnderstood", "Refused", "Undecidable"}


def test_the_public_names() -> None:
    assert set(linkwise.__all__) == CALLS | VALUES | ERRORS
    assert linkwise.__all__ == sorted(linkwise.__all__)
    assert set(dir(linkwise)) >= CALLS | VALUES | ERRORS


def test_every_public_name_is_there_and_documented() -> None:
    for name in CALLS:
        assert callable(getattr(linkwise, name)), name
    for name in CALLS | VALUES | ERRORS - {"__version__"}:
        assert getattr(linkwise, name).__doc__, name


def test_the_commands_are_the_calls() -> None:
    from linkwise.cli import app

    commands = {command.name for command in app.registered_commands}
    # Commands that act on a machine, write a file or go on until they are ended are commands only.
    assert commands - ALONE == CALLS - {"load", "save"}


def test_the_commands_page_says_which_are_calls() -> None:
    page = (Path(__file__).parents[1] / "docs" / "commands.md").read_text(encoding="utf-8")
    start = page.index("`fit`, `plan`")
    calls, alone = page[start : page.index("```", start)].split("are also Python calls")
    assert set(re.findall(r"`(\w+)`", calls)) == CALLS - {"load", "save"}
    # `cluster` is a group of commands.
    assert set(re.findall(r"`(\w+)`", alone)) == ALONE | {"cluster"}


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_linkwise_is_light() -> None:
    code = "import sys, linkwise; print({'numpy', 'rich', 'typer', 'torch'} & {*sys.modules})"
    assert _python(code) == "set()"


def test_planning_never_imports_torch() -> None:
    code = "import sys, linkwise.cli, linkwise.plan.build; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert _python(code) == "[]"


def test_plan_is_a_call_and_a_folder_in_either_order() -> None:
    code = "import linkwise; linkwise.fit; import linkwise.plan.types; print(callable(linkwise.plan))"
    assert _python(code) == "True"
    code = "import linkwise.plan.types as t, linkwise; print(callable(linkwise.plan), t.Plan.__name__)"
    assert _python(code) == "True Plan"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(linkwise, "guess")
