"""What feed-forward layers communicate: dense MLPs, experts, and the layer that drafts tokens."""

from linkwise.core.dtypes import BITS
from linkwise.core.quantity import Given, Num, ceil_div, named
from linkwise.engine.base import Convention, Options
from linkwise.model.types import Model, Moe
from linkwise.plan.collectives import distinct_nodes
from linkwise.plan.writer import Writer, axis_of, filled_up, reduce


def dense_ops(write: Writer, repeat: int, row: Num, tokens: Num, prefix: str = "") -> None:
    layout, over = write.layout, write.convention.mlp_over
    if over == "stage" and write.unlike > 1:
        # Tokens of all attention replicas are gathered, the MLP is split over the whole stage, the sums scattered back.
        gathered, size = row * (layout.stage_size // layout.tp), layout.stage_size
        write.add("all_gather", f"{prefix}mlp.in", "stage", size, gathered, tokens, repeat)
        write.add("reduce_scatter", f"{prefix}mlp.out", "stage", size, gathered, tokens, repeat)
        return
    size, axis = axis_of(layout, over)
    reduce(write, f"{prefix}mlp.out", axis, size, row, tokens, repeat)


def expert_ops(
    write: Writer, model: Model, repeat: int, row: Num, tokens: Num, options: Options, given: Given, prefix: str = ""
) -> None:
    """Tokens to their experts and back. Tokens already replicated over the stage need one all-reduce only."""
    layout, convention, moe = write.layout, write.convention, model.moe
    if moe is None or not repeat:
        return
    differ = write.unlike > 1
    dispatch, combine, out, restore, shared = (
        f"{prefix}moe.{word}" for word in ("dispatch", "combine", "out", "restore", "shared")
    )
    if convention.moe_replicated and not differ:
        size, axis = axis_of(layout, "stage" if layout.stage_size > layout.tp else "tp")
        reduce(write, out, axis, size, row, tokens, repeat)
        return
    exchange = options.moe_exchange or convention.moe_exchange
    if layout.ep == 1 and layout.cp == 1 and differ:
        # Experts are sliced over the whole stage: every attention replica's tokens go to all, the slices' sums come
        # back to their replica, and its tensor ranks add theirs (shared experts' included).
        gathered = named("gathered_rows", row * layout.dp_attn, "B")
        write.add("all_gather", dispatch, "dp_attn", layout.dp_attn, gathered, tokens, repeat, after="router")
        write.add("reduce_scatter", combine, "dp_attn", layout.dp_attn, gathered, tokens, repeat, after="experts")
        write.add("all_reduce", out, "tp", layout.tp, row, tokens, repeat, after=combine)
        return
    if moe.shared_experts and convention.shared_over == "tp":
        write.add("all_reduce", shared, "tp", layout.tp, row, tokens, repeat, after="shared experts")
    # Each tensor rank of an attention replica handles its own rows, filled up to the same number on each.
    whole = row
    if layout.tp > 1:
        width = given("row_bytes", model.hidden * BITS[model.dtype] // 8, "B/token", f"{model.name}: hidden states")
        whole = named("filled_rows", filled_up(tokens, layout.tp) * width, "B")
    if exchange == "all_gather" or (differ and layout.moe_tp > 1):
        # Every rank sees every token of the stage and keeps what its experts (or its slice of them) contribute.
        gathered, size = named("gathered_rows", whole * (layout.stage_size // layout.tp), "B"), layout.stage_size
        write.add("all_gather", dispatch, "stage", size, gathered, tokens, repeat, after="router")
        write.add("reduce_scatter", combine, "stage", size, gathered, tokens, repeat, after="experts")
        write.add("all_gather", restore, "tp", layout.tp, whole, tokens, repeat, after=combine)
        return
    # Direct exchange. Tensor ranks of one attention replica hold the same tokens and each sends its share of them.
    own = ceil_div(tokens, layout.tp) if layout.tp > 1 and convention.moe_replicated else tokens
    own = named("tokens_to_send", own, "tokens")
    k = given("top_k", moe.top_k, "experts/token", f"{model.name}: experts per token")
    share = None
    if exchange == "all_to_all_node" and write.place.nodes > 1:
        once = first_hop(moe, write.place.nodes, layout.ep)
        share = given("first_hop", once, "", "a copy to each other node and each rank of the own, over one per expert")
    if convention.moe_counts:
        counts = given("expert_counts", 8 * moe.experts, "B", "rows for each expert, int64")
        write.add(
            "all_to_all", f"{prefix}moe.counts", "ep", layout.ep, counts, own, repeat, after="router", dtype="int64"
        )
    for role, each, dtype, after in (
        (dispatch, _copy_bytes(model, moe, convention, given), convention.dispatch_dtype, "router"),
        (
            combine,
            _values(model, moe, convention.combine_dtype, "combine_bytes", given),
            convention.combine_dtype,
            "experts",
        ),
    ):
        S = named(f"{role}.S", own * k * each, "B")
        sizes = _skewed(S, layout.ep, options.moe_skew)
        write.add(
            "all_to_all",
            role,
            "ep",
            layout.ep,
            S,
            own,
            repeat,
            after=after,
            useful_share=share,
            sizes=sizes,
            dtype="" if dtype == "activation" else dtype,
        )
    write.add("all_reduce", out, "moe_tp", layout.moe_tp, row, tokens, repeat, after="experts")
    if convention.moe_replicated:
        write.add("all_gather", restore, "tp", layout.tp, whole, tokens, repeat, after=combine)


def _values(model: Model, moe: Moe, dtype: str, name: str, given: Given) -> Num:
    width = given("expert_hidden", moe.hidden, "elements", f"{model.name}: width an expert takes")
    kind = model.dtype if dtype == "activation" else dtype
    return width * given(name, BITS[kind] // 8, "B/element", kind)


def _copy_bytes(model: Model, moe: Moe, convention: Convention, given: Given) -> Num:
    """Bytes of one dispatched copy of a token: values, scales, header."""
    values = _values(model, moe, convention.dispatch_dtype, "dispatch_bytes", given)
    beside = convention.dispatch_header_bytes
    if convention.dispatch_scale_block:
        beside += 4 * -(-moe.hidden // convention.dispatch_scale_block)
    return values + given("scales_and_header", beside, "B", "what a dispatched copy carries") if beside else values


def draft_ops(write: Writer, model: Model, row: Num, tokens: Num, options: Options, given: Given) -> None:
    """The MTP layer, run once for each token drawn, has the reductions of one decoder layer of the last kind."""
    times_run = options.mtp_tokens
    reduce(write, "mtp.attn.out", "tp", write.layout.tp, row, tokens, times_run)
    if model.layers[-1].ffn == "moe":
        expert_ops(write, model, times_run, row, tokens, options, given, prefix="mtp.")
    else:
        dense_ops(write, times_run, row, tokens, prefix="mtp.")


def _skewed(S: Num, ep: int, skew: float) -> tuple[Num, ...]:
    """Bytes bound for each expert rank when the busiest takes `skew` times the mean; empty when uniform."""
    if skew == 1.0 or ep == 1:
        return ()
    mean = S / ep
    rest = (S - mean * skew) / (ep - 1)
    return (mean * skew, *(rest for _ in range(ep - 1)))


def dedup_share(moe: Moe, nodes: int) -> float:
    """Share of an exchange left when a token crosses to each node once: expected nodes over top_k."""
    if nodes <= 1:
        return 1.0
    return min(1.0, distinct_nodes(nodes, moe.experts, moe.top_k, moe.groups, moe.top_groups) / moe.top_k)


def rank_share(moe: Moe, nodes: int, ranks: int) -> float:
    """Share of an exchange left when a token goes to each rank once: expected distinct ranks over top_k."""
    if ranks > moe.experts:
        return 1.0
    experts = moe.experts
    if moe.groups > 1 and moe.groups % nodes == 0 and moe.top_groups and ranks % moe.groups == 0:
        # Group-limited routing draws from the experts of the groups it allows.
        ranks, experts = ranks * moe.top_groups // moe.groups, experts * moe.top_groups // moe.groups
    return min(1.0, distinct_nodes(ranks, experts, moe.top_k) / moe.top_k)


def first_hop(moe: Moe, nodes: int, ranks: int) -> float:
    """What a rank sends itself under node de-duplication, over a copy for each expert on another rank.

    One copy to each other node, one to each other rank of its own node; what arrives is forwarded there.
    """
    if nodes <= 1 or ranks <= 1:
        return 1.0
    away = dedup_share(moe, nodes) * (nodes - 1) / nodes
    here = rank_share(moe, nodes, ranks) * (ranks // nodes - 1) / ranks
    return (away + here) * ranks / (ranks - 1)
