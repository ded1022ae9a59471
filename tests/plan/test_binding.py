"""Placements in launchers' words. Expected text: written by hand from the formats' manuals (Open MPI's rankfile,
Slurm's SLURM_HOSTFILE, torchrun's node ranks, NCCL_IB_HCA)."""

import pytest
from msgspec.structs import replace
from tests.plan.handmade import cluster
from tests.plan.test_placement import BRIDGED, MiB, ops

from linkwise.cluster.detail import NodeDetail
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.plan.binding import KINDS, text
from linkwise.plan.placement import place


def placed(layout: Layout, where, **S: int):
    return place(layout, where, {"decode": ops(layout, **S)}, {"decode": 1.0}, compare=False)


def test_devices_in_rank_order_where_bridges_join_every_other_card():
    found = placed(Layout(tp=2, pp=2), BRIDGED, tp=4 * MiB, pp=MiB)
    assert text(found, "cuda") == "node0: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,2,1,3\n"


def test_two_nodes_for_every_launcher():
    where = replace(cluster(2, 2), numa_per_node=2)
    found = placed(Layout(tp=2, pp=2), where, tp=MiB, pp=MiB)
    hosts = ("a1", "b2")
    assert text(found, "rankfile", 0, hosts) == (
        "rank 0=a1 slot=0:*\nrank 1=a1 slot=1:*\nrank 2=b2 slot=0:*\nrank 3=b2 slot=1:*\n"
    )
    assert text(found, "slurm", 0, hosts) == "a1\na1\nb2\nb2\n"
    assert text(found, "torchrun", 0, hosts) == (
        "a1: CUDA_VISIBLE_DEVICES=0,1 torchrun --nnodes=2 --nproc-per-node=2 --node-rank=0\n"
        "b2: CUDA_VISIBLE_DEVICES=0,1 torchrun --nnodes=2 --nproc-per-node=2 --node-rank=1\n"
    )
    assert text(found, "nics", 0, hosts).splitlines()[1] == "rank 1: a1 device 1 NICs 1"


def test_nics_have_names_where_a_topology_file_gave_them():
    detail = NodeDetail(nic_names=("mlx5_0", "mlx5_1"))
    where = replace(cluster(2, 2), detail=detail)
    found = placed(Layout(tp=2, pp=2), where, tp=MiB, pp=MiB)
    assert text(found, "nics").splitlines()[3] == "rank 3: node1 device 1 NCCL_IB_HCA==mlx5_1"


def test_torchrun_is_refused_an_order_it_cannot_express():
    # The heavy axis has stride 2, so ranks 0 and 2 share a node: rank numbers are not node by node.
    layout = Layout(cp=2, tp=2)
    found = placed(layout, cluster(2, 2), cp=4 * MiB, tp=MiB)
    assert {d // 2 for d in found.rank_grid[0][::2]} in ({0}, {1})
    with pytest.raises(InputError, match="not one after the other"):
        text(found, "torchrun")
    assert text(found, "slurm").splitlines() in (["node0", "node1"] * 2, ["node1", "node0"] * 2)


def test_each_replica_has_its_own_file():
    found = placed(Layout(tp=2), cluster(1, 4), tp=MiB)
    assert text(found, "cuda", 1).endswith("CUDA_VISIBLE_DEVICES=2,3\n")


@pytest.mark.parametrize(
    ("kind", "replica", "hosts", "says"),
    [
        ("pdf", 0, (), "one of cuda, rankfile"),
        ("cuda", 2, (), "0..1"),
        ("cuda", -1, (), "0..1"),
        ("slurm", 0, ("a",), "at least 2"),
        ("rankfile", 0, ("a b", "c"), "host names"),
        ("rankfile", 0, ("a\nrank 9=evil slot=0", "c"), "host names"),
        ("slurm", 0, ("", "c"), "host names"),
    ],
)
def test_what_cannot_be_written_is_refused(kind, replica, hosts, says):
    found = placed(Layout(tp=2, pp=2), cluster(4, 2), tp=MiB, pp=MiB)
    with pytest.raises(InputError, match=says):
        text(found, kind, replica, hosts)


def test_a_cluster_without_nics_has_no_nic_map():
    found = placed(Layout(tp=2), replace(cluster(1, 2), nics_per_node=0, nic_Bps=0.0, fabric="none"), tp=MiB)
    with pytest.raises(InputError, match="no NICs"):
        text(found, "nics")
    assert len(KINDS) == 5
