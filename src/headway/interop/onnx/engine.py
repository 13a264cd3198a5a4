"""Inference engine that runs onnxruntime with headway's pre- and post-processing: `headway predict
DIR --engine onnx`.

Models that generate text (translators, captioners, transcribers, language models) implement
`DecodingSteps`, so they support all of headway's search algorithms. For other tasks, the graph
itself computes the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.decode.batching import batches
from headway.decode.engine import Engine, TokenLists
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher, StepsConfig, check_prompted
from headway.decode.speech.ctc import join_ctc_steps
from headway.decode.speech.recognizer import CtcRecognizer, DecoderRecognizer, Recognizer
from headway.decode.steps import DecodingSteps
from headway.errors import ConfigError, DataError, Option
from headway.interop.graphs.graph_inputs import MASK
from headway.interop.graphs.graphs import (
    CROSS,
    CROSS_HEADS,
    CTC,
    DECODER,
    EMBEDDING,
    ENCODER,
    LOGITS,
    MODEL,
    REBUILT,
    SENTENCE,
    SOURCE_MASK,
    TRANSITIONS,
)
from headway.interop.graphs.padded_batches import (
    CachedGraph,
    GraphArray,
    media_inputs,
    padded,
    source_inputs,
    text_inputs,
)
from headway.interop.onnx.session import Session, check_graph, expected_graphs
from headway.models.audio import AudioEncoder
from headway.models.encoder import Encoder
from headway.models.parts.audio import AudioBatch, AudioFront
from headway.models.parts.front import Front
from headway.models.parts.output_heads import LMHead
from headway.models.parts.vision import ImageBatch, ImageFront
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.settings.folder import file_in
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.run import RunSettings, media_settings
from headway.settings.task_rows import spec_of
from headway.tasks.readout import OneVector, readout_of
from headway.tokens.tokenizer import Tokenizer

SCORES_AT_ONCE = 1 << 25
"""Maximum number of logits that a graph returns per call while a prompt is read (128 MB in fp32).

Only the logits of the last token are used, so long prompts are read in several calls.
"""


def onnx_engine(folder: Path, settings: RunSettings) -> OnnxEngine:
    """Return the engine for an exported folder. This function implements `tasks.engines.Make`."""
    return OnnxEngine(folder, settings)


class OnnxEngine(Engine):
    name = "onnx"

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        precision = settings.decode.precision
        if precision != "fp32":
            raise ConfigError(
                f"decode.precision={precision} is not supported by {Option('engine', 'onnx')}: "
                "the export sets the precision of the weights (`headway export --int8`). Remove "
                f"decode.precision, or use the original run with {Option('engine', 'torch')}."
            )
        self.settings, self.front = settings, media_settings(settings)
        self.graphs: dict[str, Session] = {}
        for name, wanted in expected_graphs(settings).items():
            path = file_in(folder, f"{name}.onnx")
            self.graphs[name] = Session(path)
            check_graph(path, wanted, self.graphs[name], settings)

    def searcher(
        self,
        settings: DecodeSettings,
        specials: SpecialTokens,
        *,
        context: int | None = None,
        detail: bool = False,
    ) -> Searcher:
        if MODEL in self.graphs:
            return GraphTextSearcher(self.graphs[MODEL], settings, specials, context)
        return GraphSourceSearcher(self, settings, specials)

    def recognizer(
        self, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
    ) -> Recognizer:
        if MODEL in self.graphs:
            heard = self.model()
            assert isinstance(heard, AudioEncoder)
            return CtcRecognizer(heard, tokenizer, settings)
        assert isinstance(self.front, AudioSettings)
        return GraphRecognizer(self, tokenizer, settings, self.front, weight)

    def rows(self, source: Any) -> int:
        """Return the number of positions that the encoder outputs for a source."""
        if self.front is None:
            return len(source)
        if isinstance(self.front, AudioSettings):
            return self.front.rows_of(len(source))
        return self.front.rows_of(len(source), *source.shape[2:])

    def read(self, sources: Sequence[Any]) -> dict[str, GraphArray]:
        """Encode texts, images or audio. Return inputs of the decoder graph, and `CTC` if the model
        has a CTC head."""
        inputs = text_inputs(sources) if self.front is None else media_inputs(sources)
        return source_inputs(self.graphs[ENCODER].call, inputs)

    def attention(self, sources: Sequence[Any], targets: TokenLists, bos: int) -> list[Tensor]:
        found, _ = self.cross_attention(CROSS, sources, [[bos, *target] for target in targets])
        return found

    def cross_attention(
        self, name: str, sources: Sequence[Any], texts: TokenLists
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the cross-attention of each text, and the logits of its first token.

        `name`: decoder output with the attention weights, either `CROSS` (T S) or `CROSS_HEADS` (H
        T S).
        """
        found: dict[int, Tensor] = {}
        first: dict[int, Tensor] = {}
        lengths = [self.rows(source) for source in sources]
        sums = [length + len(text) for length, text in zip(lengths, texts, strict=True)]
        for group in batches(sums, self.settings.decode.batch_tokens):
            given = self.read([sources[i] for i in group])
            given.pop(CTC, None)
            growing = _cached_graph(self.graphs[DECODER], len(group), given)
            read = growing.feed(*padded([texts[i] for i in group]))
            for i, read_TS, logits_TV in zip(group, read[name], read[LOGITS], strict=True):
                seen_TS = read_TS[..., : len(texts[i]), : lengths[i]]
                found[i] = torch.from_numpy(seen_TS.copy())
                first[i] = torch.from_numpy(logits_TV[0].copy())
        places = range(len(sources))
        return [found[i] for i in places], [first[i] for i in places]

    def model(self) -> Encoder:
        graph = self.graphs[MODEL]
        if self.front is None:
            return GraphTextEncoder(graph, self.settings)
        if REBUILT in graph.outputs:
            self._cannot("score reconstructions of masked parts")
        if spec_of(self.settings).writes:
            return GraphCtcEncoder(graph, self.settings)
        return GraphMediaEncoder(graph, self.settings)


class GraphSteps:
    """`DecodingSteps` that are computed by a graph.

    Each hypothesis has its own entry along the batch axis of the cache. Until the first output
    token is chosen, all hypotheses of a source share one entry.
    """

    def __init__(self, cached_graph: CachedGraph, n_sources: int, width: int) -> None:
        self.cached_graph, self.n_sources, self.width = cached_graph, n_sources, width
        self.device, self.attention_BWS = torch.device("cpu"), torch.empty(0)
        self.first_BV: Tensor | None = None
        """Log-probabilities of each text's first output token if the prompts have already been
        read, otherwise None."""

        self.is_one = True

    def step(self, tokens_BW: Tensor) -> Tensor:
        if self.is_one:
            return self._begin(tokens_BW[:, :1])
        found = self.cached_graph.feed(tokens_BW.numpy().reshape(-1, 1))
        self._store_attention(found)
        return _log_probs(found)

    def _begin(self, tokens_B1: Tensor) -> Tensor:
        self.is_one = False
        rows = np.repeat(np.arange(self.n_sources), self.width)
        scores_BV, self.first_BV = self.first_BV, None
        if scores_BV is None:
            found = self.cached_graph.feed(tokens_B1.numpy())
            scores_BV = _log_probs(found)
            self._store_attention({name: x[rows] for name, x in found.items()})
        if self.width == 1:
            return scores_BV
        self.cached_graph.select(rows)
        return scores_BV[torch.from_numpy(rows)]

    def _store_attention(self, found: dict[str, GraphArray]) -> None:
        if CROSS in found:
            seen_RS = torch.from_numpy(found[CROSS][:, 0])
            self.attention_BWS = seen_RS.unflatten(0, (self.n_sources, self.width))

    def reorder(self, parents_BW: Tensor) -> None:
        first_B1 = torch.arange(self.n_sources)[:, None] * self.width
        rows = (first_B1 + parents_BW).flatten().numpy()
        if not np.array_equal(rows, np.arange(len(rows))):
            self.cached_graph.select(rows, same_given=True)

    def keep(self, sources: Sequence[int]) -> None:
        first_B1 = np.array(sources, np.int64)[:, None] * self.width
        self.cached_graph.select((first_B1 + np.arange(self.width)).flatten())
        self.n_sources = len(sources)


class GraphSourceSearcher(Searcher):
    """Search with an encoder-decoder, which consists of two graphs. `weight` is the weight of the
    CTC scores."""

    def __init__(
        self,
        engine: OnnxEngine,
        settings: DecodeSettings,
        specials: SpecialTokens,
        weight: float = 0.0,
    ) -> None:
        self.engine, self.writer = engine, engine.graphs[DECODER]
        self.models, self.settings, self.specials = (), settings, specials
        self.context, self.continues = self.writer.n_positions, False
        self.graph_searcher, self.weight = None, weight

    def steps(self, sources: Sequence[Any], begin: StepsConfig) -> DecodingSteps:
        given = self.engine.read(sources)
        ctc_BTV = given.pop(CTC, None)
        steps = GraphSteps(
            _cached_graph(self.writer, len(sources), given), len(sources), begin.width
        )
        if not self.weight or ctc_BTV is None:
            return steps
        real_BT = given[SOURCE_MASK] > 0
        rows = Layout.of(real_BT.sum(1).tolist())
        scores_MV = torch.from_numpy(ctc_BTV[real_BT])
        return join_ctc_steps(steps, scores_MV, rows, self.specials, self.weight, begin.width)

    def rows(self, source: Any) -> int:
        return self.engine.rows(source)


class GraphRecognizer(DecoderRecognizer):
    """Speech recognition with an encoder-decoder, which consists of two graphs."""

    def __init__(
        self,
        engine: OnnxEngine,
        tokenizer: Tokenizer,
        settings: DecodeSettings,
        shape: AudioSettings,
        weight: float,
    ) -> None:
        self.engine = engine
        has_ctc = CTC in engine.graphs[ENCODER].outputs
        self.prepare(tokenizer, settings, shape, weight, has_ctc=has_ctc)

    def search(self, settings: DecodeSettings, weight: float) -> GraphSourceSearcher:
        return GraphSourceSearcher(self.engine, settings, self.specials, weight)

    def attention(
        self, waves: Sequence[Any], texts: TokenLists
    ) -> tuple[list[Tensor], list[Tensor]]:
        inputs = [[self.specials.bos, *self.begin, *text] for text in texts]
        found, first = self.engine.cross_attention(CROSS_HEADS, waves, inputs)
        return [weights_HTS[:, len(self.begin) :] for weights_HTS in found], first

    def first_logits(self, wave: Any) -> Tensor:
        given = self.engine.read([wave])
        given.pop(CTC, None)
        read = _cached_graph(self.engine.graphs[DECODER], 1, given).feed(
            np.array([[self.specials.bos]])
        )
        return torch.from_numpy(read[LOGITS][0, -1])

    def ctc(self, waves: Sequence[Any]) -> list[Tensor]:
        found = self.engine.read(waves)
        pairs = zip(found[CTC], found[SOURCE_MASK], strict=True)
        return [torch.from_numpy(x_TV[real_T > 0]).log_softmax(-1) for x_TV, real_T in pairs]


class GraphTextSearcher(Searcher):
    """Search with a language model, which is a single graph."""

    def __init__(
        self, graph: Session, settings: DecodeSettings, specials: SpecialTokens, context: int | None
    ) -> None:
        check_prompted(settings)
        self.graph, self.models, self.settings, self.specials = graph, (), settings, specials
        ends = [end for end in (context, graph.n_positions) if end is not None]
        self.context, self.continues = min(ends, default=None), True
        self.graph_searcher = None

    def steps(self, sources: TokenLists, begin: StepsConfig) -> DecodingSteps:
        assert begin.prefix is None, "engines do not support a prefix"
        growing = _cached_graph(self.graph, len(sources))
        ids_BT, real_BT = padded(sources, left=True)
        n_words = self.graph.outputs[LOGITS][2]
        at_once = max(1, SCORES_AT_ONCE // (len(sources) * n_words))
        for first in range(0, ids_BT.shape[1], at_once):
            now = slice(first, first + at_once)
            found = growing.feed(ids_BT[:, now], real_BT[:, now])
        steps = GraphSteps(growing, len(sources), begin.width)
        steps.first_BV = _log_probs(found)
        return steps


def _cached_graph(
    graph: Session, n_texts: int, given: dict[str, GraphArray] | None = None
) -> CachedGraph:
    return CachedGraph(graph.call, graph.heads, n_texts, given)


def _log_probs(found: dict[str, GraphArray]) -> Tensor:
    return torch.from_numpy(found[LOGITS][:, -1]).log_softmax(-1)


TOKENS_AT_ONCE = 4096
"""Maximum number of positions (of text, images or audio) per batch, to limit the use of memory."""


class PassThroughHead(nn.Module):
    """Output head that returns its input, because the graph has already computed the output."""

    def __init__(self, transitions: Tensor | None = None) -> None:
        """`transitions`: transition scores of the CRF, if a tagger has one."""
        super().__init__()
        self.transitions = transitions

    def forward(self, x_RD: Tensor) -> Tensor:
        return x_RD


class GraphTextEncoder(Encoder):
    """Text encoder whose graph also computes the output of the head."""

    def __init__(self, graph: Session, settings: RunSettings) -> None:
        super().__init__(nn.Identity(), nn.Identity(), nn.ModuleDict(), "mean")
        self.graph, readout = graph, readout_of(settings)
        self.pools = readout.pools
        self.name = SENTENCE if isinstance(readout, OneVector) else LOGITS
        learned = None
        if TRANSITIONS in graph.outputs:  # a constant of the graph, so any input will do
            learned = torch.from_numpy(self._read([[0]], [[0]])[TRANSITIONS])
        self.heads["tags"] = PassThroughHead(learned)
        self.heads["words"] = self.heads["classes"] = PassThroughHead()

    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        """Return the output of the graph, with one row per token (masked tokens, tags) or per text
        (classes, embeddings)."""
        lengths = list(layout.known_lengths())
        numbers_N = torch.zeros_like(tokens_N) if segments_N is None else segments_N
        texts = [part.tolist() for part in tokens_N.split(lengths)]
        segments = [part.tolist() for part in numbers_N.split(lengths)]
        found: dict[int, GraphArray] = {}
        for group in batches(lengths, TOKENS_AT_ONCE):
            read = self._read([texts[i] for i in group], [segments[i] for i in group])
            found |= dict(zip(group, read[self.name], strict=True))
        if self.pools:
            return torch.from_numpy(np.stack([found[i] for i in range(len(texts))]))
        tables = [found[i][: lengths[i]] for i in range(len(texts))]
        return torch.from_numpy(np.concatenate(tables))

    def _read(self, texts: TokenLists, segments: TokenLists) -> dict[str, GraphArray]:
        return self.graph.call(text_inputs(texts, segments))

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND


class ImageCollator(ImageFront):
    """Input layer that only collates images, because the graph embeds them."""

    def __init__(self, shape: ImageSettings) -> None:
        Front.__init__(self)
        self.shape = shape


class AudioCollator(AudioFront):
    """Input layer that only collates audio, because the graph embeds it."""

    def __init__(self, shape: AudioSettings) -> None:
        Front.__init__(self)
        self.shape = shape


class GraphMediaEncoder(Encoder):
    """Encoder of images, videos or audio whose graph also computes the outputs of the heads.

    The output of an item is its class logits, its embedding, or both, depending on the outputs of
    the graph.
    """

    def __init__(self, graph: Session, settings: RunSettings) -> None:
        shape = media_settings(settings)
        assert shape is not None
        front: Front
        if isinstance(shape, AudioSettings):
            front = AudioCollator(shape)
        else:
            front = ImageCollator(shape)
        super().__init__(front, nn.Identity(), nn.ModuleDict(), "mean")
        self.graph, self.names = graph, [n for n in (LOGITS, EMBEDDING) if n in graph.outputs]
        self.heads["classes"] = self.heads["ctc"] = PassThroughHead()
        self.anchor = nn.Parameter(torch.zeros(0))
        """Empty parameter from which callers determine the device of the model."""

    def forward(
        self, given: ImageBatch | AudioBatch, layout: Layout, segments_N: Tensor | None = None
    ) -> Tensor:
        """Return one row per item, with its class logits followed by its embedding."""
        found = [self._read(items) for items in graph_batches(given, layout)]
        numbers = np.concatenate([places for places, _ in found])
        rows = np.concatenate([np.concatenate([x[n] for n in self.names], 1) for _, x in found])
        return torch.from_numpy(rows[np.argsort(numbers)])

    def _read(
        self, items: tuple[list[int], list[GraphArray]]
    ) -> tuple[list[int], dict[str, GraphArray]]:
        places, values = items
        if isinstance(self.front, AudioCollator) and self.graph.n_positions is not None:
            shape, most = self.front.shape, self.graph.n_positions
            if max(shape.rows_of(len(one)) for one in values) > most:
                raise DataError(
                    f"a recording lasts {max(map(len, values)) / shape.rate:,.0f} s, but the "
                    f"exported model reads at most {most * shape.row_seconds:,.0f} s. Split the "
                    f"recording, or use the original run with {Option('engine', 'torch')}."
                )
        return places, self.graph.call(media_inputs(values))

    @property
    def n_classes(self) -> int:
        return int(self.graph.outputs[LOGITS][-1]) if LOGITS in self.names else 0

    def class_rows(self, x_ND: Tensor, layout: Layout) -> dict[str, Tensor]:
        return {"classes": x_ND[:, : self.n_classes]}

    def cosine_head(self, scale: float) -> Callable[[Tensor], Tensor]:
        """Return the head unchanged, because the graph has already applied the cosine scale."""
        return self.heads["classes"]

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND[:, self.n_classes :]


class GraphCtcEncoder(GraphMediaEncoder, AudioEncoder):
    """Speech encoder whose graph also computes the output of the CTC head, one row of logits per
    frame."""

    def forward(
        self, given: ImageBatch | AudioBatch, layout: Layout, segments_N: Tensor | None = None
    ) -> Tensor:
        found: dict[int, GraphArray] = {}
        for items in graph_batches(given, layout):
            places, read = self._read(items)
            rows = zip(read[LOGITS], read[MASK], strict=True)
            found |= dict(zip(places, (x_TV[real_T > 0] for x_TV, real_T in rows), strict=True))
        return torch.from_numpy(np.concatenate([found[i] for i in range(layout.n_sequences)]))

    @property
    def ctc(self) -> LMHead:
        return self.heads["ctc"]  # type: ignore[return-value]


def graph_batches(
    given: ImageBatch | AudioBatch, layout: Layout
) -> Iterator[tuple[list[int], list[GraphArray]]]:
    """Split an unpadded batch into batches for the graph. Yield the indices and the items of
    each."""
    if isinstance(given, ImageBatch):
        assert given.order_N is None, "images of one size"
        (group,) = given.groups
        yield list(range(len(group))), list(group.numpy())
        return
    first_B = np.searchsorted(given.number_A.numpy(), np.arange(given.n_recordings))
    low_B, high_B = given.low_A.numpy()[first_B], given.high_A.numpy()[first_B]
    samples_S = given.samples_S.numpy()
    for places in batches(list(layout.known_lengths()), TOKENS_AT_ONCE):
        yield list(places), [samples_S[low_B[i] : high_B[i]] for i in places]
