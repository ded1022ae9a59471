"""Which pool of a prefill and decode pair a command belongs to, as its engine is told."""

import re
from collections.abc import Sequence
from typing import Literal

Pool = Literal["prefill", "decode", ""]

# vLLM: kv_role of --kv-transfer-config (vllm/config/kv_transfer.py); a connector that takes kv_both does not say.
# SGLang and Dynamo: --disaggregation-mode (sglang/srt/server_args.py; components/src/dynamo), Dynamo's older switches.
# TensorRT-LLM: --server_role (tensorrt_llm/commands/serve.py).
_MODE, _SERVER = "--disaggregation[-_]mode[ =]", "--server[-_]role[ =]"
_SAYS = {
    "prefill": rf"\bkv_producer\b|{_MODE}prefill\b|--is-prefill-worker\b|{_SERVER}context\b",
    "decode": rf"\bkv_consumer\b|{_MODE}decode\b|--is-decode-worker\b|{_SERVER}generation\b",
}
_NAMED = re.compile(r"(?:^|[^a-z])(prefill|decode)(?=$|[^a-z])")
_HANDS_OVER = re.compile(r"--kv[-_]transfer[-_]config|--disaggregation[-_]", re.IGNORECASE)


def pool(words: Sequence[str], *labels: str) -> Pool:
    """The pool of a command; where it does not say so, that of labels which state a role and nothing else."""
    text = " ".join(words)
    told = [role for role, pattern in _SAYS.items() if re.search(pattern, text, re.IGNORECASE)]
    if len(told) == 1:
        return told[0]  # type: ignore[return-value]
    stated = {label.lower() for label in labels} & {"prefill", "decode"}
    return stated.pop() if len(stated) == 1 else ""  # type: ignore[return-value]


def named(name: str) -> Pool:
    """The pool that an object's name speaks of (`m-decode`, `VllmDecodeWorker`): a pool only beside its counterpart."""
    found = set(_NAMED.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()))
    return found.pop() if len(found) == 1 else ""


def hands_over(words: Sequence[str]) -> bool:
    """Whether a command hands KV over or takes it: what its name says of a pool then holds."""
    return bool(_HANDS_OVER.search(" ".join(words)))


def said(role: Pool, where: str) -> tuple[str, ...]:
    """What to say of a pool that is planned by itself."""
    if not role:
        return ()
    return (
        f"{where} is the {role} pool of a pair: it is taken here as groups that serve whole requests; linkwise handoff"
        " plans the two together",
    )
