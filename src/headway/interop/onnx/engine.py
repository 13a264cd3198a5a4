"""onnxruntime behind our pre- and post-processing: `headway predict DIR --engine onnx`.

Translators and language models are `Steps`, so every search of ours runs on them; of the other
tasks the graph itself gives the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.config.decode import DecodeSettings
from headway.config.folder import file_in
from headway.config.run import RunSettings
from headway.decode.engine import Engine, Tokens
from headway.decode.hypothesis import Specials
from headway.decode.lines import batches
from headway.decode.prompts import Prefix, PromptSearcher, check_settings
from headway.decode.search import Searcher
from headway.decode.steps import Steps
from headway.errors import ConfigError
from headway.interop.onnx.answers import Answers
from headway.interop.onnx.expected import check_graph
from headway.interop.onnx.session import Session
from headway.interop.plain.graphs import ALONE, CROSS, LOGITS, READER, WRITER
from headway.interop.plain.padded import Array, Growing, padded, sources_of
from headway.models.encoder import Encoder

SCORES_AT_ONCE = 1 << 25
"""Scores that a graph gives in one call while a prompt is read; only the last ones are used."""


def onnx_engine(folder: Path, settings: RunSettings, detail: bool) -> OnnxEngine:
    """`interop.engines.Make`."""
    return OnnxEngine(folder, settings)


class OnnxEngine(Engine):
    name = "onnx"

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        precision = settings.decode.precision
        if precision != "fp32":
            raise ConfigError(
                f"decode.precision={precision} does not go with --engine onnx: what weights are "
                "held in is decided by `headway export --int8`. Leave it out, or use --engine "
                "torch with the run."
            )
        self.settings = settings
        names = (READER, WRITER) if settings.task == "translate" else (ALONE,)
        self.graphs: dict[str, Session] = {}
        for name in names:
            path = file_in(folder, f"{name}.onnx")
            self.graphs[name] = Session(path)
            check_graph(path, name, self.graphs[name], settings)

    def searcher(self, settings: DecodeSettings, specials: Specials) -> Searcher:
        return SourceSearcher(self.graphs[READER], self.graphs[WRITER], settings, specials)

    def prompt_searcher(
        self, settings: DecodeSettings, specials: Specials, context: int | None
    ) -> PromptSearcher:
        return TextSearcher(self.graphs[ALONE], settings, specials, context)

    def attention(self, sources: Tokens, targets: Tokens, bos: int) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        lengths = [len(a) + len(b) + 1 for a, b in zip(sources, targets, strict=True)]
        for group in batches(lengths, self.settings.decode.batch_tokens):
            given = sources_of(self.graphs[READER].call, [sources[i] for i in group])
            growing = _growing(self.graphs[WRITER], len(group), given)
            read_BTS = growing.read(*padded([[bos, *targets[i]] for i in group]))[CROSS]
            for i, read_TS in zip(group, read_BTS, strict=True):
                seen_TS = read_TS[: len(targets[i]) + 1, : len(sources[i])]
                found[i] = torch.from_numpy(seen_TS.copy())
        return [found[i] for i in range(len(sources))]

    def model(self) -> Encoder:
        return Answers(self.graphs[ALONE], self.settings)


class GraphSteps:
    """`Steps` of a graph. Hypotheses are rows with a past of their own; until the first token of
    the outputs is chosen, those of a source are one."""

    def __init__(self, growing: Growing, n_sources: int, width: int) -> None:
        self.growing, self.n_sources, self.width = growing, n_sources, width
        self.device, self.attention_BWS = torch.device("cpu"), torch.empty(0)
        self.first_BV: Tensor | None = None
        """Scores of the first tokens, where a prompt was read already."""

        self.is_one = True

    def step(self, tokens_BW: Tensor) -> Tensor:
        if self.is_one:
            return self._begin(tokens_BW[:, :1])
        found = self.growing.read(tokens_BW.numpy().reshape(-1, 1))
        self._watch(found)
        return _log_probs(found)

    def _begin(self, tokens_B1: Tensor) -> Tensor:
        self.is_one = False
        rows = np.repeat(np.arange(self.n_sources), self.width)
        scores_BV, self.first_BV = self.first_BV, None
        if scores_BV is None:
            found = self.growing.read(tokens_B1.numpy())
            scores_BV = _log_probs(found)
            self._watch({name: x[rows] for name, x in found.items()})
        if self.width == 1:
            return scores_BV
        self.growing.pick(rows)
        return scores_BV[torch.from_numpy(rows)]

    def _watch(self, found: dict[str, Array]) -> None:
        if CROSS in found:
            seen_RS = torch.from_numpy(found[CROSS][:, 0])
            self.attention_BWS = seen_RS.unflatten(0, (self.n_sources, self.width))

    def reorder(self, parents_BW: Tensor) -> None:
        first_B1 = torch.arange(self.n_sources)[:, None] * self.width
        rows = (first_B1 + parents_BW).flatten().numpy()
        if not np.array_equal(rows, np.arange(len(rows))):
            self.growing.pick(rows, same_given=True)

    def keep(self, sources: Sequence[int]) -> None:
        first_B1 = np.array(sources, np.int64)[:, None] * self.width
        self.growing.pick((first_B1 + np.arange(self.width)).flatten())
        self.n_sources = len(sources)


class SourceSearcher(Searcher):
    """All searches of translators on two graphs."""

    def __init__(
        self, reader: Session, writer: Session, settings: DecodeSettings, specials: Specials
    ) -> None:
        self.reader, self.writer = reader, writer
        self.models, self.settings, self.specials = (), settings, specials
        self.recorded = None

    def steps(self, sources: Tokens, *, width: int, capacity: int, watch: bool = False) -> Steps:
        given = sources_of(self.reader.call, sources)
        return GraphSteps(_growing(self.writer, len(sources), given), len(sources), width)

    def rows(self, source: Sequence[int]) -> int:
        return len(source)

    def reach(self) -> int | None:
        return self.writer.n_positions


class TextSearcher(PromptSearcher):
    """All searches of language models on a graph."""

    def __init__(
        self, graph: Session, settings: DecodeSettings, specials: Specials, context: int | None
    ) -> None:
        check_settings(settings)
        self.graph, self.models, self.settings, self.specials = graph, (), settings, specials
        ends = [end for end in (context, graph.n_positions) if end is not None]
        self.context, self.recorded = min(ends, default=None), None

    def steps(
        self,
        prompts: Tokens,
        width: int,
        capacity: int,
        prefix: Prefix | None,
        *,
        apart: bool,
    ) -> Steps:
        assert prefix is None, "an engine never gets one"
        growing = _growing(self.graph, len(prompts))
        ids_BT, real_BT = padded(prompts, left=True)
        n_words = self.graph.outputs[LOGITS][2]
        at_once = max(1, SCORES_AT_ONCE // (len(prompts) * n_words))
        for first in range(0, ids_BT.shape[1], at_once):
            now = slice(first, first + at_once)
            found = growing.read(ids_BT[:, now], real_BT[:, now])
        steps = GraphSteps(growing, len(prompts), width)
        steps.first_BV = _log_probs(found)
        return steps


def _growing(graph: Session, n_texts: int, given: dict[str, Array] | None = None) -> Growing:
    return Growing(graph.call, graph.heads, n_texts, given)


def _log_probs(found: dict[str, Array]) -> Tensor:
    """Of the token behind the last one."""
    return torch.from_numpy(found[LOGITS][:, -1]).log_softmax(-1)
