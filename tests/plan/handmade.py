"""Small engines, clusters and models built by hand, for tests that must not depend on catalogues."""

from linkwise.cluster.types import Accelerator, Cluster, Constants
from linkwise.core.layout import Layout
from linkwise.engine.base import Convention, Defaults, Engine, Memory
from linkwise.model.types import Layer, Model, State, Tensor


class HandEngine(Engine):
    """An engine that accepts everything and cuts a pipeline evenly, low stages first."""

    sources = ()
    version = "1"
    memory = Memory(
        runtime_bytes=0, collective_bytes=0, graph_bytes=0, graphs_in_budget=True, sampler_copies=0,
        activation_hidden=0, activation_intermediate=0,
    )  # fmt: skip

    def __init__(self, name: str = "vllm", *, block: int = 16, batched: int = 8192) -> None:
        self.name = name
        self.convention = Convention(name=name)
        self.defaults = Defaults(
            memory_utilization=0.9, utilization_of="total", max_batched_tokens=batched, max_seqs=256,
            block_tokens=block, block_tokens_mla=block, vocab_pad=1,
        )  # fmt: skip

    def refuses(self, model, layout, *, devices_per_node):
        return None

    def stage_layers(self, layers, pp):
        return tuple(layers // pp + (i < layers % pp) for i in range(pp))

    def command(self, model, layout: Layout, options, *, replicas=1):
        raise NotImplementedError

    def parse(self, arguments, *, model=None, files=None):
        raise NotImplementedError


def cluster(
    nodes: int = 2, devices: int = 8, *, island: int | None = None, nics: int | None = None, nic_Bps: float = 50e9,
    efficiency: float = 1.0, oversubscription: float = 1.0, fabric: str = "rail", pcie_Bps: float = 64e9,
) -> Cluster:  # fmt: skip
    """Nodes of eight 989 TFLOPS devices, one 50 GB/s NIC each, unless said otherwise."""
    accelerator = Accelerator(
        name="hand", label="hand", memory_bytes=80 * 10**9, memory_source="test", nominal_GB=80, hbm_Bps=3.35e12,
        flops={"bf16": 989e12}, scaleup_Bps=450e9, scaleup_kind="nvlink", pcie_Bps=pcie_Bps,
    )  # fmt: skip
    kinds = ("island", "node", "cluster", "device")
    constants = Constants(
        label="test", hbm_efficiency=1.0, flops_efficiency=1.0,
        link_efficiency={"nvlink": efficiency, "pcie": efficiency, "nic": efficiency},
        latency_us={f"{i}.{k}": (10.0, 0.0) for i in ("nccl", "eager", "custom") for k in kinds},
        host_us_per_layer=0.0, step_overhead_us=0.0,
    )  # fmt: skip
    return Cluster(
        name="hand", accelerator=accelerator, nodes=nodes, devices_per_node=devices,
        island_size=devices if island is None else island, nics_per_node=devices if nics is None else nics,
        nic_Bps=nic_Bps, constants=constants, fabric=fabric, oversubscription=oversubscription,
    )  # fmt: skip


def model(layers: int, *states: State, parameters: int = 1000, hidden: int = 64) -> Model:
    """A stack whose every layer keeps these states."""
    return Model(
        name="hand", family="hand", source="test", hidden=hidden, vocab=64, max_len=10**6, heads=8, kv_heads=8,
        head_dim=8, dtype="bfloat16",
        layers=tuple(Layer(index=i, mixer="full", ffn="dense", states=states) for i in range(layers)),
        tensors=(
            Tensor(name="w", role="mlp.up", layer=0, shape=(parameters,), dtype="bfloat16", bytes=2 * parameters),
        ),
    )  # fmt: skip


def kv(heads: int = 8, dim: int = 128, **rest) -> State:
    """Keys and values of `heads` heads."""
    return State(name="kv", per_token=2 * heads * dim, heads=heads, **rest)


LATENT = State(name="latent", per_token=576, heads=1)
