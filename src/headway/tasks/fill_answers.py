"""Predictor that fills the gaps in lines of text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.decode.batching import batches, windows
from headway.errors import DataError, FolderError
from headway.models.encoder import Encoder
from headway.models.parts.output_heads import ModelInput
from headway.nn.layout import Layout
from headway.progress import OnProgress, no_progress
from headway.settings.model import EncoderSettings
from headway.tasks.answers import GapAnswer, TokenGuess, mean_probability
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.masked_text import ENDS, room_of
from headway.tasks.readout import EachRow
from headway.tasks.task import InferenceRequest
from headway.tokens.tokenizer import MASK_NAMES, Tokenizer

GAP = re.compile("|".join(map(re.escape, MASK_NAMES)))


@dataclass(frozen=True)
class Gapped:
    """Tokenized line of text with gaps, and the token indices of the gaps."""

    line: str
    tokens: list[int]
    gaps: list[int]

    def windows(self, room: int) -> list[tuple[list[int], list[int]]]:
        """Return the tokens and the gaps of each window. A line of up to `room` tokens is one
        window. A longer line has one window per gap, with the gap near the middle."""
        if len(self.tokens) <= room:
            return [(self.tokens, self.gaps)]
        parts = []
        for gap in self.gaps:
            first = min(max(0, gap - room // 2), len(self.tokens) - room)
            parts.append((self.tokens[first : first + room], [gap - first]))
        return parts


class MaskedLMPredictor:
    """Predictor of the most likely words for each gap. An ensemble averages the probabilities of
    its models."""

    def __init__(
        self,
        models: Sequence[Encoder],
        tokenizer: Tokenizer,
        room: int,
        *,
        n_best: int = 1,
        batch_tokens: int = 4096,
        on_long: str = "split",
        device: torch.device | str = "cpu",
        between: OnProgress = no_progress,
    ) -> None:
        self.models, self.tokenizer, self.room = models, tokenizer, room
        self.n_best, self.batch_tokens, self.on_long = n_best, batch_tokens, on_long
        self.device, self.between = torch.device(device), between
        self.lines = self.gaps = 0
        banned = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
        banned[list(tokenizer.specials)] = True
        self.banned_V = banned.to(self.device)

    @classmethod
    def of(cls, use: InferenceRequest) -> MaskedLMPredictor:
        opened, settings = use.opened, use.settings
        return cls(
            fillers(opened),
            opened.vocab.target,
            min(room_of(run.fill, run.model.max_len) for run in opened.runs),
            n_best=settings.decode.n_best,
            batch_tokens=settings.decode.batch_tokens,
            on_long=settings.data.on_long,
            device=opened.device,
            between=use.between,
        )

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[GapAnswer]:
        for window in windows(lines, live=live):
            texts = []
            for line in window:
                self.lines += 1
                texts.append(self.read(line, f"line {self.lines}"))
            yield from self._answer_texts(texts)

    def summary(self) -> str:
        gaps, lines = ("s" * (n != 1) for n in (self.gaps, self.lines))
        return f"{self.gaps:,} gap{gaps} in {self.lines:,} line{lines} filled"

    def read(self, line: str, where: str) -> Gapped:
        """Parse a line of text with gaps; `where` names it in error messages."""
        if not line.strip():
            return Gapped(line, [], [])
        tokens, gaps = gaps_in(line, self.tokenizer)
        if not gaps:
            raise DataError(
                f"{where} has no gap to fill: {line[:60]!r}. Write [MASK] where a word is missing."
            )
        if len(tokens) > self.room and self.on_long == "error":
            raise DataError(
                f"{where} has {len(tokens)} tokens, but the model reads at most {self.room}. "
                "Shorten the text."
            )
        return Gapped(line, tokens, gaps)

    def _answer_texts(self, texts: Sequence[Gapped]) -> Iterator[GapAnswer]:
        pieces = [
            (number, tokens, gaps)
            for number, text in enumerate(texts)
            for tokens, gaps in text.windows(self.room)
            if gaps
        ]
        found: dict[int, list[Any]] = {number: [] for number in range(len(texts))}
        done: dict[int, list[Any]] = {}
        lengths = [len(tokens) + ENDS for _, tokens, _ in pieces]
        for group in batches(lengths, self.batch_tokens):
            for place, candidates in zip(group, self._candidates([pieces[i] for i in group]),
                                         strict=True):  # fmt: skip
                done[place] = candidates
            self.between(len(done), len(pieces))
        for place, (number, _, _) in enumerate(pieces):
            found[number] += done[place]
        for number, text in enumerate(texts):
            self.gaps += len(text.gaps)
            yield self._answer(text, found[number])

    @torch.inference_mode()
    def _candidates(
        self, pieces: Sequence[tuple[int, list[int], list[int]]]
    ) -> list[list[list[tuple[int, float]]]]:
        """Return the candidate tokens for each gap of each window, with their probabilities, most
        likely first."""
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        flat = [token for _, tokens, _ in pieces for token in (bos, *tokens, eos)]
        lengths = [len(tokens) + ENDS for _, tokens, _ in pieces]
        starts = np.cumsum([0, *lengths[:-1]])
        rows = [int(start) + 1 + gap for start, (_, _, gaps) in zip(starts, pieces, strict=True)
                for gap in gaps]  # fmt: skip
        tokens_N = torch.tensor(flat, device=self.device)
        rows_R = torch.tensor(rows, device=self.device)
        probs_RV = self._probabilities(tokens_N, Layout.of(lengths, self.device), rows_R)
        top = probs_RV.topk(min(self.n_best, probs_RV.shape[1]))
        ranked = iter(
            list(zip(words, probs, strict=True))
            for words, probs in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        )
        return [[next(ranked) for _ in gaps] for _, _, gaps in pieces]

    def _probabilities(self, tokens_N: Tensor, layout: Layout, rows_R: Tensor) -> Tensor:
        """Return the token probabilities at the gaps, averaged over the models. Special tokens get
        zero probability."""
        total = torch.zeros((), device=self.device)
        for model in self.models:
            read = EachRow("words").read(model, ModelInput(tokens_N, layout), rows_R=rows_R)
            scores_RV = read.logits_RC.masked_fill(self.banned_V, -torch.inf)
            total = total + scores_RV.softmax(-1) / len(self.models)
        return total

    def _answer(self, text: Gapped, candidates: Sequence[Sequence[tuple[int, float]]]) -> GapAnswer:
        gaps = tuple(
            tuple(TokenGuess(self._word(token), p) for token, p in gap) for gap in candidates
        )
        tokens = list(text.tokens)
        for place, gap in zip(text.gaps, candidates, strict=True):
            tokens[place] = gap[0][0]
        windowed = len(text.tokens) > self.room
        return GapAnswer(
            text=self.tokenizer.decode(tokens),
            source=text.line,
            score=mean_probability([math.log(gap[0].probability) for gap in gaps]),
            notes=("longer than the model reads: each gap sees only as much context as fits",)
            * windowed,
            gaps=gaps,
        )

    def _word(self, token: int) -> str:
        """Return the readable form of a token: its text, or its vocabulary entry if it is only
        white space or part of a character."""
        return (
            self.tokenizer.decode([token]).strip(" \n\t\ufffd") or self.tokenizer.tokens([token])[0]
        )


def gaps_in(line: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens of a line and the indices of its gaps. The space before a gap belongs to
    the missing word."""
    parts = GAP.split(line)
    parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
    goes_on = np.array([False] + [True] * (len(parts) - 1))
    ids = tokenizer.encode_parts(parts, goes_on).lists()
    tokens, gaps = list(ids[0]), []
    for part in ids[1:]:
        assert tokenizer.mask is not None
        gaps.append(len(tokens))
        tokens += [tokenizer.mask, *part]
    return tokens, gaps


def fillers(opened: LoadedRun) -> list[Encoder]:
    for folder, run in zip(opened.folders, opened.runs, strict=True):
        if not isinstance(run.model, EncoderSettings) or "words" not in run.model.heads:
            raise FolderError(
                f"{folder} does not contain a model that fills gaps. Train one: headway train "
                "fill FILES --out RUN"
            )
    return [model for model in opened.models if isinstance(model, Encoder)]
