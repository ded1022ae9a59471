"""Prompts under context parallelism: entries go round a ring of cp ranks, and every rank attends to each share of them.

Rank c of cp holds the entries of positions c, c + cp, c + 2 cp, ...; so does every rank of its dcp group, each a part.
An entry travels as one row: a head's key and value beside each other, or the latent.
"""

from collections.abc import Callable
from typing import Any

import torch

from linkwise.runtime.attention import attend
from linkwise.runtime.attention.view import Prompt, View
from linkwise.runtime.comm import Comm

Tensor = Any
Read = Callable[[Tensor], Tensor]  # slots -> entries [slots, ...]
Expand = Callable[[Tensor], tuple[Tensor, Tensor]]  # entries [L, ...] -> keys [L, KV, d], values [L, KV, e]


def assemble(comm: Comm, view: View, role: str, read: Read, fresh: Tensor) -> Tensor:
    """Entries of this cp rank of all prompts, one prompt after another, each padded to ceil(end / cp) entries.

    fresh: those of the hidden rows [n, ...], which are in the cache already. role: cp.kv or cp.latent without "cp.".
    """
    if all(prompt.start == 0 for prompt in view.prompts):
        return fresh[view.decode :]
    if view.dcp == 1:
        return read(view.once("prompt slots", lambda: _slots(view)))
    slots, sources = view.once("prompt sources", lambda: _sources(view))
    known = comm.all_gather("dcp", f"dcp.{role}", read(slots))
    return torch.cat((known, fresh)).index_select(0, sources)


def _slots(view: View) -> Tensor:
    """Where the entries of all prompts are in the cache of a rank that keeps all of its cp rank's."""
    return torch.cat([view.slots(p.table, torch.arange(_length(view, p), device=view.device)) for p in view.prompts])


def _sources(view: View) -> tuple[Tensor, Tensor]:
    """Slots of what this dcp rank keeps of the prompts' earlier entries, equally many on each; and, for every entry of
    the prompts, its place among the gathered entries of the dcp ranks followed by the hidden rows'."""
    slots, firsts, total = [], [], 0
    for prompt in view.prompts:
        count = -(-prompt.start // (view.cp * view.dcp))
        slots.append(view.slots(prompt.table, torch.arange(count, device=view.device)))
        firsts.append(total)
        total += count
    sources = []
    for prompt, first in zip(view.prompts, firsts, strict=True):
        entries = torch.arange(_length(view, prompt), device=view.device)
        earlier = max(0, -(-(prompt.start - view.cp_place) // view.cp))
        gathered = entries % view.dcp * total + first + entries // view.dcp
        new = view.dcp * total + prompt.first + (entries - earlier).clamp(0, prompt.hidden - 1)
        sources.append(torch.where(entries < earlier, gathered, new))
    return torch.cat(slots), torch.cat(sources)


def _length(view: View, prompt: Prompt) -> int:
    return -(-prompt.end // view.cp)


def ring(
    comm: Comm,
    view: View,
    role: str,
    q: Tensor,
    entries: Tensor,
    expand: Expand,
    scale: float,
    window: int | None,
    done: Tensor,
) -> None:
    """Attention of the prompts' hidden rows, into done [n, heads, value width]. q: [n, heads, width], of all rows.

    entries: what `assemble` gave. cp - 1 passes; each sends all entries on to the next rank.
    """
    cp, place = view.cp, view.cp_place
    parts: list[attend.Part | None] = [None] * len(view.prompts)
    for turn in range(cp):
        owner = (place - turn) % cp
        first = 0
        for i, prompt in enumerate(view.prompts):
            length = _length(view, prompt)
            k, v = expand(entries[first : first + length])
            first += length
            mask = view.once(("ring", i, owner, window), lambda p=prompt, o=owner: view.hidden(p, o, window))  # type: ignore[misc]
            part = attend.part_of_prompt(q[prompt.rows], k, v, scale, mask)
            before = parts[i]
            parts[i] = part if before is None else attend.join(before, part)
        if turn < cp - 1:
            entries = entries.contiguous()
            entries = comm.exchange(
                "cp", f"cp.{role}", entries, torch.empty_like(entries), (place + 1) % cp, (place - 1) % cp
            )
    for prompt, whole in zip(view.prompts, parts, strict=True):
        if whole is not None:
            done[prompt.rows] = whole.out.to(done.dtype)
