"""Text in, text out: a translator made of one model or several."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from headway.config.decode import DecodeSettings
from headway.decode.hypothesis import Hypothesis, Wish
from headway.decode.lines import batches, live_windows, windows
from headway.decode.outputs import Writer
from headway.decode.parts import Cutter, OnLong, Part
from headway.decode.phrases import banned_phrases, broken_bans
from headway.decode.precision import hold_in
from headway.decode.runs import load_runs
from headway.decode.score import token_log_probs
from headway.decode.search import Searcher, Specials, evaluating
from headway.decode.translation import Output, Score, Summary, TextWish, Translation, joined
from headway.errors import UserError
from headway.models.seq2seq import Seq2Seq
from headway.nn.linear import pack, packed
from headway.text.tokenizer import Vocabularies

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
    ) -> None:
        """Several models are an ensemble. A line of more than `max_len` tokens is too long."""
        self.models = [model if device is None else model.to(device) for model in models]
        self.vocab, self.settings = vocab, settings
        self.summary = Summary()
        target = vocab.target
        specials = Specials(target.bos, target.eos, target.unk)
        self.searcher = Searcher(self.models, settings, specials)
        self.cutter = Cutter(vocab.source, max_len, on_long, self.summary)
        self.writer = Writer(self.models[0], vocab, align, settings.unknown == "copy")

    @classmethod
    def load(
        cls,
        folders: Sequence[Path],
        settings: DecodeSettings | None = None,
        *,
        device: torch.device | str = "cpu",
        on_long: OnLong = "split",
        align: bool = False,
    ) -> Translator:
        """The models of run folders; how they decode is what the first says, if not given."""
        runs = load_runs(folders, device)
        settings = runs.settings[0].decode if settings is None else settings
        for model in runs.models:
            hold_in(model, settings.precision)
            pack(model)  # no one trains these
        return cls(
            runs.models,
            runs.vocab,
            settings,
            max_len=min(run.data.max_len for run in runs.settings),
            on_long=on_long,
            align=align,
        )

    def translate(
        self,
        lines: Iterable[str],
        wishes: Iterable[TextWish] | None = None,
        *,
        live: bool = False,
    ) -> Iterator[Translation]:
        """One translation a line, in order, and none is missing: an empty line stays empty.

        `live`: what was read is translated at once where the next line keeps one waiting.
        """
        wanted = None if wishes is None else iter(wishes)
        first = 0
        with packed(self.models):
            for window in live_windows(lines) if live else windows(lines):
                start = time.perf_counter()
                found = self._window(window, _next_wishes(wanted, len(window), first), first)
                first += len(window)
                self.summary.seconds += time.perf_counter() - start
                yield from found

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Score]:
        """The log-probability of each target given its source, in order."""
        source, target = self.vocab.source, self.vocab.target
        for window in windows(pairs):
            sources = [[*ids, source.eos] for ids in source.encode_batch([a for a, _ in window])]
            targets = target.encode_batch([b for _, b in window])
            lengths = [len(a) + len(b) + 1 for a, b in zip(sources, targets, strict=True)]
            found: dict[int, list[float]] = {}
            for group in batches(lengths, self.settings.batch_tokens):
                with evaluating(self.models):
                    logs = token_log_probs(
                        self.models,
                        [sources[i] for i in group],
                        [targets[i] for i in group],
                        bos=target.bos,
                        eos=target.eos,
                    )
                found |= dict(zip(group, logs, strict=True))
            for place in range(len(window)):
                yield Score(sum(found[place]), found[place])

    def _window(
        self, lines: Sequence[str], wishes: Sequence[TextWish], first: int
    ) -> list[Translation]:
        parts = self.cutter.parts(lines, wishes, first)
        flat = [part for of_line in parts for part in of_line]
        width = self.settings.n_best if self.settings.sample else self.settings.beam
        found: dict[int, list[Output]] = {}
        room = max(1, self.settings.batch_tokens // width)
        for group in batches([len(part.ids) + 1 for part in flat], room):
            outputs = self._batch([flat[place] for place in group])
            found |= dict(zip(group, outputs, strict=True))
        results, place = [], 0
        for line, of_line in zip(lines, parts, strict=True):
            of_parts = [found[place + number] for number in range(len(of_line))]
            place += len(of_line)
            results.append(_translation(line, of_line, of_parts))
        self.summary.unfinished += sum(not found.outputs[0].finished for found in results)
        return results

    def _batch(self, parts: Sequence[Part]) -> list[list[Output]]:
        wishes = [self._wish(part.wish) for part in parts]
        found = self._search(parts, wishes)
        for place, part in enumerate(parts):
            if part.wish.banned:
                found[place] = self._without_banned(part, wishes[place], found[place])
        self.summary.tokens += sum(len(of_part[0].token_log_probs) for of_part in found)
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
        eos = self.vocab.source.eos
        return self.searcher(
            [[*part.ids, eos] for part in parts],
            wishes,
            [(part.line, part.number) for part in parts],
        )

    def _wish(self, wish: TextWish) -> Wish:
        target = self.vocab.target
        phrases = [tuple(target.encode(phrase)) for phrase in wish.required]
        return Wish(
            prefix=tuple(target.encode(wish.prefix)) if wish.prefix else (),
            required=tuple(phrase for phrase in phrases if phrase),
            banned=banned_phrases(wish.banned, target),
        )


def _next_wishes(wishes: Iterator[TextWish] | None, n_lines: int, first: int) -> list[TextWish]:
    if wishes is None:
        return [TextWish()] * n_lines
    found = list(islice(wishes, n_lines))
    if len(found) < n_lines:
        raise UserError(
            f"prefixes or constraints are given for {first + len(found):,} lines, but there are "
            "more lines than that. Give one for each, empty where nothing is asked."
        )
    return found


def _translation(
    line: str, parts: Sequence[Part], found: Sequence[Sequence[Output]]
) -> Translation:
    if not parts:
        return Translation(line, [Output("")])
    # A part may have found fewer outputs than another: its last one then stands in.
    n_best = max(len(outputs) for outputs in found)
    words = [len(part.text.split()) for part in parts]
    ranked = [
        joined([outputs[min(n, len(outputs) - 1)] for outputs in found], words)
        for n in range(n_best)
    ]
    return Translation(line, ranked, len(parts), parts[0].cut)
