"""Text in, text out: a translator made of one model or several."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from headway.decode.align import Attention, attention_of
from headway.decode.batching import LAST_WINDOW, batches, live_windows, one_ahead, windows
from headway.decode.engine import AheadSearch, Batch, Engine, SourceSearch
from headway.decode.long_input import Cutter, OnLong, Part, translation_of
from headway.decode.outputs import Writer
from headway.decode.recent import Recent
from headway.decode.score import target_scores
from headway.decode.search.fixed_models import learned
from headway.decode.search.hypothesis import NO_WISH, Hypothesis, Wish
from headway.decode.search.phrases import banned_phrases, broken_bans
from headway.decode.search.search import Searcher, Specials, evaluating
from headway.decode.translation import Output, Score, Summary, TextWish, Translation
from headway.decode.work import NOTHING, Work, next_wishes
from headway.models.seq2seq import Seq2Seq
from headway.nn.linear import packed
from headway.progress import OnProgress, unheard
from headway.settings.decode import DecodeSettings
from headway.settings.listed import listed
from headway.tokens.tokenizer import Vocabularies

__all__ = ["OnLong", "Output", "Score", "Summary", "TextWish", "Translation", "Translator"]

MAX_LEN = 256
"""Source tokens of a line that is translated whole, where no run says otherwise."""

TRIES = 20
"""Searches for an output without the banned words; each bans one more way to write them."""


class Translator:
    """Translates lines in batches sorted by length; what comes out has the order of the input."""

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        vocab: Vocabularies,
        settings: DecodeSettings = DecodeSettings(),
        *,
        device: torch.device | str | None = None,
        max_len: int = MAX_LEN,
        on_long: OnLong = "split",
        align: bool = False,
        detail: bool = False,
        engine: Engine | None = None,
        recent: Recent | None = None,
    ) -> None:
        """Several models are an ensemble. A line of more than `max_len` tokens is too long.

        An `engine` translates without any of our models; `detail` is what it is asked for.
        `recent`: where searches of these models are kept for the next translator.
        """
        recent = Recent() if recent is None else recent
        self.models = [model if device is None else model.to(device) for model in models]
        self.vocab, self.settings = vocab, settings
        self.summary = Summary()
        specials = Specials.of(vocab.target)
        attention: Attention
        self.searcher: SourceSearch
        if engine is None:
            self.searcher = recent(
                ("translate", settings, specials),
                lambda: Searcher(self.models, settings, specials),
            )
            attention = partial(attention_of, self.models[0])
        else:
            self.searcher = engine.searcher(settings, specials, detail=detail)
            attention = engine.attention
        ends = [learned(model.source_front) for model in self.models]
        ends += [] if engine is None else [engine.reach]
        n_more = len(vocab.source.as_source([]))
        room = min([max_len, *(end - n_more for end in ends if end is not None)])
        self.cutter = Cutter(vocab.source, room, on_long, self.summary)
        self.writer = Writer(attention, vocab, align, settings.unknown == "copy")

    def translate(
        self,
        lines: Iterable[str],
        wishes: Iterable[TextWish] | None = None,
        *,
        live: bool = False,
        on_progress: OnProgress = unheard,
    ) -> Iterator[Translation]:
        """One translation a line, in order, and none is missing: an empty line stays empty.

        `live`: what was read is translated at once where the next line keeps one waiting.
        `on_progress` hears of lines that are done before they can be given out: those of a window
        come together. The number of all is known only where `lines` has a length.
        """
        lines = listed(lines)
        if live:
            all_work = self._all_work(live_windows(lines), wishes)
        elif isinstance(self.searcher, AheadSearch):  # it is there for speed: whole windows at once
            all_work = one_ahead(self._all_work(windows(lines, LAST_WINDOW), wishes))
        else:
            all_work = self._all_work(windows(lines), wishes)
        given = len(lines) if isinstance(lines, Sized) else 0
        before = 0
        with packed(self.models):
            for work in all_work:
                total = max(given, before + len(work.lines))
                with self._timed():
                    found = self._done(work, on_progress, before, total)
                yield from found
                before += len(work.lines)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.summary.seconds += time.perf_counter() - start

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Score]:
        """The log-probability of each target given its source, in order."""
        source, target = self.vocab.source, self.vocab.target
        if isinstance(pairs, tuple) and len(pairs) == 2 and isinstance(pairs[0], str):
            pairs = [pairs]  # one pair, and not two words of two letters
        for window in windows(pairs):
            sources = [source.as_source(i) for i in source.encode_batch([a for a, _ in window])]
            targets = target.encode_batch([b for _, b in window])
            lengths = [len(a) + len(b) + 1 for a, b in zip(sources, targets, strict=True)]
            room = self.settings.batch_tokens
            yield from target_scores(self.models, sources, targets, target, lengths, room)

    def _all_work(
        self, all_lines: Iterable[list[str]], wishes: Iterable[TextWish] | None
    ) -> Iterator[Work]:
        """Windows cut into parts, and begun where the search works ahead."""
        wanted = None if wishes is None else iter(wishes)
        first = 0
        for lines in all_lines:
            with self._timed():
                asked = next_wishes(wanted, len(lines), first)
                work = Work(lines, self.cutter.parts(lines, asked, first))
                if isinstance(self.searcher, AheadSearch):
                    flat = work.flat
                    work.begun = self.searcher.begin(
                        [self._source(part) for part in flat],
                        [self._wish(part.wish) for part in flat],
                    )
            first += len(lines)
            yield work

    def _done(
        self, work: Work, on_progress: OnProgress, before: int, total: int
    ) -> list[Translation]:
        flat = work.flat
        found: dict[int, list[Output]] = {}
        for places, hypotheses in self._in_batches(flat) if work.begun is None else work.begun:
            parts = [flat[place] for place in places]
            found |= dict(zip(places, self._written(parts, hypotheses), strict=True))
            on_progress(before + len(work.lines) * len(found) // len(flat), total)
        results, place = [], 0
        for line, of_line in zip(work.lines, work.parts, strict=True):
            of_parts = [found[place + number] for number in range(len(of_line))]
            place += len(of_line)
            results.append(translation_of(line, of_line, of_parts))
        self.summary.unfinished += sum(not found.outputs[0].finished for found in results)
        return results

    def _in_batches(self, flat: Sequence[Part]) -> Iterator[Batch]:
        width = self.settings.n_best if self.settings.sample else self.settings.beam
        room = max(1, self.settings.batch_tokens // width)
        for group in batches([len(self._source(part)) for part in flat], room):
            parts = [flat[place] for place in group]
            yield group, self._search(parts, [self._wish(part.wish) for part in parts])

    def _written(self, parts: Sequence[Part], found: list[list[Hypothesis]]) -> list[list[Output]]:
        for place, part in enumerate(parts):
            if part.wish.banned:
                wish = self._wish(part.wish)
                found[place] = self._without_banned(part, wish, found[place])
        best = [of_part[0] for of_part in found]
        self.summary.tokens += sum(len(h.tokens) + h.finished for h in best)
        with evaluating(self.models):
            return self.writer.write(parts, found)

    def _without_banned(self, part: Part, wish: Wish, found: list[Hypothesis]) -> list[Hypothesis]:
        """Search again until no output writes a banned phrase in a way that was not foreseen."""
        for _ in range(TRIES):
            target = self.vocab.target
            more = [broken_bans(h.tokens, part.wish.banned, target) for h in found]
            new = dict.fromkeys(phrase for phrases in more for phrase in phrases)
            if not new:
                return found
            wish = replace(wish, banned=(*wish.banned, *new))
            found = self._search([part], [wish])[0]
        return found

    def _search(self, parts: Sequence[Part], wishes: Sequence[Wish]) -> list[list[Hypothesis]]:
        return self.searcher(
            [self._source(part) for part in parts],
            wishes,
            [(part.line, part.number) for part in parts],
        )

    def _source(self, part: Part) -> list[int]:
        return self.vocab.source.as_source(part.ids)

    def _wish(self, wish: TextWish) -> Wish:
        if wish == NOTHING:
            return NO_WISH
        target = self.vocab.target
        phrases = [tuple(target.encode(phrase)) for phrase in wish.required]
        return Wish(
            prefix=tuple(target.encode(wish.prefix)) if wish.prefix else (),
            required=tuple(phrase for phrase in phrases if phrase),
            banned=banned_phrases(wish.banned, target),
        )
