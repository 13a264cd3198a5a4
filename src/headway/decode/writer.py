"""Text generation from sources of any kind with an encoder-decoder or an ensemble."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.decode.align import AttentionFunction, cross_attention
from headway.decode.batching import FIRST_WINDOW, LAST_WINDOW, batches, prefetch_one, windows
from headway.decode.engine import BackgroundSearch, Engine, Search, SearchedBatch
from headway.decode.logits_processors import (
    SpecialTokens,
    TextConstraints,
    TokenConstraints,
    next_constraints,
    violated_bans,
)
from headway.decode.output import GenerationResult, Output, TargetScore, WritingSummary
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import SearchCache, Searcher
from headway.decode.sources import ImageSources, OnLong, SourcePart, Sources, TextSources
from headway.models.parts.vision import ImageFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.eval_mode import evaluating
from headway.nn.layout import Layout
from headway.nn.linear import packing
from headway.nn.positions import max_positions
from headway.progress import OnProgress, no_progress
from headway.settings.decode import DecodeSettings
from headway.settings.listed import ensure_list
from headway.settings.vision import ImageSettings
from headway.tokens.tokenizer import Tokenizer, Vocabularies

MAX_LEN = 256
"""Default maximum number of source tokens of a line that is not split."""

TRIES = 20
"""Maximum number of searches for an output without banned phrases. Each search bans one more
tokenization."""

# A byte-level vocabulary can generate line breaks, but each output must stay on one line.
LINE_END = re.compile(r"[\r\n]+")


@dataclass
class SourceWindow:
    """Window of sources that are being decoded."""

    sources: list[Any]
    parts: list[list[SourcePart]]
    """Parts of each source. A source that is too long for the model has several."""

    pending_results: Iterator[SearchedBatch] | None = None
    """Iterator over the results of a search in the background; None if the search runs in the
    foreground."""

    @property
    def flat(self) -> list[SourcePart]:
        return [part for of_source in self.parts for part in of_source]


class Writer:
    """Generates text for sources in batches of similar length. Results are in input order.

    A source is what the models' input layers accept: a line of text, an image or a video.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        vocab: Vocabularies,
        settings: DecodeSettings = DecodeSettings(),
        *,
        max_len: int | None = MAX_LEN,
        on_long: OnLong = "split",
        align: bool = False,
        detail: bool = False,
        engine: Engine | None = None,
        image: ImageSettings | None = None,
        recent: SearchCache | None = None,
    ) -> None:
        """Create a writer. Several models form an ensemble.

        `max_len`: number of tokens above which `on_long` applies to a line; the positions of the
        models limit it as well. `align`: whether to return what each word attends to. `engine`:
        runtime that replaces `models`. `detail`: passed to the engine. `image`: the engine's input
        shape for images. `recent`: cache of searches of these models, shared with other writers.
        """
        self.models, self.target, self.settings = models, vocab.target, settings
        self.align = align
        self.summary = WritingSummary()
        specials = SpecialTokens.of(vocab.target)
        self.searcher: Search
        self.attention: AttentionFunction
        """Function that returns the cross-attention of target tokens on the source. For an
        ensemble, it uses the first model."""

        if engine is None:
            kept = SearchCache() if recent is None else recent
            self.searcher = kept(
                ("write", settings, specials), lambda: Searcher(models, settings, specials)
            )
            self.attention = partial(cross_attention, models[0])
        else:
            self.searcher = engine.searcher(settings, specials, detail=detail)
            self.attention = engine.attention
        fronts = [model.source_front for model in models]
        shapes = [front.shape for front in fronts if isinstance(front, ImageFront)]
        shapes += [] if image is None else [image]
        self.sources: Sources
        if shapes:
            self.sources = ImageSources(shapes)
        else:
            ends = [*map(max_positions, fronts), None if engine is None else engine.reach]
            n_more = len(vocab.source.as_source([]))
            most = math.inf if max_len is None else max_len
            room = min([most, *(end - n_more for end in ends if end is not None)])
            self.sources = TextSources(vocab.source, room, on_long, self.summary)

    def write(
        self,
        sources: Iterable[Any],
        wishes: Iterable[TextConstraints] | None = None,
        *,
        first: int = 0,
        live: bool = False,
        on_progress: OnProgress = no_progress,
    ) -> Iterator[GenerationResult]:
        """Yield one result per source, in order. An empty line gives an empty result.

        `first`: index of the first source, on which random draws depend. `live`: do not wait for
        more sources to fill a batch. `on_progress`: called with the number of finished sources,
        even within a window. The total is known only if `sources` has a length.
        """
        sources, most = ensure_list(sources), self.sources.at_once
        ahead = isinstance(self.searcher, BackgroundSearch) and not live
        # Start with large windows, because a background search is used for throughput.
        some = windows(sources, LAST_WINDOW if ahead else FIRST_WINDOW, most, live=live)
        all_work = self._all_work(some, wishes, first)
        all_work = prefetch_one(all_work) if ahead else all_work
        given = len(sources) if isinstance(sources, Sized) else 0
        before = 0
        with packing(self.models):
            for work in all_work:
                total = max(given, before + len(work.sources))
                with self._timed():
                    found = self._done(work, on_progress, before, total)
                yield from found
                before += len(work.sources)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.summary.seconds += time.perf_counter() - start

    def score(self, pairs: Iterable[tuple[Any, str]]) -> Iterator[TargetScore]:
        """Yield the log-probability of each text given its source, in order."""
        if isinstance(pairs, tuple) and len(pairs) == 2 and isinstance(pairs[0], str):
            pairs = [pairs]  # a single pair, not two strings of two letters
        target, room = self.target, self.settings.batch_tokens
        for window in windows(pairs, most=self.sources.at_once):
            sources = self.sources.model_inputs([source for source, _ in window])
            texts = target.encode_batch([text for _, text in window])
            lengths = [
                self.sources.rows(source) + len(text) + 1
                for source, text in zip(sources, texts, strict=True)
            ]
            yield from target_scores(self.models, sources, texts, target, lengths, room)

    def _all_work(
        self, all_sources: Iterable[list[Any]], wishes: Iterable[TextConstraints] | None, first: int
    ) -> Iterator[SourceWindow]:
        """Yield windows of source parts, and start background searches."""
        wanted = None if wishes is None else iter(wishes)
        for sources in all_sources:
            with self._timed():
                asked = next_constraints(wanted, len(sources), first)
                work = SourceWindow(sources, self.sources.parts(sources, asked, first))
                self.summary.sources += len(sources)
                if isinstance(self.searcher, BackgroundSearch):
                    flat = work.flat
                    work.pending_results = self.searcher.begin(
                        [part.model_input for part in flat],
                        [part.constraints.tokenize(self.target) for part in flat],
                    )
            first += len(sources)
            yield work

    def _done(
        self, work: SourceWindow, on_progress: OnProgress, before: int, total: int
    ) -> list[GenerationResult]:
        flat = work.flat
        found: dict[int, list[Output]] = {}
        for places, hypotheses in (
            self._in_batches(flat) if work.pending_results is None else work.pending_results
        ):
            parts = [flat[place] for place in places]
            found |= dict(zip(places, self._written(parts, hypotheses), strict=True))
            on_progress(before + len(work.sources) * len(found) // len(flat), total)
        results, place = [], 0
        for source, parts in zip(work.sources, work.parts, strict=True):
            of_parts = [found[place + number] for number in range(len(parts))]
            place += len(parts)
            results.append(self.sources.merge_parts(source, parts, of_parts))
        self.summary.unfinished += sum(not one.outputs[0].finished for one in results)
        return results

    def _in_batches(self, flat: Sequence[SourcePart]) -> Iterator[SearchedBatch]:
        rows = [self.sources.rows(part.model_input) for part in flat]
        for group in batches(rows, max(1, self.settings.batch_tokens // self.settings.width)):
            parts = [flat[place] for place in group]
            yield (
                group,
                self._search(parts, [part.constraints.tokenize(self.target) for part in parts]),
            )

    def _search(
        self, parts: Sequence[SourcePart], wishes: Sequence[TokenConstraints]
    ) -> list[list[Hypothesis]]:
        return self.searcher(
            [part.model_input for part in parts], wishes, [part.number for part in parts]
        )

    def _written(
        self, parts: Sequence[SourcePart], found: list[list[Hypothesis]]
    ) -> list[list[Output]]:
        for place, part in enumerate(parts):
            if part.constraints.banned:
                found[place] = self._without_banned(part, found[place])
        self.summary.tokens += sum(len(best.tokens) + best.finished for best, *_ in found)
        pairs = [(part, h) for part, of_part in zip(parts, found, strict=True) for h in of_part]
        with evaluating(self.models):
            seen = self._seen(pairs)
        outputs = iter([self._output(*pair, seen.get(place)) for place, pair in enumerate(pairs)])
        return [[next(outputs) for _ in of_part] for of_part in found]

    def _without_banned(self, part: SourcePart, found: list[Hypothesis]) -> list[Hypothesis]:
        """Repeat the search while an output spells a banned phrase with a tokenization that is not
        banned yet."""
        wish = part.constraints.tokenize(self.target)
        for _ in range(TRIES):
            more = [violated_bans(h.tokens, part.constraints.banned, self.target) for h in found]
            new = dict.fromkeys(phrase for phrases in more for phrase in phrases)
            if not new:
                return found
            wish = replace(wish, banned=(*wish.banned, *new))
            found = self._search([part], [wish])[0]
        return found

    @property
    def _copies(self) -> bool:
        return self.settings.unknown == "copy" and isinstance(self.sources, TextSources)

    def _seen(self, pairs: Sequence[tuple[SourcePart, Hypothesis]]) -> dict[int, Tensor]:
        """Return the cross-attention of the outputs that need it, keyed by their index in
        `pairs`."""
        asked = {
            place: pair
            for place, pair in enumerate(pairs)
            if self.align or (self._copies and self.target.unk in pair[1].tokens)
        }
        if not asked:
            return {}
        given, tokens = zip(
            *((part.model_input, h.tokens) for part, h in asked.values()), strict=True
        )
        return dict(zip(asked, self.attention(given, tokens, self.target.bos), strict=True))

    def _output(self, part: SourcePart, h: Hypothesis, attention_TS: Tensor | None) -> Output:
        target = self.target
        begins = int(
            target.target_begin is not None
        )  # skip the begin token, the same in every output
        tokens = h.tokens[begins:]
        unknown = target.tokens([target.unk]) * len(tokens)
        if attention_TS is not None:
            attention_TS = attention_TS[begins:]
            if self._copies and isinstance(self.sources, TextSources):
                unknown = self.sources.copied(part, len(tokens), attention_TS)
        output = Output(
            text=LINE_END.sub(" ", with_unknown(tokens, unknown, target)),
            score=h.score,
            log_prob=h.log_prob,
            tokens=target.tokens(tokens),
            token_log_probs=h.token_log_probs[begins:],
            finished=h.finished,
        )
        if attention_TS is None or not self.align:
            return output
        return self.sources.with_attention(output, part, tokens, attention_TS, target)


def with_unknown(tokens: Sequence[int], unknown: Sequence[str], target: Tokenizer) -> str:
    """Return the text of the tokens, with each unknown token replaced by the word at the same index
    of `unknown`."""
    if target.unk not in tokens:
        return target.decode(tokens)
    texts: list[str] = []
    known: list[int] = []
    for token, word in zip(tokens, unknown, strict=True):
        if token == target.unk:
            texts += [target.decode(known), word]
            known = []
        else:
            known.append(token)
    texts.append(target.decode(known))
    return " ".join(text.strip() for text in texts if text.strip())


ROWS = 1024
"""Maximum number of tokens whose logits over the vocabulary are in memory at a time."""


def target_scores(
    models: Sequence[Seq2Seq],
    sources: Sequence[object],
    targets: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    lengths: Sequence[int],
    room: int,
) -> list[TargetScore]:
    """Score each target given its source, in batches of similar length.

    `lengths`: lengths of the pairs in tokens. `room`: maximum number of tokens in a batch.
    """
    begin = [] if tokenizer.target_begin is None else [tokenizer.target_begin]
    found: dict[int, list[float]] = {}
    for group in batches(lengths, room):
        with evaluating(models):
            logs = token_log_probs(
                models,
                [sources[place] for place in group],
                [[*begin, *targets[place]] for place in group],
                bos=tokenizer.bos,
                eos=tokenizer.eos,
            )
        found |= dict(zip(group, logs, strict=True))
    # The begin token is the same in every output, so it is not scored.
    of_tokens = [found[place][len(begin) :] for place in range(len(targets))]
    return [TargetScore(sum(logs), logs) for logs in of_tokens]


@torch.no_grad()
def token_log_probs(
    models: Sequence[Seq2Seq],
    sources: Sequence[Any],
    targets: Sequence[Sequence[int]],
    *,
    bos: int,
    eos: int,
) -> list[list[float]]:
    """Return the log-probabilities of the tokens of each target and of its end token.

    Text sources must already contain their end token. An ensemble averages probabilities.
    """
    lengths = [len(target) + 1 for target in targets]
    inputs = [token for target in targets for token in (bos, *target)]
    labels_N = torch.tensor([token for target in targets for token in (*target, eos)])
    of_models = [
        _given(model, sources, torch.tensor(inputs), lengths, labels_N) for model in models
    ]
    total_N = torch.stack(of_models).double().logsumexp(0) - torch.tensor(len(models)).log()
    return [part.tolist() for part in total_N.split(lengths)]


def _given(
    model: Seq2Seq,
    sources: Sequence[Any],
    inputs_N: Tensor,
    lengths: list[int],
    labels_N: Tensor,
) -> Tensor:
    device = next(model.parameters()).device
    given, layout = model.source_front.collate(sources, device)
    x_ND = model(given, layout, inputs_N.to(device), Layout.of(lengths, device))
    found = []
    for x_RD, labels_R in zip(x_ND.split(ROWS), labels_N.to(device).split(ROWS), strict=True):
        logs_RV = model.scores(x_RD).float().log_softmax(-1)
        found.append(logs_RV.gather(1, labels_R[:, None]).squeeze(1))
    return torch.cat(found).cpu()
