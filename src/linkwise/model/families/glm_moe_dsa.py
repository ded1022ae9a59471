"""GLM-5 to GLM-5.3: DeepSeek-V3.2's architecture; later versions share one indexer's choice among several layers."""

from types import MappingProxyType

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, deepseek_v32

_SIGNS = MappingProxyType({"F": "full", "S": "shared"})


def read(fields: Fields) -> Draft:
    """A draft from the config. A `shared` layer has neither indexer weights nor index keys; the MTP layer has both."""
    kinds = _indexer_kinds(fields, common.layer_count(fields))
    # Every layer is sparse latent attention under either name; MTP steps reuse the first step's choice.
    fields.ignore("layer_types", "index_share_for_mtp_iteration")
    return deepseek_v32.stack(fields, indexed=[kind == "full" for kind in kinds], mtp_copies=False)


def _indexer_kinds(fields: Fields, count: int) -> list[str]:
    """The listed kinds, else the pattern, else a full one every `index_topk_freq` layers after an offset."""
    kinds = fields.sequence("indexer_types", count, default=None)
    pattern = fields.raw("index_topk_pattern", None)
    freq = fields.integer("index_topk_freq", default=1, least=1, most=common.MAX_LAYERS)
    offset = fields.integer("index_skip_topk_offset", default=2, most=common.MAX_LAYERS)
    if not kinds and pattern is not None:
        kinds = [_SIGNS.get(sign, sign) for sign in pattern] if isinstance(pattern, str) else pattern
    if not kinds:
        kinds = ["full" if max(i - offset + 1, 0) % freq == 0 else "shared" for i in range(count)]
    if not isinstance(kinds, list) or len(kinds) < count or set(map(str, kinds)) - {"full", "shared"}:
        raise NotUnderstood(
            f"indexer kinds are {kinds!r}"[:200], where=fields.where, expected=f"{count} of 'full' or 'shared'"
        )
    if kinds[0] != "full":
        raise NotUnderstood("the first layer shares an indexer nobody has", where=fields.where, expected="'full'")
    return list(kinds[:count])
