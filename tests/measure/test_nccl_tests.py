"""What nccl-tests prints, in its versions' forms. The texts are ours, in the program's format; figures are made up."""

import pytest
from tests.plan.handmade import cluster

from linkwise.cluster import presets
from linkwise.cluster.identify import measured_on
from linkwise.core.errors import InputError
from linkwise.measure.nccl_tests import parse, samples
from linkwise.measure.points import calibrate

# ruff: noqa: E501 - lines as the program prints them
HEAD = """# nThread 1 nGpus 4 minBytes 1048576 maxBytes 67108864 step: 8(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on     nodea device  0 [0000:0f:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4711 on     nodea device  1 [0000:15:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   4711 on     nodea device  2 [0000:51:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   4711 on     nodea device  3 [0000:54:00] NVIDIA H100 80GB HBM3
NCCL version 2.27.3+cuda12.9
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """     1048576        262144     float     sum      -1    18.37   57.08   85.62      0    18.10   57.93   86.90      0
     8388608       2097152     float     sum      -1    48.95  171.37  257.05      0    48.60  172.61  258.91      0
    67108864      16777216     float     sum      -1    293.6  228.57  342.86      0    293.0  229.04  343.56      0
"""
GATHER = """   134217728       8388608     float    none      -1    400.0  335.54  251.66      0    400.0  335.54  251.66      0
"""
TAIL = """# Out of bounds values : 0 OK
# Avg bus bandwidth    : 229.15
#
"""


def test_sizes_times_and_devices() -> None:
    run = parse(HEAD + ROWS + TAIL, where="run.txt")
    assert run.kind == "all_reduce", "its bus bandwidth is 1.5 times the other: 2(n-1)/n of four ranks"
    assert run.devices == (("nodea", 0), ("nodea", 1), ("nodea", 2), ("nodea", 3))
    assert run.version == "2.27.3+cuda12.9"
    assert [(row.S_bytes, row.out_of_place_s, row.in_place_s) for row in run.rows] == [
        (1048576, pytest.approx(18.37e-6), pytest.approx(18.10e-6)),
        (8388608, pytest.approx(48.95e-6), pytest.approx(48.60e-6)),
        (67108864, pytest.approx(293.6e-6), pytest.approx(293.0e-6)),
    ]
    assert run.rows[0].dtype == "float"
    assert run.rows[0].redop == "sum"


def test_a_calibration_from_it() -> None:
    """Ring of four: 1.5 S over the bus. 293.6 us of 64 MiB is 343 GB/s of 450 at the most: between 0.76 and 0.80."""
    run = parse(HEAD + ROWS + TAIL, where="run.txt")
    found = samples(run, cluster(1, 4))
    assert len(found) == 6
    assert {(s.kind, s.tier, s.ranks, s.nodes) for s in found} == {("all_reduce", "island", 4, 1)}
    tier = calibrate(cluster(1, 4), found, library="nccl 2.27.3", source="nccl-tests", ranks=4).tiers["island"]
    assert 0.76 < tier.efficiency.value < 0.82
    assert 10 < tier.base_us.value < 18


def test_older_forms_and_launcher_tags() -> None:
    """No Group in rank lines, an error column, rows without redop and root, `0: ` before each line, N/A in place."""
    text = """ 0: # all_gather_perf of old
 0: #   Rank  0 Pid  19018 on  nodea device  0 [0x07] Tesla
 0: #   Rank  1 Pid  19019 on  nodeb device  0 [0x07] Tesla
 0: #       size         count      type   redop    root     time   algbw   busbw  error     time   algbw   busbw  error
 0:         1024           128     float                  21.50    0.05    0.02  0e+00    21.10    0.05    0.02  0e+00
 0:     16777216       2097152     float    none      -1  549.8   30.51   15.26  5e-07      N/A     N/A     N/A    N/A
"""
    run = parse(text, where="run.txt")
    assert run.kind == "all_gather"
    assert run.devices == (("nodea", 0), ("nodeb", 0))
    assert run.rows[0].redop == ""
    assert run.rows[1].in_place_s is None
    assert [(s.S_bytes, s.group) for s in samples(run, cluster(2, 4))] == [
        (1024, "out of place"), (1024, "in place"), (16777216, "out of place"),
    ]  # fmt: skip
    assert {s.tier for s in samples(run, cluster(2, 4))} == {"cluster"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table of times"),
        (HEAD, "no table of times"),
        (HEAD + ROWS.replace("     0    18.10", "     3    18.10"), "line 13: 3 wrong values"),
        (HEAD + ROWS + "# Out of bounds values : 12 FAILED\n", "line 16: # Out of bounds values : 12 FAILED"),
        (
            HEAD + ROWS + "nodea: Test NCCL failure all_reduce.cu:44 'unhandled cuda error'\n",
            "line 16: nodea: Test NCCL",
        ),
        (HEAD + ROWS[:150], "line 14: a cut row, 3 words"),
        (HEAD + ROWS[:-8] + "\n", "line 15: a cut row, 12 words"),
        (HEAD + ROWS[:-16] + "\n", "line 15: a cut row, 11 words"),
        (HEAD + ROWS.replace("48.95", "", 1), "line 14: a cut row, 12 words"),
        (HEAD + ROWS.replace("18.37", "18.37 9"), "line 13: 14 words"),
        (HEAD + ROWS.replace("2097152", "2097151"), "line 14: 2097151 elements of float in 8388608 bytes"),
        (HEAD + ROWS.replace("float", "half", 1), "line 13: 262144 elements of half in 1048576 bytes"),
        (HEAD + ROWS + TAIL + HEAD + GATHER, "line 19: a second run begins"),
        (HEAD + ROWS + HEAD.split("\n", 1)[1] + GATHER, "line 25: a second run begins"),  # no `# nThread` line
        (HEAD + ROWS + ROWS, "line 16: another test begins: sizes begin again, 1048576 after 67108864"),
        (HEAD + ROWS + ROWS.replace("float", "int32") + ROWS, "line 19: another test begins: float sum begins again"),
        (HEAD + ROWS + GATHER, "line 16: another test begins: busbw / algbw is 0.75 after 1.5"),
        (HEAD + ROWS + GATHER.replace("none", " sum"), "line 16: another test begins: busbw / algbw is 0.75"),
        (HEAD.replace("Rank  3 Group  0", "Rank  3 Group  1") + ROWS, "ranks of 2 groups"),
        (HEAD + ROWS.replace("18.37", "-1.00"), "line 13: time '-1.00'"),
        (HEAD.replace("Rank  3", "Rank  2") + ROWS, "rank 2 is on two devices"),
        (HEAD.replace("Rank  3", "Rank  5") + ROWS, "ranks 0, 1, 2, 5"),
        ("# all_reduce_perf\n# all_gather_perf\n" + HEAD + ROWS, "several tests: allgather, allreduce"),
        ("# hypercube_perf\n" + HEAD + ROWS, "hypercube_perf"),
    ],
)
def test_what_is_no_good_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, where="run.txt")
    assert "run.txt" in str(caught.value)
    assert message in str(caught.value)


def test_a_kind_that_is_not_said_must_be_given() -> None:
    """Of two ranks every ratio is 1 or one half: an all-reduce looks like a broadcast."""
    lines = [line for line in HEAD.splitlines() if "Rank  2" not in line and "Rank  3" not in line]
    run = parse("\n".join(lines) + "\n" + ROWS, where="run.txt")
    assert run.kind == ""
    with pytest.raises(InputError, match="does not say which collective"):
        samples(run, cluster(1, 4))
    assert samples(run, cluster(1, 4), kind="all_reduce")[0].kind == "all_reduce"
    with pytest.raises(InputError, match="--kind"):
        samples(run, cluster(1, 4), kind="all_shout")


def test_ranks_that_the_cluster_does_not_have_are_refused() -> None:
    run = parse(HEAD + ROWS, where="run.txt")
    with pytest.raises(InputError, match="devices up to 3"):
        samples(run, cluster(1, 2))
    with pytest.raises(InputError, match="but the file is a run of all_reduce"):
        samples(run, cluster(1, 4), kind="all_gather")


def test_several_types_and_operations_of_one_run_are_one_run() -> None:
    """`-d all -o all` goes through all sizes for each."""
    text = HEAD + ROWS + ROWS.replace("sum", "max") + ROWS.replace("float", "int32")
    assert len(parse(text, where="run.txt").rows) == 9


def test_colours_and_launchers_that_set_no_blank() -> None:
    plain = parse(HEAD + ROWS + TAIL, where="run.txt")
    for before, after in (
        ("[1,0]<stdout>:", ""), ("[1,0]<stdout>: ", ""), ("[prterun-a-1@1,0]<stdout>:", ""), ("[0]:", ""), ("0: ", ""),
        ("\x1b[32m", "\x1b[0m"), ("[1,0]<stdout>:\x1b[1;31m", "\x1b[m"), ("\x1b]0;title\x07", "\r"),
    ):  # fmt: skip
        text = "\n".join(f"{before}{line}{after}" for line in (HEAD + ROWS + TAIL).splitlines())
        assert parse(text, where="run.txt") == plain, before


def test_lines_of_the_library_between_the_rows_are_none() -> None:
    text = HEAD + ROWS.replace("\n", "\nnodea:4711:4711 [0] NCCL INFO comm 0x5 rank 0 nranks 4\n") + TAIL
    assert len(parse(text, where="run.txt").rows) == 3


def test_tasks_that_see_one_device_each_are_told_apart_by_their_addresses() -> None:
    text = HEAD
    for device in "123":
        text = text.replace(f"device  {device}", "device  0")
    run = parse(text + ROWS, where="run.txt")
    assert run.devices == (("nodea", 0), ("nodea", 1), ("nodea", 2), ("nodea", 3))
    assert "numbered in order of their PCI addresses" in run.notes[0]
    swapped = text.replace("0000:0f:00", "0000:99:00")
    assert [device for _, device in parse(swapped + ROWS, where="run.txt").devices] == [3, 0, 1, 2]
    assert parse(HEAD + ROWS, where="run.txt").notes == ()
    with pytest.raises(InputError, match="each rank on a device of its own"):
        samples(parse(text.replace("0000:15:00", "0000:0f:00") + ROWS, where="run.txt"), cluster(1, 4))


def test_a_run_on_other_gpus_is_refused() -> None:
    run = parse(HEAD + ROWS + TAIL, where="run.txt")
    assert run.products == ("NVIDIA H100 80GB HBM3",)
    assert measured_on(run.products, presets.accelerator("h100-sxm"), "run.txt") == ()
    with pytest.raises(InputError, match="run.txt: measured on NVIDIA H100 80GB HBM3.*b200-sxm"):
        measured_on(run.products, presets.accelerator("b200-sxm"), "run.txt")


def test_a_name_the_catalogue_lacks_is_said_and_two_kinds_are_refused() -> None:
    device = presets.accelerator("b200-sxm")
    assert "NVIDIA Q9, which is not in the catalogue" in measured_on(["NVIDIA Q9"] * 8, device, "f")[0]
    assert measured_on([], device, "f") == ()  # versions that print no name
    with pytest.raises(InputError, match="different GPUs"):
        measured_on(["NVIDIA B200", "NVIDIA H100 80GB HBM3"], device, "f")
