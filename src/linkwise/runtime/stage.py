"""One rank's part of a model: its layers, its slices of their weights, its share of the KV, and a step through them."""

from collections.abc import Sequence

import torch

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, coordinates
from linkwise.runtime.arch import Arch
from linkwise.runtime.attention.cache import Cache
from linkwise.runtime.attention.view import View, view_of
from linkwise.runtime.comm import Comm
from linkwise.runtime.decoder import Layer
from linkwise.runtime.norm import Norm
from linkwise.runtime.sampling import draw
from linkwise.runtime.split.pipeline import Pipeline
from linkwise.runtime.split.tensor import Embedding, Head, Readable, Rows, Weights
from linkwise.runtime.steps import Drawn, Row, Step, sampling_cp

EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class Stage:
    """Rank `rank` of a serving group, 0 .. layout.size - 1.

    comm: its groups, by axis. source: the checkpoint, of which only this rank's slices are read. kv_blocks: blocks of
    the KV cache, the scratch block included. dtype: of weights, activations and KV, default the model's. layers: of
    each pipeline stage, default as even as can be.

    Raises InputError for a missing or misshapen tensor and for a layout that does not divide the model or is not run.
    """

    def __init__(
        self,
        arch: Arch,
        layout: Layout,
        rank: int,
        comm: Comm,
        source: Readable,
        *,
        kv_blocks: int,
        block_tokens: int = 16,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        if layout.sequence_sharded and layout.cp * layout.dp_attn > 1:
            raise InputError("sequence_sharded with cp or dp_attn above 1", where="layout", expected="cp 1, dp_attn 1")
        self.arch, self.layout, self.rank, self.comm = arch, layout, rank, comm
        self.block_tokens, self.device = block_tokens, torch.device(device)
        self.dtype: torch.dtype = dtype or getattr(torch, arch.dtype)
        self.place = coordinates(layout, rank)
        self.pipeline = Pipeline(layout, rank, comm, arch.layers, layers)
        self.rows = Rows(layout, comm)
        weights = Weights(source, layout, rank, dtype=self.dtype, device=self.device, arch=arch)
        here = self.pipeline.layers
        self.cache = Cache(arch, layout, len(here), kv_blocks, block_tokens, dtype=self.dtype, device=self.device)
        self.embedding, self.norm, self.head = self._ends(weights)
        self.layers = [
            Layer(arch, weights, number, comm, kept) for number, kept in zip(here, self.cache.layers, strict=True)
        ]
        self.weight_bytes = weights.bytes
        # Pieces of steps computed so far: a heartbeat tells them, so that a long step is not taken for a stuck one.
        self.pieces = 0

    def _ends(self, weights: Weights) -> tuple[Embedding | None, Norm | None, Head | None]:
        """What the first stage has before its layers, and the last one behind them."""
        pipeline, arch = self.pipeline, self.arch
        # With one stage a tied head is the embedding itself; with more, the last one has the rows a second time.
        tied = arch.tied and pipeline.is_last
        if tied and HEAD in weights and not weights.same_vocab(HEAD, EMBEDDING):
            raise InputError(
                f"{HEAD} differs from {EMBEDDING}, which is the head here",
                where="config.json: tie_word_embeddings",
                expected="false, or weights of a tied model",
            )
        table = weights.vocab(EMBEDDING) if pipeline.is_first or tied else None
        embedding = Embedding(table, self.comm) if pipeline.is_first and table is not None else None
        if not pipeline.is_last:
            return embedding, None, None
        norm = Norm(weights.whole(FINAL_NORM), arch.eps)
        return embedding, norm, Head(weights.vocab(HEAD) if table is None or not tied else table, arch.vocab, self.comm)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache on this rank."""
        return self.cache.nbytes

    @property
    def expert_load(self) -> dict[int, list[int]]:
        """Rows each expert has computed on this rank so far, by layer; zeros for experts of other ranks."""
        return {
            number: layer.moe.experts.load.tolist()
            for number, layer in zip(self.pipeline.layers, self.layers, strict=True)
            if layer.moe is not None
        }

    def run(self, step: Step) -> Drawn | None:
        """One step. Drawn on the last stage's ranks with tensor place 0, with the rows it is theirs to draw for."""
        batch = self._batch(step)
        view = self._view(batch)
        logits = self._forward(view)
        if logits is None or self.place["tp"]:
            return None
        cp, place = self.layout.cp, self.place["cp"]
        here = [number for number, one in enumerate(view.sampled) if sampling_cp(batch[one.row], cp) == place]
        rows = [view.sampled[number].row for number in here]
        self.pieces += 1
        wanted = logits if len(here) == len(view.sampled) else logits[here]
        draws = [how for how in (batch[row].draw for row in rows) if how is not None]
        tokens = draw(wanted, draws, [batch[row].end for row in rows])
        return Drawn(step.number, tuple(zip(rows, tokens, strict=True)))

    def logits(self, step: Step) -> torch.Tensor | None:
        """One step without drawing: logits [sampled rows, vocab] on the last stage, in batch order; None elsewhere.

        Under cp, rows whose last token another cp rank holds are of no use (`View.sampled` says which).
        """
        return self._forward(self._view(self._batch(step)))

    def drain(self) -> None:
        """Wait until everything handed to the next stage has left; call before the groups are taken down."""
        self.pipeline.drain()

    def _batch(self, step: Step) -> tuple[Row, ...]:
        return step.batches[self.place["dp_attn"]]

    def _view(self, batch: tuple[Row, ...]) -> View:
        return view_of(batch, self.layout, self.rank, self.block_tokens, self.device)

    def _forward(self, view: View) -> torch.Tensor | None:
        """A step's rows through this stage: logits of the sampled ones on the last stage."""
        with torch.inference_mode():
            return self._through(view)

    def _through(self, view: View) -> torch.Tensor | None:
        pipeline = self.pipeline
        if self.embedding is not None:
            x = self.rows.shard(self.embedding(view.tokens))
        else:
            x = pipeline.take(self.rows.kept(view.n), self.arch.hidden, dtype=self.dtype, device=self.device)
        for layer in self.layers:
            self.pieces += 1
            x = layer.attend(x, view)
            self.pieces += 1
            x = layer.feed(x, view.n)
        self.pieces += 1
        if self.norm is None or self.head is None:
            pipeline.hand_on(x)
            return None
        x = self.rows.enter(x, view.n, "head.in")
        wanted = [one.hidden for one in view.sampled]
        return self.head(self.norm(x if wanted == list(range(view.n)) else x[wanted]))
