"""Mamba-2 (arXiv 2405.21060) as a part of a layer, whatever its family calls the fields."""

from dataclasses import KW_ONLY, dataclass

from msgspec.structs import replace

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Part
from linkwise.model.types import Layer, Split


@dataclass(frozen=True)
class Mamba2(Part):
    """in_proj makes gate, convolved x/B/C and dt; B and C are shared by the heads of a group.

    state: width of a head's state. dtype, state_dtype: of the convolution's last inputs and of the recurrent state.
    normed: a norm over the gated output. Beside an attention it is the layer's second mixer.
    Shapes, with inner = heads·head_dim and channels = inner + 2·groups·state: in_proj [inner + channels + heads,
    hidden], conv1d [channels, 1, kernel], out_proj [hidden, inner].
    """

    hidden: int
    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    _: KW_ONLY
    dtype: str
    state_dtype: str
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    normed: bool = True
    name: str = "mamba"

    @classmethod
    def of(
        cls,
        fields: Fields,
        hidden: int,
        dtype: str,
        *,
        inner: int = 0,
        out_bias: bool = False,
        normed: bool = True,
    ) -> "Mamba2":
        """From the field names of Granite 4 and Falcon-H1. inner: the inner width, mamba_expand·hidden unless given;
        `mamba_d_head` may be "auto"."""
        heads = fields.integer("mamba_n_heads", least=1, most=common.MAX_HEADS)
        inner = inner or hidden * fields.integer("mamba_expand", default=2, least=1, most=1024)
        automatic = fields.raw("mamba_d_head", "auto") == "auto"
        head_dim = inner // heads if automatic else common.width(fields, "mamba_d_head")
        if heads * head_dim != inner:
            raise NotUnderstood(
                f"mamba_n_heads {heads} of {head_dim}", where=fields.where, expected=f"an inner width of {inner}"
            )
        fields.ignore("mamba_expand", "mamba_chunk_size")  # the second is a kernel's tile
        return cls(
            hidden,
            heads,
            head_dim,
            common.width(fields, "mamba_d_state"),
            fields.integer("mamba_n_groups", default=1, least=1, most=heads),
            fields.integer("mamba_d_conv", default=4, least=1, most=1024),
            dtype=dtype,
            state_dtype=states.state_dtype(fields, *states.STATE_DTYPES, default=dtype),
            conv_bias=fields.flag("mamba_conv_bias", default=True),
            bias=fields.flag("mamba_proj_bias"),
            out_bias=out_bias,
            normed=normed,
        )

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """What is convolved: x, and B and C of each group."""
        return self.inner + 2 * self.groups * self.state

    def write(self, site: Site) -> None:
        site = site.at(self.name)
        column, heads = Split.COLUMN, self.heads
        outputs = self.inner + self.channels + heads
        site.linear("in_proj", "mamba.in", outputs, self.hidden, column, units=heads, bias=self.bias)
        name, role, shape = f"{site.name}.conv1d", f"{site.under}mamba.conv", (self.channels, 1, self.kernel)
        site.draft.add(name, role, *shape, layer=site.layer, split=column, units=heads)
        if self.conv_bias:
            site.vector("conv1d.bias", "mamba.conv.bias", self.channels, split=column, units=heads)
        site.vector("dt_bias", "mamba.dt_bias", heads, split=column, units=heads)
        site.vector("A_log", "mamba.decay", heads, split=column, units=heads)
        site.vector("D", "mamba.skip", heads, split=column, units=heads)
        if self.normed:
            site.vector("norm", "mamba.norm", self.inner, split=column, units=heads)
        site.linear("out_proj", "mamba.out", self.hidden, self.inner, Split.ROW, units=heads, bias=self.out_bias)

    def facts(self, layer: Layer) -> Layer:
        # The convolution's B and C divide by groups, which engines replicate beyond their number; x divides by heads.
        kept = (
            states.conv_state(self.inner, self.kernel, heads=self.heads, dtype=self.dtype),
            states.conv_state(2 * self.groups * self.state, self.kernel, heads=self.groups, dtype=self.dtype),
            states.recurrent_state(self.heads, self.head_dim, self.state, dtype=self.state_dtype),
        )
        work = states.conv_flops(self.channels, self.kernel) + states.ssd_flops(self.heads, self.head_dim, self.state)
        layer = replace(layer, states=(*layer.states, *kept), mixer_flops_per_token=work)
        return replace(layer, mixer="mamba") if layer.mixer == "none" else replace(layer, beside="mamba")
