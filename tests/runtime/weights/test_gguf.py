"""A GGUF file of a model transformers made comes back as that model; foreign and damaged files are refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from linkwise.core.errors import InputError  # noqa: E402
from linkwise.runtime.text import open_text  # noqa: E402
from linkwise.runtime.weights import gguf as ours  # noqa: E402
from linkwise.runtime.weights.source import open_source  # noqa: E402
from linkwise.runtime.weights.written import MARK  # noqa: E402

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def tokenizer() -> Any:
    """SmolLM2's kind: digits apart, GPT-2's words, bytes merged."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=272,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the sea is deep and the sky is blue 12 123"] * 3, trainer)
    return made


def tiny(tied: bool) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rope_theta=50000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(config).eval()


def permuted(weight: Any, heads: int) -> Any:
    """As llama.cpp's convert_hf_to_gguf.py stores query and key rows: halves of a head become neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, model: Any, words: Any, kind: Any = None, drop: str = "", **changes: Any) -> Path:
    """A GGUF file of the model. kind: how matrices are stored. changes: of fields; None leaves one out."""
    config, vocab = model.config, words.get_vocab()
    tokens = sorted(vocab, key=lambda t: vocab[t])
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    writer = gguf.GGUFWriter(str(path), changes.pop("architecture", "llama"))
    merges = json.loads(words.to_str())["model"]["merges"]
    fields = {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.rope.freq_base": 50000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in SPECIAL else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": CHAT,
    } | changes
    for name, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](name, value)
    named = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    if not config.tie_word_embeddings:
        named["output"] = "lm_head"
    for layer in range(config.num_hidden_layers):
        named |= {f"blk.{layer}.{a}": f"model.layers.{layer}.{b}" for a, b in LAYER.items()}
    for theirs, name in named.items():
        value = state[f"{name}.weight"]
        for part, heads in (("attn_q", config.num_attention_heads), ("attn_k", config.num_key_value_heads)):
            if theirs.endswith(part):
                value = permuted(value, heads)
        if theirs == drop:
            continue
        if kind is None or value.ndim == 1:
            writer.add_tensor(f"{theirs}.weight", value)
        else:
            writer.add_tensor(f"{theirs}.weight", gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_comes_back(tmp_path: Path, tied: bool) -> None:
    model, words = tiny(tied), tokenizer()
    made = ours.convert(write(tmp_path / "m.gguf", model, words), tmp_path / "out", dtype="float32")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert made.parameters == sum(p.numel() for p in model.parameters())
    assert made.bytes == 4 * made.parameters
    assert made.stored == ("F32",)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    ids = torch.arange(20)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)
    for field in ("rope_parameters", "rms_norm_eps", "head_dim", "tie_word_embeddings", "eos_token_id"):
        assert getattr(again.config, field) == getattr(model.config, field), field


def test_the_tokenizer_comes_back(tmp_path: Path) -> None:
    model, words = tiny(True), tokenizer()
    ours.convert(write(tmp_path / "m.gguf", model, words), tmp_path / "out")
    text = open_text(tmp_path / "out")
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for said in ["the sea 123 is  deep", "\n\n x²½ 9a 日本 😀", "<|im_start|>user\nhi<|im_end|>", "don't  I'LL"]:
        assert text.encode(said) == words.encode(said).ids == other(said)["input_ids"]
        assert words.decode(text.encode(said), skip_special_tokens=False) == said
    assert text.stop_ids == {2}
    assert text.special == {0, 1, 2}
    messages = [{"role": "user", "content": "the sea"}]
    assert text.chat(messages) == other.apply_chat_template(messages)["input_ids"]
    assert (other.bos_token, other.eos_token, other.unk_token) == ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def test_a_start_token_is_put_before_every_text(tmp_path: Path) -> None:
    words = tokenizer()
    write(tmp_path / "m.gguf", tiny(True), words, **{"tokenizer.ggml.add_bos_token": True})
    ours.convert(tmp_path / "m.gguf", tmp_path / "out")
    assert open_text(tmp_path / "out").encode("the sea") == [1, *words.encode("the sea").ids]


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])  # what SmolLM2's file holds
def test_quantised_weights_are_expanded_and_rounded_once(tmp_path: Path, name: str) -> None:
    model, kind = tiny(True), gguf.GGMLQuantizationType[name]
    made = ours.convert(write(tmp_path / "m.gguf", model, tokenizer(), kind), tmp_path / "out", shard_bytes=40_000)
    assert made.stored == (name, "F32")
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    source = open_source(tmp_path / "out")
    assert source.dtype == "bfloat16"
    for weight, value in model.state_dict().items():
        if weight != "lm_head.weight":
            raw = value.numpy()
            if raw.ndim == 2:  # blocks of 32 lie along a row, so that the order of rows changes nothing
                raw = gguf.quants.dequantize(gguf.quants.quantize(raw, kind), kind)
            assert torch.equal(source.read(weight), torch.tensor(raw).to(torch.bfloat16)), weight


def test_a_folder_of_ours_is_replaced_and_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny(True), tokenizer())
    ours.convert(path, tmp_path / "out", shard_bytes=40_000)
    ours.convert(path, tmp_path / "out")
    assert open_source(tmp_path / "out").dtype == "bfloat16"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "out"]
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        ours.convert(path, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    ours.convert(path, tmp_path / "empty")
    assert open_source(tmp_path / "empty").dtype == "bfloat16"


def kept(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_somebody_elses_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    """The same file names are no proof of where they come from, and neither is a mark beside other files."""
    path = write(tmp_path / "m.gguf", tiny(True), tokenizer())
    theirs = tmp_path / "theirs"
    tiny(True).save_pretrained(theirs)
    before = kept(theirs)
    with pytest.raises(InputError, match=r"'config\.json', which this command did not write"):
        ours.convert(path, theirs)
    assert kept(theirs) == before
    made = tmp_path / "made"
    ours.convert(path, made)
    tiny(False).save_pretrained(made)  # tuned, and saved where it was read from
    before = kept(made)
    with pytest.raises(InputError, match=r"has changed since this command wrote it"):
        ours.convert(path, made)
    assert kept(made) == before
    for mark in ('{"schema": "linkwise.weights/1", "files": 5}', "{}"):
        (theirs / MARK).write_text(mark)
        with pytest.raises(InputError, match="did not write"):
            ours.convert(path, theirs)


def test_what_cannot_take_the_place_of_a_folder_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", tiny(True), tokenizer())
    ours.convert(path, tmp_path / "out", dtype="float32")
    before = kept(tmp_path / "out")
    rename = os.rename

    def fails(source: Any, target: Any) -> None:
        if Path(target) == tmp_path / "out" and ".before." not in str(source):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(InputError, match="No space left"):
        ours.convert(path, tmp_path / "out")
    assert kept(tmp_path / "out") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "out"]
    # At the worst moment, between the two renames, both are on the disk.
    seen: list[list[str]] = []

    def dies(source: Any, target: Any) -> None:
        rename(source, target)
        if Path(source) == tmp_path / "out":
            seen.append(sorted(file.name for file in tmp_path.glob(".*/**/model.safetensors")))

    monkeypatch.setattr(os, "rename", dies)
    ours.convert(path, tmp_path / "out")
    assert seen == [["model.safetensors"] * 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "qwen2"}, ("qwen2",)),
        ({"llama.block_count": 3}, ("blk.2.", "missing")),
        ({"llama.block_count": 1}, ("blk.1.",)),
        ({"llama.block_count": 4_000_000}, ("block_count",)),
        ({"llama.block_count": None}, ("block_count",)),
        ({"llama.block_count": "two"}, ("block_count",)),
        ({"llama.embedding_length": 32}, ("shape", "[272, 64]", "[272, 32]")),
        ({"llama.expert_count": 8}, ("mixture",)),
        ({"llama.rope.scaling.type": "yarn"}, ("yarn",)),
        ({"llama.rope.dimension_count": 8}, ("dimension_count",)),
        ({"tokenizer.ggml.model": "llama"}, ("tokenizer model",)),
        ({"tokenizer.ggml.pre": "tekken"}, ("pre-tokenizer", "tekken")),
        ({"tokenizer.ggml.eos_token_id": 272}, ("eos token 272",)),
        ({"tokenizer.ggml.token_type": [1]}, ("token types",)),
        ({"tokenizer.ggml.merges": ["ab"]}, ("merge",)),
        ({"tokenizer.ggml.merges": ["no such"]}, ("merges",)),
        ({"drop": "blk.1.ffn_up"}, ("blk.1.ffn_up", "missing")),
    ],
)
def test_files_that_are_not_converted(tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    write(tmp_path / "m.gguf", tiny(True), tokenizer(), **changes)
    with pytest.raises(InputError) as caught:
        ours.convert(tmp_path / "m.gguf", tmp_path / "out")
    for word in ("m.gguf", *words):
        assert word in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_damaged_files(tmp_path: Path) -> None:
    data = write(tmp_path / "whole.gguf", tiny(True), tokenizer()).read_bytes()
    for number, damaged in enumerate(
        [b"", b"GGUF", data[:40], data[:5000], data[: len(data) - 100], b"XXXX" + data[4:],
         data[:8] + b"\xff" * 8 + data[16:], data[:16] + b"\xff" * 8 + data[24:]]
    ):  # fmt: skip
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=path.name):
            ours.convert(path, tmp_path / "out")
    with pytest.raises(InputError, match="float8"):
        ours.convert(tmp_path / "whole.gguf", tmp_path / "out", dtype="float8_e4m3")


def test_the_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "SMOLLM2", "no-such-package-here")
    with pytest.raises(InputError, match="pip install"):
        ours.smollm2()
