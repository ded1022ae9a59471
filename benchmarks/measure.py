"""Predicted against measured communication of a plan's step, once this machine is calibrated: two ranks over gloo.

`linkwise measure --on` calibrates, `linkwise plan --calibration` plans with it, `linkwise measure --plan` runs a plan's
own ops. What is printed is of this machine's loopback, which other work disturbs; nothing is asked of it.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 8192, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PLAN = "plan model --on 2xh100-sxm --engine linkwise --tp 2 --isl 256 --osl 64 --concurrency 64"


def main() -> int:
    if importlib.util.find_spec("torch") is None:
        print("linkwise measure: not run, PyTorch is not installed (pip install linkwise[run])")
        return 0
    linkwise = [sys.executable, "-m", "linkwise"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        (Path(folder) / "model").mkdir()
        (Path(folder) / "model" / "config.json").write_text(json.dumps(MODEL))

        def run(words: str) -> str:
            done = subprocess.run(
                [*linkwise, *words.split()], cwd=folder, check=True, stdout=subprocess.PIPE, stderr=None, text=True
            )
            return done.stdout

        start = time.perf_counter()
        run("measure --on 2xh100-sxm --ranks 2 --sizes 1KiB:16MiB -o c.yaml")
        print(f"linkwise measure, 2 ranks, 7 kinds x 8 sizes   {time.perf_counter() - start:6.1f} s")
        run(f"{PLAN} --calibration c.yaml -o plan.json")
        for step in ("decode", "prefill"):
            found = json.loads(run(f"measure --plan plan.json --step {step} --json"))
            same = "as planned" if all(op["as_planned"] for op in found["ops"]) else "NOT AS PLANNED"
            print(
                f"rehearsed {step:<8} step of {len(found['ops'])} ops, bytes {same}: predicted"
                f" {found['predicted_s'] * 1e3:7.2f} ms, measured {found['measured_s'] * 1e3:7.2f} ms"
                f" ({found['measured_s'] / found['predicted_s']:.2f} x)"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
