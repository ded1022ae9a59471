"""A vLLM worker that notes what it hands to its process groups, and a run of the engine with it.

python -m tests.vllm.observed MODEL FOLDER PROMPT_TOKENS KEYWORDS_AS_JSON: notes of each rank go to FOLDER/RANK.jsonl.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WHERE = "LINKWISE_OBSERVED"
NEW_TOKENS = 4


def note(rank: int, **what: Any) -> None:
    with open(Path(os.environ[WHERE]) / f"{rank}.jsonl", "a") as file:
        file.write(json.dumps(what) + "\n")


def noted(rank: int, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, given: Any, *rest: Any, **more: Any) -> Any:
        tensors = given.values() if isinstance(given, dict) else [given]
        note(rank, kind=kind, sizes=[t.numel() * t.element_size() for t in tensors], group=self.world_size)
        return call(self, given, *rest, **more)

    return wrapped


def worker() -> type:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.v1.worker.cpu_worker import CPUWorker

    class Worker(CPUWorker):  # type: ignore[misc]
        def load_model(self, *rest: Any, **more: Any) -> Any:
            load = DefaultModelLoader.load_weights

            def loaded(loader: Any, model: Any, *others: Any) -> None:
                load(loader, model, *others)  # before matmuls repack what they read
                held = {id(t): t for t in model.parameters()}.values()
                note(self.rank, kind="weights", sizes=[sum(t.numel() * t.element_size() for t in held)])

            DefaultModelLoader.load_weights = loaded
            return super().load_model(*rest, **more)

        def compile_or_warm_up_model(self, *rest: Any, **more: Any) -> Any:
            found = super().compile_or_warm_up_model(*rest, **more)
            for kind in ("all_reduce", "all_gather", "gather", "reduce_scatter", "send_tensor_dict"):
                setattr(CpuCommunicator, kind, noted(self.rank, kind, getattr(CpuCommunicator, kind)))
            return found

        def execute_model(self, scheduled: Any) -> Any:
            note(self.rank, kind="step", tokens=scheduled.total_num_scheduled_tokens)
            return super().execute_model(scheduled)

    return Worker


def __getattr__(name: str) -> Any:
    if name == "Worker":
        return worker()
    raise AttributeError(name)


def main() -> None:
    from vllm import LLM, SamplingParams

    model, folder, prompt, more = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    os.environ[WHERE] = folder
    engine = LLM(
        model=model, max_model_len=512, max_num_seqs=8, worker_cls="tests.vllm.observed.Worker", dtype="bfloat16",
        distributed_executor_backend="mp", **more,
    )  # fmt: skip
    ask = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, temperature=0)
    engine.generate([{"prompt_token_ids": [5 + n % 900 for n in range(prompt)]}], ask)


if __name__ == "__main__":
    main()
