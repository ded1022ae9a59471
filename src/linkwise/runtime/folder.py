"""Whether a folder's weights are those its config.json describes, as far as names tell, before any rank is started."""

import re
from collections.abc import Mapping
from typing import Any

from linkwise.core.errors import InputError
from linkwise.runtime.weights.places import Place

_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")


def check_layers(tensors: Mapping[str, Place], fields: Mapping[str, Any], layers: int) -> None:
    """Refuse weights of a layer that the config does not have: it is another model's, or cut short.

    Heads that predict further tokens are stored behind the last layer, and are not run.
    """
    more = fields.get("num_nextn_predict_layers")
    most = layers + (more if type(more) is int else 0)
    for name, place in tensors.items():
        found = _LAYER.match(name)
        if found is not None and int(found[1]) >= most:
            raise InputError(
                f"holds tensor {name[:120]!r}",
                where=str(place.file),
                expected=f"layers 0 to {layers - 1}, as num_hidden_layers in config.json says",
                hint="The config may be another model's",
            )
