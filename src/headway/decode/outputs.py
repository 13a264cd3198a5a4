"""From the tokens that a search found to text, with alignments and unknown words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from headway.decode.align import Attention, align_words, source_words, word_numbers
from headway.decode.long_input import Part
from headway.decode.search.hypothesis import Hypothesis
from headway.decode.translation import Output
from headway.tokens.tokenizer import Tokenizer, Vocabularies

# A vocabulary of bytes can write line ends; a line must stay a line.
LINE_END = re.compile(r"[\r\n]+")


@dataclass(frozen=True)
class Writer:
    attention: Attention
    """What target tokens see of the source, by the model; of an ensemble by the first."""

    vocab: Vocabularies
    align: bool
    copy: bool
    """An unknown token is written as the source word it attends to most."""

    def write(
        self, parts: Sequence[Part], found: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Output]]:
        unk = self.vocab.target.unk
        all_pairs = [(part, h) for part, of_part in zip(parts, found, strict=True) for h in of_part]
        look = [
            place
            for place, (_, h) in enumerate(all_pairs)
            if self.align or (self.copy and unk in h.tokens)
        ]
        attention = dict(zip(look, self._attention([all_pairs[i] for i in look]), strict=True))
        written = [
            self._output(part, h, attention.get(place)) for place, (part, h) in enumerate(all_pairs)
        ]
        outputs = iter(written)
        return [[next(outputs) for _ in of_part] for of_part in found]

    def _attention(self, pairs: Sequence[tuple[Part, Hypothesis]]) -> list[Tensor]:
        if not pairs:
            return []
        sources = [self.vocab.source.as_source(part.ids) for part, _ in pairs]
        return self.attention(sources, [h.tokens for _, h in pairs], self.vocab.target.bos)

    def _output(self, part: Part, h: Hypothesis, attention_TS: Tensor | None) -> Output:
        target, alignment = self.vocab.target, None
        # What all sources, or outputs, begin with is no part of any word.
        begins = self.vocab.source.source_begin is not None, target.target_begin is not None
        if begins[1]:
            h = replace(h, tokens=h.tokens[1:], token_log_probs=h.token_log_probs[1:])
        [mark] = target.tokens([target.unk])
        unknown = [mark] * len(h.tokens)
        if attention_TS is not None:
            attention_TS = attention_TS[int(begins[1]) :, int(begins[0]) :]
            read = source_words(part.text, part.ids, self.vocab.source)
            if self.align:
                written = word_numbers(target.tokens(h.tokens), mark)
                alignment = align_words(attention_TS, read, written)
            if self.copy:
                words = part.text.split()
                best_T = attention_TS[: len(h.tokens), : len(part.ids)].argmax(1).tolist()
                unknown = [words[min(read[i], len(words) - 1)] for i in best_T]
        return Output(
            text=LINE_END.sub(" ", with_unknown(h.tokens, unknown, target)),
            score=h.score,
            log_prob=h.log_prob,
            tokens=target.tokens(h.tokens),
            token_log_probs=h.token_log_probs,
            finished=h.finished,
            alignment=alignment,
        )


def with_unknown(tokens: Sequence[int], unknown: Sequence[str], target: Tokenizer) -> str:
    """The text of the tokens, where each unknown one stands for the word given at its place."""
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
