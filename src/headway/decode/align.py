"""Word alignments between source and target, computed from cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.decode.steps import alignment_layer, cross_attention_tap
from headway.models.seq2seq import Seq2Seq
from headway.nn.tap import record
from headway.tokens.tokenizer import SPACE_MARK, Tokenizer

AlignmentLink = tuple[int, int]

AttentionFunction = Callable[[Sequence[Any], Sequence[Sequence[int]], int], list[Tensor]]
"""Function that computes the cross-attention of one model, as `cross_attention` does. Arguments:
the sources, the targets, and the begin token of the targets."""


def cross_attention(
    model: Seq2Seq,
    sources: Sequence[Any],
    targets: Sequence[Sequence[int]],
    bos: int,
    layer: int | None = None,
) -> list[Tensor]:
    """Return the cross-attention of each pair (T + 1, S): T target tokens and the end token, by S
    source positions.

    The attention is averaged over the heads of one decoder layer. `layer`: index of this layer;
    None: the layer whose attention aligns words best.
    """
    layer = alignment_layer(model) if layer is None else layer
    found, _ = read_targets(model, sources, [[bos, *target] for target in targets], layer)
    return [weights_HTS.mean(0) for weights_HTS in found]


@torch.no_grad()
def read_targets(
    model: Seq2Seq, sources: Sequence[Any], inputs: Sequence[Sequence[int]], layer: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Run the decoder on known targets (teacher forcing).

    Returns the cross-attention of each head of a layer (H T S), and the logits of the first target
    token (V), for each source. `inputs`: tokens that the decoder reads, including the begin token.
    """
    device = next(model.parameters()).device
    name = cross_attention_tap(model, layer)
    with record(model, name) as seen:
        tokens_N, layout = model.target_front.collate(inputs, device)
        x_ND = model(*model.source_front.collate(sources, device), tokens_N, layout)
    first_BV = model.scores(torch.stack([x_TD[0] for x_TD in layout.split(x_ND)])).float().cpu()
    return [weights_HTS.cpu() for weights_HTS in seen[name][0]], [*first_BV]


def word_numbers(pieces: Sequence[str], unknown: str | None = None) -> list[int]:
    """Return the index of the word that contains each token. Words are separated by spaces.

    A token that consists only of spaces belongs to the word before it. An unknown token is a word
    of its own.
    """
    numbers, number, in_word = [], -1, False
    for piece in pieces:
        if piece == unknown:
            number, in_word = number + 1, False
        for character in "" if piece == unknown else piece:
            if character == SPACE_MARK or character.isspace():
                in_word = False
            elif not in_word:
                in_word, number = True, number + 1
        numbers.append(max(number, 0))
    return numbers


def source_words(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return the index of the word of `text` that contains each of its tokens.

    The tokens of a word are counted by tokenizing the word alone, so unknown tokens are counted,
    too.
    """
    sizes = [len(word) for word in tokenizer.encode_batch(text.split())]
    for gap in (0, 1):  # the space is part of a word's first token, or has a token of its own
        numbers = [n for n, size in enumerate(sizes) for _ in range(size + gap)]
        if len(numbers) - gap == len(ids):
            return numbers[: len(ids)]
    last = len(sizes) - 1
    return [min(number, last) for number in word_numbers(tokenizer.tokens(ids))]


def align_words(
    attention_TS: Tensor, source_words: Sequence[int], target_words: Sequence[int]
) -> list[AlignmentLink]:
    """Return pairs of word indices (source, target): each target word with the source word that it
    attends to most. Tokens that belong to no word, such as the end token, are ignored."""
    if not source_words or not target_words:
        return []
    attention_TS = attention_TS[: len(target_words), : len(source_words)]
    by_source_TX = attention_TS.new_zeros(len(attention_TS), max(source_words) + 1)
    by_source_TX.index_add_(1, torch.tensor(source_words), attention_TS)
    by_word_YX = attention_TS.new_zeros(max(target_words) + 1, by_source_TX.shape[1])
    by_word_YX.index_add_(0, torch.tensor(target_words), by_source_TX)
    return [(source, target) for target, source in enumerate(by_word_YX.argmax(1).tolist())]


def pharaoh(pairs: Sequence[AlignmentLink]) -> str:
    return " ".join(f"{source}-{target}" for source, target in pairs)
