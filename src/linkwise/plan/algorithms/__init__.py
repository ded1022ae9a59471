"""Collectives as sends between devices: one file per family of algorithms, and the registry of them all.

Kinds and names are those of plan/collectives.py, which says how many bytes a rank moves; here is who gives
them to whom.
"""

from linkwise.core.errors import InputError
from linkwise.plan.algorithms import direct, gloo, hierarchical, nvls, ring, tree
from linkwise.plan.algorithms.base import SWITCH, Algorithm, Call, Send, Site, site

# kind -> algorithm -> sends. The first of a kind is its default.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "tree": tree.all_reduce,
        "nvls": nvls.all_reduce,
        "nvls_tree": nvls.tree_all_reduce,
        "one_shot": direct.one_shot_all_reduce,
        "two_shot": direct.two_shot_all_reduce,
        "hierarchical": hierarchical.all_reduce,
        "gloo_ring": gloo.all_reduce,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "direct": direct.all_gather,
        "nvls": nvls.all_gather,
        "gloo_ring": gloo.all_gather,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "nvls": nvls.reduce_scatter,
        "gloo_all_reduce": gloo.reduce_scatter,
    },
    "all_to_all": {"direct": direct.all_to_all, "node_limited": hierarchical.all_to_all},
    "send_recv": {"direct": direct.send_recv, "ring": ring.rotate},
    "broadcast": {"ring": ring.broadcast, "gloo_tree": gloo.broadcast},
    "gather": {"direct": direct.gather},
}


def algorithm_of(kind: str, name: str = "") -> Algorithm:
    """An algorithm by kind and name (the kind's default when empty). Raises InputError for an unknown one."""
    variants = ALGORITHMS.get(kind)
    if variants is None:
        raise InputError(f"unknown collective {kind!r}", where="collective", expected=", ".join(ALGORITHMS))
    chosen = variants.get(name) if name else next(iter(variants.values()))
    if chosen is None:
        raise InputError(f"{kind} has no algorithm {name!r}", where="collective", expected=", ".join(variants))
    return chosen


__all__ = ["ALGORITHMS", "SWITCH", "Algorithm", "Call", "Send", "Site", "algorithm_of", "site"]
