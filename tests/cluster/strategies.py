"""Valid clusters of every shape, for property tests."""

from hypothesis import strategies as st

from linkwise.cluster.types import Accelerator, Cluster, Constants

# Words that YAML, of one version or another, takes for something else.
TRICKY = (
    "1e5",
    "0x1",
    "010",
    "null",
    "~",
    "1:30",
    "no",
    "true",
    ".inf",
    "2024-01-01",
    "1_000",
    "<<",
    "=",
    "- a",
    "a: b",
)
TEXT = st.sampled_from(TRICKY) | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)
BPS = st.floats(1.0, 1e14)
SHARE = st.floats(0.01, 1.0)
MICROSECONDS = st.floats(0.0, 1e4)


@st.composite
def constants(draw: st.DrawFn) -> Constants:
    kinds = st.sampled_from(["nvlink4", "xgmi", "pcie", "pcie-host", "nic"])
    calls = st.sampled_from([f"{impl}.{tier}" for impl in ("nccl", "eager") for tier in ("island", "node", "cluster")])
    return Constants(
        label=draw(TEXT),
        hbm_efficiency=draw(SHARE),
        flops_efficiency=draw(SHARE),
        link_efficiency=draw(st.dictionaries(kinds, SHARE)),
        latency_us=draw(st.dictionaries(calls, st.tuples(MICROSECONDS, MICROSECONDS))),
        host_us_per_layer=draw(MICROSECONDS),
        step_overhead_us=draw(MICROSECONDS),
        kernel_us_per_layer=draw(MICROSECONDS),
        sources=draw(st.dictionaries(calls, TEXT)),
    )


@st.composite
def clusters(draw: st.DrawFn, max_nodes: int = 4, max_per_node: int = 8) -> Cluster:
    nodes, per_node = draw(st.integers(1, max_nodes)), draw(st.integers(1, max_per_node))
    parts = [size for size in range(1, per_node + 1) if per_node % size == 0]
    island = draw(st.sampled_from([*parts, *(per_node * n for n in range(1, nodes + 1))]))
    spans_all = island == nodes * per_node
    nics = draw(st.integers(0 if spans_all or nodes == 1 else 1, per_node + 2))
    accelerator = Accelerator(
        name=draw(TEXT.filter(bool)),
        label=draw(TEXT),
        memory_bytes=draw(st.integers(1, 2**40)),
        memory_source=draw(TEXT),
        nominal_GB=draw(st.integers(0, 1000)),
        hbm_Bps=draw(BPS),
        flops={"bf16": draw(BPS)},
        scaleup_Bps=draw(BPS) if island > 1 else 0.0,
        scaleup_kind=draw(st.sampled_from(["nvlink4", "xgmi"])),
        scaleup_mesh=draw(st.booleans()),
        pcie_Bps=draw(BPS),
        p2p=draw(st.booleans()),
        source=draw(TEXT),
        note=draw(TEXT),
    )
    return Cluster(
        name=draw(TEXT),
        accelerator=accelerator,
        nodes=nodes,
        devices_per_node=per_node,
        island_size=island,
        nics_per_node=nics,
        nic_Bps=draw(BPS) if nics else 0.0,
        constants=draw(constants()),
        fabric=draw(st.sampled_from(["rail", "fat-tree"])) if nics else "none",
        oversubscription=draw(st.floats(1.0, 8.0)),
        host_memory_bytes=draw(st.integers(0, 2**42)),
        numa_per_node=draw(st.integers(1, per_node)),
        source=draw(TEXT),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
    )
