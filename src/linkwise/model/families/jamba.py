"""Jamba: Mamba-1 layers with an attention layer in each period, experts in every other layer."""

from dataclasses import dataclass

from msgspec.structs import replace

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Dense, Experts, Gqa, Part, decoder, norms
from linkwise.model.types import Layer, Split


def read(fields: Fields) -> Draft:
    """A draft from the config. Layer i attends where i mod attn_layer_period is attn_layer_offset; experts likewise."""
    draft, hidden, count = common.start(fields)
    sizes = common.attention_heads(fields, hidden, derived_width=True)
    attention, mamba = Gqa(hidden, *sizes), _mamba(fields, hidden, draft.dtype)
    states.note_recurrent(draft, fields)
    draft.notes.append(
        f"the {mamba.rank + 2 * mamba.state} values a token that ranks sum inside each Mamba layer (vLLM's x_proj) are "
        "not among the calls of a step"
    )
    inner = common.width(fields, "intermediate_size")
    dense = Dense(hidden, inner, name="feed_forward")
    counts = common.expert_counts(fields, "num_experts")
    experts = Experts(hidden, inner, *counts, router="router", name="feed_forward") if counts[0] > 1 else dense
    attends, routes = _every(fields, "attn", count), _every(fields, "expert", count)
    # The implementation of the recurrence, not what it is.
    fields.ignore("use_mamba_kernels", "use_mambapy", "use_associative_scan", "layers_block_type", "layer_types")
    states.exactly(fields, "sliding_window", None)
    around = norms(hidden, "input_layernorm", "pre_ff_layernorm")
    layers = [(attention if i in attends else mamba, experts if i in routes else dense, *around) for i in range(count)]
    return decoder(draft, layers, final="model.final_layernorm")


def _every(fields: Fields, name: str, count: int) -> frozenset[int]:
    period = fields.integer(f"{name}_layer_period", least=1, most=common.MAX_LAYERS)
    offset = fields.integer(f"{name}_layer_offset", most=period - 1)
    return frozenset(range(offset, count, period))


def _mamba(fields: Fields, hidden: int, dtype: str) -> "Mamba1":
    inner = hidden * fields.integer("mamba_expand", least=1, most=1024)
    automatic = fields.raw("mamba_dt_rank", "auto") == "auto"
    return Mamba1(
        hidden,
        inner,
        common.width(fields, "mamba_d_state"),
        -(-hidden // 16) if automatic else common.width(fields, "mamba_dt_rank"),
        fields.integer("mamba_d_conv", least=1, most=1024),
        dtype,
        states.state_dtype(fields, *states.STATE_DTYPES, default=dtype),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias"),
    )


@dataclass(frozen=True)
class Mamba1(Part):
    """Mamba (arXiv 2312.00752) with Jamba's norms of dt, B and C. Every inner channel has a state of its own.

    rank: width that dt is made from. Shapes: in_proj [2·inner, hidden] (x and its gate), x_proj [rank + 2·state,
    inner], dt_proj [inner, rank], A_log [inner, state], out_proj [hidden, inner].
    """

    hidden: int
    inner: int
    state: int
    rank: int
    kernel: int
    dtype: str
    state_dtype: str
    conv_bias: bool = True
    bias: bool = False

    def write(self, site: Site) -> None:
        site = site.at("mamba")
        column, inner = Split.COLUMN, self.inner
        site.linear("in_proj", "mamba.in", 2 * inner, self.hidden, column, units=inner, bias=self.bias)
        name, role = f"{site.name}.conv1d", f"{site.under}mamba.conv"
        site.draft.add(name, role, inner, 1, self.kernel, layer=site.layer, split=column, units=inner)
        if self.conv_bias:
            site.vector("conv1d.bias", "mamba.conv.bias", inner, split=column, units=inner)
        site.linear("x_proj", "mamba.x", self.rank + 2 * self.state, inner, Split.ROW, units=inner)
        site.linear("dt_proj", "mamba.dt", inner, self.rank, column, units=inner, bias=True)
        name, role = f"{site.name}.A_log", f"{site.under}mamba.decay"
        site.draft.add(name, role, inner, self.state, layer=site.layer, split=column, units=inner)
        site.vector("D", "mamba.skip", inner, split=column, units=inner)
        for child, size in (("dt", self.rank), ("b", self.state), ("c", self.state)):
            site.vector(f"{child}_layernorm", "mamba.norm", size)
        site.linear("out_proj", "mamba.out", self.hidden, inner, Split.ROW, units=inner, bias=self.bias)

    def facts(self, layer: Layer) -> Layer:
        return replace(
            layer,
            mixer="mamba",
            states=(
                states.conv_state(self.inner, self.kernel, heads=self.inner, dtype=self.dtype),
                states.recurrent_state(self.inner, 1, self.state, dtype=self.state_dtype),
            ),
            mixer_flops_per_token=states.conv_flops(self.inner, self.kernel)
            + states.ssd_flops(self.inner, 1, self.state),
        )
