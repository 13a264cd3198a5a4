"""The same tokens as Hugging Face's `generate`, where both define the same search."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from headway.decode.search.searcher import search
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from tests.references.convert import converted

PAD, EOS, VOCAB = 0, 1, 61
SOURCES = [[5, 9, 17, 33, EOS], [40, EOS], [8, 8, 3, 60, 2, 22, EOS], [12, 50, EOS]]


def models() -> tuple[Any, Seq2Seq]:
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40,
        decoder_ffn_dim=40, max_position_embeddings=64, scale_embedding=True,
        activation_function="swish", tie_word_embeddings=False,
        share_encoder_decoder_embeddings=False, decoder_vocab_size=VOCAB,
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD, forced_eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if weight.ndim > 1 and "embed_positions" not in name:
                weight.copy_(2.0 * torch.randn(weight.shape) * weight.shape[1] ** -0.5)
        theirs.final_logits_bias[0, PAD] = -1e4  # the start token, which we never write
    ours = converted(theirs)
    assert isinstance(ours, Seq2Seq)
    return theirs, ours


def generated(model: Any, beam: int, n_tokens: int, eos: int = EOS) -> list[list[int]]:
    rows = [torch.tensor(source) for source in SOURCES]
    ids_BS = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    out_BT = model.generate(
        input_ids=ids_BS, attention_mask=ids_BS != PAD, num_beams=beam, max_new_tokens=n_tokens,
        do_sample=False, eos_token_id=eos,
    )  # fmt: skip
    texts = [[token for token in row[1:].tolist() if token != PAD] for row in out_BT]
    return [text[: text.index(eos)] if eos in text else text for text in texts]


def test_greedy_tokens_are_theirs() -> None:
    """Whatever token is taken for the end: a random model would not end otherwise."""
    theirs, ours = models()
    settings = DecodeSettings(beam=1, max_len=12, unknown="keep")
    lengths = set()
    for eos in {EOS, *generated(theirs, 1, 12)[0]}:
        found = search([ours], SOURCES, settings, bos=PAD, eos=eos, unk=PAD)
        expected = generated(theirs, 1, 12, eos)
        assert [h.tokens for [h] in found] == expected
        lengths |= {len(text) for text in expected}
    assert len(lengths) > 2


@pytest.mark.parametrize("beam", [2, 5])
def test_beam_tokens_are_theirs_where_lengths_are_forced(beam: int) -> None:
    """Then both keep the k best of all continuations, and nothing ends early."""
    theirs, ours = models()
    with torch.no_grad():
        theirs.final_logits_bias[0, EOS] = -1e4
        ours.head.linear.bias[EOS] = -1e4
    settings = DecodeSettings(beam=beam, max_len=12, min_len=12, unknown="keep")
    found = search([ours], SOURCES, settings, bos=PAD, eos=EOS, unk=PAD)
    assert [h.tokens for [h] in found] == generated(theirs, beam, 12)
