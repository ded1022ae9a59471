"""Faults of public threads, each from evidence that was written for this test in the formats its tools print.

Classes and places are those the thread established (its maintainers, a merged fix, a measurement); where it
established none, the diagnosis must not either. Nobody but whom the thread names may be blamed.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.types import Findings
from linkwise.trace.gather import gather

CASES = Path(__file__).parent / "cases"


class Expected(NamedTuple):
    """classes: any of these is right, first in the list of findings. ranks: that may be blamed and, if decided, are.

    words: that the finding's summary must hold. decided False: an abstention that blames nobody.
    """

    url: str
    classes: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    cause: str = ""
    decided: bool = True
    reporter: str = ""


THREADS = {
    # One rank has no requests left, starts dummy batches and gets out of step: it, and not the busy one that hangs.
    "vllm28224": Expected(
        "https://github.com/vllm-project/vllm/issues/28224", ("skipped_collective",), (1,), ("idle DP rank",),
        "software", reporter="rank 0",
    ),
    # Ranks sample for themselves and diverge: one has a request less, so that its tensor is smaller.
    "sgl33549": Expected(
        "https://github.com/sgl-project/sglang/issues/33549", ("size_mismatch", "control_divergence"), (3,), (),
        "software",
    ),
    # Two explanations compete in the thread: NCCL's proxy queue, and a decision before the call.
    "sgl33289": Expected(
        "https://github.com/sgl-project/sglang/issues/33289", ("undecided",), (), ("proxy", "decisions"),
        decided=False,
    ),
    # The scheduler's loop breaks at points that differ by rank; no rank is the wrong one.
    "sgl22607c": Expected(
        "https://github.com/sgl-project/sglang/issues/22607", ("control_divergence",), (),
        ("rank 0 in all_reduce", "ranks 1 to 3 in broadcast"), "software", reporter="rank 0",
    ),
    # All sixteen ranks stand in the same call; nothing is established.
    "sgl34582": Expected(
        "https://github.com/sgl-project/sglang/issues/34582", ("hang",), (), ("no rank can be named",), decided=False
    ),
    # Measured with and without binding: the host's placement, whichever rank is slow this time.
    "srt332": Expected(
        "https://github.com/NVIDIA/srt-slurm/issues/332", ("rotating_straggler",), (), (), "placement",
        reporter="all ranks",
    ),
    # The node with the long all-reduce is the victim; the one with long matrix products is starved of cores.
    "vllm25818": Expected(
        "https://github.com/vllm-project/vllm/issues/25818", ("late_rank", "host_contention"), (1,), (), "contention",
        reporter="rank 0",
    ),
    "vllm49013": Expected(
        "https://github.com/vllm-project/vllm/issues/49919", ("host_contention",), (), ("container CPU quota",),
        "contention",
    ),
    # GEN sleeps between polls and posts no receives; CTX only fills up.
    "trt12640": Expected(
        "https://github.com/NVIDIA/TensorRT-LLM/issues/12640", ("handoff_stalled",), (), ("decode side", "receives")
    ),
    # Transfers that never end hold the decode side's slots, while decode looks idle.
    "sgl31800": Expected(
        "https://github.com/sgl-project/sglang/issues/31800", ("handoff_stalled", "handoff_allocation"), (),
        ("decode side",), reporter="decode",
    ),
    # One entry for each of thousands of fragments: the allocation, not the link.
    "sgl5450": Expected(
        "https://github.com/sgl-project/sglang/issues/5450", ("handoff_allocation",), (), ("not the link",)
    ),
    # Prefill's transfer worker polls one request for ever.
    "sgl33920": Expected(
        "https://github.com/sgl-project/sglang/issues/33920", ("handoff_stalled",), (), ("prefill side", "worker")
    ),
    "sgl10110": Expected(
        "https://github.com/sgl-project/sglang/issues/10110", ("undecided",), (), ("Bootstrapping",), decided=False,
        reporter="prefill rank 2",
    ),
    # The two ranks that RAS lists are ahead of the thirty it does not list.
    "nccl1911": Expected(
        "https://github.com/NVIDIA/nccl/issues/1911", ("undecided",), (), ("30 ranks", "ahead", "12, 13"),
        decided=False,
    ),
    "nccl1730": Expected(
        "https://github.com/NVIDIA/nccl/issues/1730", ("hang",), (), ("enqueued everywhere, not completed",),
        decided=False, reporter="rank 118",
    ),
    # The NIC path of two GPUs is suspected, and not verified.
    "nccl820": Expected("https://github.com/NVIDIA/nccl/issues/820", ("slow_link", "undecided"), decided=False),
    "nccl426": Expected(
        "https://github.com/NVIDIA/nccl/issues/426", ("network_error",), (), ("GID",), "configuration"
    ),
    "ncclt252": Expected(
        "https://github.com/NVIDIA/nccl-tests/issues/252", ("network_error",), (), ("PCIe", "ACS"), "configuration"
    ),
    # Ranks issue different sequences; which is the wrong one was not read in the thread.
    "nccl296": Expected("https://github.com/NVIDIA/nccl/issues/296", ("op_mismatch",), decided=False),
    # The rank that has the lock is the one that does not wait.
    "inf1360": Expected(
        "https://github.com/SemiAnalysisAI/InferenceX/issues/1360", ("stopped_rank",), (0,), ("lock",), "host"
    ),
    # Only the peer that waits writes a dump.
    "pt196968": Expected(
        "https://github.com/pytorch/pytorch/issues/196968", ("dead_rank", "stopped_rank"), (1,), ("rank 1",),
        reporter="rank 0",
    ),
    "nccl2079": Expected(
        "https://github.com/NVIDIA/nccl/issues/2079", ("transport_unexpected", "network_error"), (), ("PCIe", "ACS"),
        "configuration",
    ),
}  # fmt: skip


def answer(name: str) -> Findings:
    found = diagnose(gather([CASES / name]))
    assert not found.unusable, f"evidence of {name} is not read"
    return found


@pytest.mark.parametrize("name", sorted(THREADS))
def test_the_thread_and_the_diagnosis_agree(name: str) -> None:
    expected = THREADS[name]
    found = answer(name)
    right = [one for one in found.findings if one.class_ in expected.classes]
    assert right, f"{name}: {[one.class_ for one in found.findings]}, see {expected.url}"
    one = right[0]
    text = f"{one.summary} {one.next}"
    assert all(word in text for word in expected.words), text
    assert one.decided == expected.decided
    assert one.original_fault.ranks == expected.ranks
    assert expected.reporter in one.first_reporter
    if expected.cause:
        assert one.cause == expected.cause
    assert one.evidence
    if not expected.decided:
        assert one.would_decide


@pytest.mark.parametrize("name", sorted(THREADS))
def test_nobody_else_is_blamed(name: str) -> None:
    expected = THREADS[name]
    blamed = {rank for one in answer(name).findings if one.decided for rank in one.original_fault.ranks}
    assert blamed <= set(expected.ranks), f"see {expected.url}"
    if not expected.decided:
        assert not any(one.decided and one.class_ != "monitor_disagrees" for one in answer(name).findings)


def test_a_heartbeat_is_no_hang() -> None:
    """https://github.com/vllm-project/vllm/issues/43420: its reporter took it back, idle engines print the same."""
    found = answer("vllm43420")
    assert found.findings == ()
    assert found.exit_code == 0


def test_every_case_has_evidence() -> None:
    assert {folder.name for folder in CASES.iterdir()} == {*THREADS, "vllm43420"}
