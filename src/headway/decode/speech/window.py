"""From the sound of one window to tokens, and to the rows where each was said.

Two ways: a model with a decoder writes, with CTC as a second opinion where it has that; an encoder
with CTC alone is read off row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headway.decode.search.beam import beam_search
from headway.decode.search.hypothesis import NO_WISH, Hypothesis, Specials
from headway.decode.search.job import Job
from headway.decode.search.searcher import Searcher
from headway.decode.speech.ctc import CtcSteps, JointSearcher
from headway.decode.speech.guards import TEMPERATURES
from headway.decode.speech.word_times import alignment_heads, token_rows
from headway.models.audio import Listener
from headway.models.parts.audio import SoundFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import PrefixScorer, align
from headway.nn.evaluating import evaluating
from headway.nn.layout import Layout
from headway.nn.tap import record
from headway.settings.audio import SoundSettings
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

Rows = list[tuple[int, int]]
"""The first row of each token and the one behind its last."""

DRAWS = 5
"""Outputs drawn at a temperature, of which the likeliest counts."""

NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
"""What Whisper says at once of a window without speech."""


class Speller(Protocol):
    @property
    def temperatures(self) -> Sequence[float]:
        """At which `again` is tried, one after another, where an output is doubtful."""
        ...

    def spell(self, waves: Sequence[Any]) -> list[Hypothesis]:
        """What is said in each of the windows."""
        ...

    def again(self, waves: Sequence[Any], temperature: float) -> list[Hypothesis]:
        """The same in another way."""
        ...

    def rows(self, waves: Sequence[Any], texts: Sequence[Sequence[int]]) -> list[Rows]:
        """Where the tokens are said."""
        ...

    def silence(self, wave: Any) -> float:
        """The probability that nobody speaks, of models that know."""
        ...


class CtcSpeller:
    """An encoder whose every row says a token or nothing. It cannot loop: there are rows to say."""

    temperatures: Sequence[float] = ()

    def __init__(self, model: Listener, tokenizer: Tokenizer, settings: DecodeSettings) -> None:
        self.model, self.settings = model, settings
        self.specials = Specials.of(tokenizer)

    def spell(self, waves: Sequence[Any]) -> list[Hypothesis]:
        logs = self._logs(waves)
        if self.settings.beam == 1:
            return [best_path(logs_SV) for logs_SV in logs]
        job = Job.of(self.settings, self.specials, [len(x) for x in logs], [NO_WISH] * len(logs),
                     None)  # fmt: skip
        lengths = Layout.of([len(logs_SV) for logs_SV in logs], logs[0].device)
        blank = logs[0].shape[1] - 1
        scorer = PrefixScorer(torch.cat(logs), lengths, blank, self.specials.eos)
        steps = CtcSteps(scorer, len(logs), self.settings.beam)
        return [found[0] for found in beam_search(steps, job)]

    def again(self, waves: Sequence[Any], temperature: float) -> list[Hypothesis]:
        raise NotImplementedError

    def rows(self, waves: Sequence[Any], texts: Sequence[Sequence[int]]) -> list[Rows]:
        pairs = zip(self._logs(waves), texts, strict=True)
        return [_aligned(logs_SV, text) for logs_SV, text in pairs]

    def silence(self, wave: Any) -> float:
        return 0.0

    @torch.no_grad()
    def _logs(self, waves: Sequence[Any]) -> list[Tensor]:
        device = next(self.model.parameters()).device
        with evaluating([self.model]):
            front = self.model.front
            assert isinstance(front, SoundFront)
            sound, layout = front.collate(waves, device)
            x_ND = self.model(sound, layout)
            return layout.split(self.model.ctc(x_ND).float().log_softmax(-1))


class DecoderSpeller:
    """An encoder and a decoder; `weight` is that of CTC, 0 where the encoder has none.

    Another runtime overrides what asks the model: `search`, `attention`, `first` and `heard`.
    """

    def __init__(
        self, model: Seq2Seq, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
    ) -> None:
        self.model = model
        front = model.source_front
        assert isinstance(front, SoundFront)
        self.prepare(tokenizer, settings, front.shape, weight, has_ctc=model.ctc is not None)

    def prepare(
        self,
        tokenizer: Tokenizer,
        settings: DecodeSettings,
        shape: SoundSettings,
        weight: float,
        *,
        has_ctc: bool,
    ) -> None:
        self.tokenizer, self.settings, self.shape = tokenizer, settings, shape
        self.has_ctc, self.weight = has_ctc, weight if has_ctc else 0.0
        self.specials = Specials.of(tokenizer)
        self.searcher = self.search(settings, self.weight)
        begin = self.specials.target_begin
        self.begin = [] if begin is None else [begin]
        self.temperatures = (0.0,) if has_ctc else TEMPERATURES

    def search(self, settings: DecodeSettings, weight: float) -> Searcher:
        return JointSearcher(self.model, settings, self.specials, weight)

    def spell(self, waves: Sequence[Any]) -> list[Hypothesis]:
        return [self._without_begin(found[0]) for found in self.searcher(waves)]

    def again(self, waves: Sequence[Any], temperature: float) -> list[Hypothesis]:
        """By CTC alone, which cannot loop, or else drawn at a temperature, as Whisper does.

        What is drawn for a window does not depend on the others."""
        if self.has_ctc:
            return [best_path(logs_SV) for logs_SV in self._logs(waves)]
        drawing = replace(
            self.settings, sample=True, temperature=temperature, n_best=DRAWS, beam=DRAWS, groups=1
        )
        searcher = self.search(drawing, 0.0)
        found = searcher(waves, numbers=[[0]] * len(waves))
        return [self._without_begin(of_window[0]) for of_window in found]

    def rows(self, waves: Sequence[Any], texts: Sequence[Sequence[int]]) -> list[Rows]:
        if self.has_ctc:
            pairs = zip(self._logs(waves), texts, strict=True)
            return [_aligned(logs_SV, text) for logs_SV, text in pairs]
        found = []
        for wave, of_heads_HTS in zip(waves, self.attention(waves, texts), strict=True):
            real = self.real_rows(wave)
            of_heads_HTS = of_heads_HTS[:, :, :real]
            heads, _ = alignment_heads([of_heads_HTS.numpy()])
            found.append(token_rows(of_heads_HTS[heads].numpy())[:-1])
        return found

    def real_rows(self, wave: Any) -> int:
        """Without the silence that windows are filled up with."""
        return replace(self.shape, pad_s=0.0).rows_of(len(wave))

    @torch.no_grad()
    def attention(self, waves: Sequence[Any], texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """What every token and the end attend to in the sound, by the heads of the last layer."""
        device = next(self.model.parameters()).device
        inputs = [[self.specials.bos, *self.begin, *text] for text in texts]
        last = len(self.model.decoder.blocks) - 1  # type: ignore[arg-type]
        name = f"decoder.blocks.{last}.cross.weights"
        with evaluating([self.model]), record(self.model, name) as seen:
            self.model(
                *self.model.source_front.collate(waves, device),
                *self.model.target_front.collate(inputs, device),
            )
        first = len(self.begin)
        return [weights_HTS[:, first:].float().cpu() for weights_HTS in seen[name][0]]

    def silence(self, wave: Any) -> float:
        ids = [i for i in map(self.tokenizer.special, NO_SPEECH) if i is not None]
        return float(self.first(wave).softmax(-1)[ids[0]]) if ids else 0.0

    @torch.no_grad()
    def first(self, wave: Any) -> Tensor:
        """Scores of the first token (V)."""
        device = next(self.model.parameters()).device
        with evaluating([self.model]):
            x_ND = self.model(
                *self.model.source_front.collate([wave], device),
                torch.tensor([self.specials.bos], device=device),
                Layout.of([1], device),
            )
        return self.model.scores(x_ND).float()[0]

    def _without_begin(self, found: Hypothesis) -> Hypothesis:
        n = len(self.begin)
        if not n or found.tokens[:n] != self.begin:
            return found
        return replace(found, tokens=found.tokens[n:], token_log_probs=found.token_log_probs[n:])

    def _logs(self, waves: Sequence[Any]) -> list[Tensor]:
        reals = [self.real_rows(wave) for wave in waves]
        return [logs_SV[:n] for logs_SV, n in zip(self.heard(waves), reals, strict=True)]

    @torch.no_grad()
    def heard(self, waves: Sequence[Any]) -> list[Tensor]:
        """log P of each symbol in each row, by CTC."""
        head = self.model.ctc
        assert head is not None
        device = next(self.model.parameters()).device
        with evaluating([self.model]):
            sound, layout = self.model.source_front.collate(waves, device)
            memory = self.model.encode(sound, layout)
            return layout.split(head(memory.x_MD).float().log_softmax(-1))


def speller(
    model: nn.Module, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
) -> Speller:
    if isinstance(model, Seq2Seq):
        return DecoderSpeller(model, tokenizer, settings, weight)
    assert isinstance(model, Listener)
    return CtcSpeller(model, tokenizer, settings)


def best_path(logs_SV: Tensor) -> Hypothesis:
    """The likeliest token of every row, repeats and blanks taken out."""
    best_S, token_S = logs_SV.max(-1)
    blank = logs_SV.shape[1] - 1
    tokens: list[int] = []
    log_probs: list[float] = []
    before = blank
    for token, log_prob in zip(token_S.tolist(), best_S.tolist(), strict=True):
        if token != before and token != blank:
            tokens.append(token)
            log_probs.append(log_prob)
        elif token != blank:
            log_probs[-1] = max(log_probs[-1], log_prob)
        before = token
    total = sum(log_probs)
    return Hypothesis(tokens, total, total, log_probs, finished=True)


def _aligned(logs_SV: Tensor, tokens: Sequence[int]) -> Rows:
    found = align(logs_SV, tokens, logs_SV.shape[1] - 1)
    if found is None:  # more tokens than rows, which only a decoder can write
        step = len(logs_SV) / max(1, len(tokens))
        return [(int(i * step), int((i + 1) * step)) for i in range(len(tokens))]
    return [(first, last + 1) for first, last in zip(found.first, found.last, strict=True)]
