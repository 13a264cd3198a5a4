"""Speech recognition of one window of audio, with the encoder positions of each token.

A model with a decoder generates the tokens, jointly with CTC if it has a CTC head. An encoder with
only a CTC head is decoded position by position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.decode.align import read_targets
from headway.decode.logits_processors import NO_CONSTRAINTS, SpecialTokens
from headway.decode.search.beam import beam_search
from headway.decode.search.job import Hypothesis, Job
from headway.decode.search.searcher import Searcher
from headway.decode.speech.ctc import CtcSteps, JointSearcher, RowRanges, best_path, ctc_alignment
from headway.decode.speech.word_times import alignment_heads, token_rows
from headway.models.audio import AudioEncoder
from headway.models.parts.audio import AudioFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import PrefixScorer
from headway.nn.eval_mode import evaluating
from headway.nn.layout import Layout
from headway.settings.audio import AudioSettings
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

DRAWS = 5
"""Number of outputs that are sampled at each temperature. The most probable one is kept."""

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures tried in order if the output of the search is doubtful."""

NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
"""Names of Whisper's token for a window without speech. The probability that it comes first is the
probability of silence."""


class WindowAlignment(NamedTuple):
    """Alignment of the transcript of a window with the audio, from a second pass over the
    window."""

    rows: RowRanges
    """Range of encoder positions of each token."""

    no_speech: float | None = None
    """Probability of the no-speech token; None for models without this token."""


class Recognizer(ABC):
    temperatures: Sequence[float] = ()
    """Temperatures at which `retry` transcribes a doubtful window, in order."""

    @abstractmethod
    def recognize(self, waves: Sequence[Any]) -> list[Hypothesis]:
        """Return one transcript for each window."""

    @abstractmethod
    def ctc_log_probs(self, waves: Sequence[Any]) -> list[Tensor]:
        """Return the CTC log-probabilities of each symbol at each position. Only models with a CTC
        head support this."""

    def retry(self, waves: Sequence[Any], temperature: float) -> list[Hypothesis]:
        """Transcribe a doubtful window in another way. The default is CTC alone, which cannot
        produce repetition loops."""
        return [best_path(logs_SV) for logs_SV in self.ctc_log_probs(waves)]

    def align(self, waves: Sequence[Any], texts: Sequence[Sequence[int]]) -> list[WindowAlignment]:
        """Return the CTC forced alignment of each transcript's tokens to the audio."""
        pairs = zip(self.ctc_log_probs(waves), texts, strict=True)
        return [WindowAlignment(ctc_alignment(logs_SV, text)) for logs_SV, text in pairs]

    def no_speech(self, wave: Any) -> float | None:
        """Return the probability of the no-speech token, or None for models without this token."""
        return None


class CtcRecognizer(Recognizer):
    """Recognizer of an encoder with a CTC head. Its outputs cannot be longer than the number of
    positions, so repetition loops are impossible."""

    def __init__(self, model: AudioEncoder, tokenizer: Tokenizer, settings: DecodeSettings) -> None:
        self.model, self.settings = model, settings
        self.specials = SpecialTokens.of(tokenizer)

    def recognize(self, waves: Sequence[Any]) -> list[Hypothesis]:
        logs = self.ctc_log_probs(waves)
        if self.settings.beam == 1:
            return [best_path(logs_SV) for logs_SV in logs]
        lengths = [len(logs_SV) for logs_SV in logs]
        job = Job.of(self.settings, self.specials, lengths, [NO_CONSTRAINTS] * len(logs), None)
        rows, blank = Layout.of(lengths, logs[0].device), logs[0].shape[1] - 1
        scorer = PrefixScorer(torch.cat(logs), rows, blank, self.specials.eos)
        steps = CtcSteps(scorer, len(logs), self.settings.beam)
        return [found[0] for found in beam_search(steps, job)]

    @torch.no_grad()
    def ctc_log_probs(self, waves: Sequence[Any]) -> list[Tensor]:
        device = next(self.model.parameters()).device
        with evaluating([self.model]):
            front = self.model.front
            assert isinstance(front, AudioFront)
            audio, layout = front.collate(waves, device)
            x_ND = self.model(audio, layout)
            return layout.split(self.model.ctc(x_ND).float().log_softmax(-1))


class DecoderRecognizer(Recognizer):
    """Recognizer of an encoder-decoder.

    `weight`: weight of CTC in joint decoding; 0 for encoders without a CTC head. Subclasses for
    other runtimes override the methods that call the model: `search`, `attention`, `first_logits`
    and `ctc`.
    """

    def __init__(
        self, model: Seq2Seq, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
    ) -> None:
        self.model = model
        front = model.source_front
        assert isinstance(front, AudioFront)
        self.prepare(tokenizer, settings, front.shape, weight, has_ctc=model.ctc is not None)

    def prepare(
        self,
        tokenizer: Tokenizer,
        settings: DecodeSettings,
        shape: AudioSettings,
        weight: float,
        *,
        has_ctc: bool,
    ) -> None:
        self.tokenizer, self.settings, self.shape = tokenizer, settings, shape
        self.has_ctc, self.weight = has_ctc, weight if has_ctc else 0.0
        self.specials = SpecialTokens.of(tokenizer)
        self.searcher = self.search(settings, self.weight)
        begin = self.specials.target_begin
        self.begin = [] if begin is None else [begin]
        self.temperatures = (0.0,) if has_ctc else TEMPERATURES

    def search(self, settings: DecodeSettings, weight: float) -> Searcher:
        return JointSearcher(self.model, settings, self.specials, weight)

    def recognize(self, waves: Sequence[Any]) -> list[Hypothesis]:
        return [self._without_begin(found[0]) for found in self.searcher(waves)]

    def retry(self, waves: Sequence[Any], temperature: float) -> list[Hypothesis]:
        """Transcribe with CTC. Models without a CTC head sample at a temperature instead, as
        Whisper does.

        The samples of a window do not depend on other windows.
        """
        if self.has_ctc:
            return super().retry(waves, temperature)
        drawing = replace(
            self.settings, sample=True, temperature=temperature, n_best=DRAWS, beam=DRAWS, groups=1
        )
        searcher = self.search(drawing, 0.0)
        found = searcher(waves, numbers=[[0]] * len(waves))
        return [self._without_begin(of_window[0]) for of_window in found]

    def align(self, waves: Sequence[Any], texts: Sequence[Sequence[int]]) -> list[WindowAlignment]:
        if self.has_ctc:
            pairs = zip(super().align(waves, texts), waves, strict=True)
            return [found._replace(no_speech=self.no_speech(wave)) for found, wave in pairs]
        readings = []
        attention, first = self.attention(waves, texts)
        for wave, of_heads_HTS, first_V in zip(waves, attention, first, strict=True):
            real = self.real_rows(wave)
            of_heads_HTS = of_heads_HTS[:, :, :real]
            heads, _ = alignment_heads([of_heads_HTS.numpy()])
            rows = token_rows(of_heads_HTS[heads].numpy())[:-1]
            readings.append(WindowAlignment(rows, self._no_speech_in(first_V)))
        return readings

    def real_rows(self, wave: Any) -> int:
        """Return the number of encoder positions of the audio, excluding padding of the window."""
        return replace(self.shape, pad_s=0.0).rows_of(len(wave))

    def attention(
        self, waves: Sequence[Any], texts: Sequence[Sequence[int]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the cross-attention of the last layer's heads, for every token and the end token,
        and the logits of the first token."""
        inputs = [[self.specials.bos, *self.begin, *text] for text in texts]
        last = len(self.model.decoder.blocks) - 1  # type: ignore[arg-type]
        with evaluating([self.model]):
            found, first = read_targets(self.model, waves, inputs, last)
        return [weights_HTS[:, len(self.begin) :].float() for weights_HTS in found], first

    def no_speech(self, wave: Any) -> float | None:
        return None if self.no_speech_id is None else self._no_speech_in(self.first_logits(wave))

    def _no_speech_in(self, first_V: Tensor) -> float | None:
        token = self.no_speech_id
        return None if token is None else float(first_V.softmax(-1)[token])

    @property
    def no_speech_id(self) -> int | None:
        ids = map(self.tokenizer.special, NO_SPEECH)
        return next((token for token in ids if token is not None), None)

    @torch.no_grad()
    def first_logits(self, wave: Any) -> Tensor:
        """Return the logits of the first output token (V)."""
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

    def ctc_log_probs(self, waves: Sequence[Any]) -> list[Tensor]:
        pairs = zip(self.ctc(waves), waves, strict=True)
        return [logs_SV[: self.real_rows(wave)] for logs_SV, wave in pairs]

    @torch.no_grad()
    def ctc(self, waves: Sequence[Any]) -> list[Tensor]:
        """Return the CTC log-probabilities at each position, as `ctc_log_probs` does, but including
        the padding of windows."""
        head = self.model.ctc
        assert head is not None
        device = next(self.model.parameters()).device
        with evaluating([self.model]):
            audio, layout = self.model.source_front.collate(waves, device)
            memory = self.model.encode(audio, layout)
            return layout.split(head(memory.x_MD).float().log_softmax(-1))


def recognizer_of(
    model: nn.Module, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
) -> Recognizer:
    if isinstance(model, Seq2Seq):
        return DecoderRecognizer(model, tokenizer, settings, weight)
    assert isinstance(model, AudioEncoder)
    return CtcRecognizer(model, tokenizer, settings)
