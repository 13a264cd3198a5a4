"""Translators and summarisers of `transformers`, imported: the same scores and the same texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.decode.search.searcher import search
from headway.errors import UserError
from headway.interop.hf.generation import decode_settings
from headway.settings.decode import DecodeSettings

from ..facts import missing
from .theirs import (
    LENGTHS,
    MARIAN,
    SOURCE_LENGTHS,
    T5,
    architecture,
    check,
    flat,
    ours,
    padded,
    real,
    reference,
    saved,
    tokens,
)

BART = {**MARIAN, "activation_function": "gelu"}
APART = {"share_encoder_decoder_embeddings": False}
ODD = {"d_model": 42, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
ODD |= {"encoder_layers": 3, "decoder_layers": 1}
SIDES = {"d_model": 96, "encoder_attention_heads": 6, "decoder_attention_heads": 3}
SIDES |= {"encoder_ffn_dim": 96, "decoder_ffn_dim": 64, "encoder_layers": 2, "decoder_layers": 1}
T5_11 = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
FEW = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "d_kv": 6}

PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", {**MARIAN, "scale_embedding": True}),
    "marian, unscaled gelu": ("MarianMTModel", {**MARIAN, "activation_function": "gelu"}),
    "marian, odd sizes": ("MarianMTModel", {**MARIAN, **ODD}),
    "marian, other sides": ("MarianMTModel", {**MARIAN, **SIDES}),
    "marian, two vocabularies": ("MarianMTModel", {**MARIAN, **APART, "decoder_vocab_size": 53}),
    "marian, nothing tied": ("MarianMTModel", {**MARIAN, **APART, "tie_word_embeddings": False}),
    "marian, softmax apart": ("MarianMTModel", {**MARIAN, "tie_word_embeddings": False}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart, scaled, odd sizes": (
        "BartForConditionalGeneration",
        {**BART, **ODD, "scale_embedding": True, "activation_function": "relu"},
    ),
    "bart, other sides": ("BartForConditionalGeneration", {**BART, **SIDES}),
    "bart, softmax apart": ("BartForConditionalGeneration", {**BART, "tie_word_embeddings": False}),
    "pegasus": ("PegasusForConditionalGeneration", {**MARIAN, "scale_embedding": True}),
    "pegasus, other sides": ("PegasusForConditionalGeneration", {**MARIAN, **SIDES}),
    "pegasus, odd sizes": ("PegasusForConditionalGeneration", {**MARIAN, **ODD}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5, few buckets, one layer less": (
        "T5ForConditionalGeneration", {**T5, **FEW, "num_decoder_layers": 1},
    ),
    "t5, gelu": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gelu"}),
    "t5 1.1": ("T5ForConditionalGeneration", T5_11),
    "t5 1.1, silu": ("T5ForConditionalGeneration", {**T5_11, "feed_forward_proj": "gated-silu"}),
    "mt5": ("MT5ForConditionalGeneration", {**T5_11, "num_layers": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@torch.no_grad()
def test_the_scores_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = reference(*PAIRS[name])
    mine = ours(saved(theirs, tmp_path))
    sources = tokens(SOURCE_LENGTHS)
    targets = tokens(LENGTHS, mine.head.linear.out_features, seed=1)
    source, target = padded(sources), padded(targets)
    expected_BTV = theirs(**source, decoder_input_ids=target["input_ids"]).logits
    check(mine.scores(mine(*flat(sources), *flat(targets))), real(expected_BTV, target))


@torch.no_grad()
def test_a_softmax_apart_is_read_where_the_file_has_one(tmp_path: Path) -> None:
    """T5 1.1 and Flan as they are published: not tied, and transformers 5 says they are."""
    theirs = reference("T5ForConditionalGeneration", T5_11)
    saved(theirs, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = 0.3 * torch.randn(tensors["shared.weight"].shape)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    theirs.lm_head.weight = torch.nn.Parameter(tensors["lm_head.weight"])
    sources, targets = tokens(SOURCE_LENGTHS), tokens(LENGTHS, seed=1)
    source, target = padded(sources), padded(targets)
    expected = real(theirs(**source, decoder_input_ids=target["input_ids"]).logits, target)
    old = {"tie_word_embeddings": False, "scale_decoder_outputs": None}
    for changes in ({}, old):
        mine = ours(tmp_path, **changes)
        check(mine.scores(mine(*flat(sources), *flat(targets))), expected)


@torch.no_grad()
def test_a_body_alone_scores_with_its_embedding(tmp_path: Path) -> None:
    """As bart-base is published: no prefix, no bias, no head."""
    theirs = reference("BartModel", BART)
    saved(theirs, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    versions = {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    save_file(tensors | versions, tmp_path / "model.safetensors", {"format": "pt"})
    mine = ours(tmp_path)
    sources, targets = tokens(SOURCE_LENGTHS), tokens(LENGTHS, seed=1)
    source, target = padded(sources), padded(targets)
    hidden = theirs(**source, decoder_input_ids=target["input_ids"]).last_hidden_state
    expected = real(hidden @ theirs.shared.weight.T, target)
    check(mine.scores(mine(*flat(sources), *flat(targets))), expected)


PAD, EOS = 0, 1
SOURCES = [[5, 9, 17, 33, EOS], [40, EOS], [8, 8, 3, 60, 2, 22, EOS], [12, 50, EOS]]
WRITERS = {
    "marian": ("MarianMTModel", {**MARIAN, **APART, "tie_word_embeddings": False}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart, other sides": ("BartForConditionalGeneration", {**BART, **SIDES}),
    "pegasus": ("PegasusForConditionalGeneration", {**MARIAN, "tie_word_embeddings": False}),
    "t5 1.1": ("T5ForConditionalGeneration", T5_11),
}


def generated(model: Any, eos: int, **options: Any) -> list[list[int]]:
    found = []
    for source in SOURCES:
        out = model.generate(
            torch.tensor([source]), do_sample=False, eos_token_id=eos, bad_words_ids=[[PAD]],
            **options,
        )[0].tolist()[1:]  # fmt: skip
        found.append(out[: out.index(eos)] if eos in out else out)
    return found


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_greedy_and_beam_search_write_what_generate_writes(name: str, tmp_path: Path) -> None:
    """Whatever token is taken for the end; a beam with forced lengths and no n-gram twice. Where
    hypotheses of a beam end by themselves `generate` counts only those among the first k."""
    theirs = reference(*WRITERS[name])
    mine = ours(saved(theirs, tmp_path))
    texts = set()
    for eos in {EOS, *generated(theirs, EOS, num_beams=1, max_new_tokens=12)[0][3:6]}:
        expected = generated(theirs, eos, num_beams=1, max_new_tokens=12)
        settings = DecodeSettings(beam=1, max_len=12, unknown="keep")
        found = search([mine], SOURCES, settings, bos=PAD, eos=eos, unk=PAD)
        assert [h.tokens for [h] in found] == expected
        texts |= {tuple(text) for text in expected}
    assert len(texts) > 1
    for beam, ngram in ((2, 0), (5, 0), (3, 2)):
        forced = {"max_new_tokens": 9, "min_new_tokens": 9, "no_repeat_ngram_size": ngram}
        settings = DecodeSettings(
            beam=beam, max_len=9, min_len=9, no_repeat_ngram=ngram, unknown="keep"
        )
        found = search([mine], SOURCES, settings, bos=PAD, eos=EOS, unk=PAD)
        assert [h.tokens for [h] in found] == generated(theirs, EOS, num_beams=beam, **forced)


SUMMARY = {"num_beams": 4, "length_penalty": 2.0, "max_length": 142, "min_length": 56}
SUMMARY |= {"no_repeat_ngram_size": 3, "early_stopping": True, "forced_bos_token_id": 0}
SUMMARISED = {
    "beam": 4,
    "length_penalty": "power",
    "length_penalty_alpha": 2.0,
    "max_len": 141,
    "extra_len": 141,
}
SUMMARISED |= {"min_len": 55, "no_repeat_ngram": 3, "unknown": "keep"}


def test_how_to_decode_is_in_either_file(tmp_path: Path) -> None:
    """The settings of bart-large-cnn. Their lengths count the token that an output begins with."""
    saved(reference("BartForConditionalGeneration", BART), tmp_path)
    (tmp_path / "generation_config.json").write_text("{}")
    assert architecture(tmp_path).decode == {"beam": 1, "unknown": "keep"}
    found = architecture(tmp_path, **SUMMARY)
    assert found.decode == SUMMARISED
    assert "early_stopping" in found.notes[0]
    (tmp_path / "generation_config.json").write_text(json.dumps(SUMMARY))
    assert architecture(tmp_path).decode == SUMMARISED


def test_a_translation_is_about_as_long_as_its_source(tmp_path: Path) -> None:
    """Marian says at most 512; a beam would look that far for a longer output."""
    saved(reference(*PAIRS["marian"]), tmp_path)
    found = architecture(tmp_path, max_length=512, num_beams=6).decode
    assert found["max_len"] == 511
    assert "extra_len" not in found


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (1.0, {"length_penalty": "power", "length_penalty_alpha": 1.0}),
        (0.0, {"length_penalty": "none"}),
        (-1.0, {"length_penalty": "none"}),
    ],
)
def test_length_penalties(penalty: float, expected: dict[str, Any]) -> None:
    found, _ = decode_settings({"num_beams": 2, "length_penalty": penalty}, {}, has_source=True)
    assert found == {"beam": 2, "unknown": "keep", **expected}


def test_what_decoding_cannot_follow_is_noted() -> None:
    result = {"pad_token_id": 0, "bad_words_ids": [[0]], "eos_token_id": [1]}
    assert decode_settings(result, {}, has_source=True)[1] == ()
    result = {**result, "bad_words_ids": [[0], [5, 6]], "eos_token_id": [1, 2], "typical_p": 0.5}
    typical, ends, words = decode_settings(result, {}, has_source=True)[1]
    assert not missing(typical, "typical_p", "0.5")
    assert not missing(ends, "eos_token_id", "[1, 2]")
    assert not missing(words, "bad_words_ids", "[[0], [5, 6]]")
    diverse = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.3}
    found, _ = decode_settings(diverse, {}, has_source=True)
    assert (found["beam"], found["groups"], found["diversity"]) == (4, 2, 0.3)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("marian", {"decoder_ffn_dim": 0}),
        ("marian", {"decoder_attention_heads": "two"}),
        ("marian", {"normalize_before": True}),
        ("marian", {"activation_function": "tanh"}),
        ("bart", {"architectures": ["BartForSequenceClassification"]}),
        ("bart", {"max_position_embeddings": 1 << 40}),
        ("bart", {"num_beams": "four"}),
        ("t5", {"feed_forward_proj": "gated-tanh"}),
        ("t5", {"architectures": ["T5EncoderModel"]}),
        ("t5", {"relative_attention_num_buckets": 30}),
        ("t5", {"num_layers": 99_999}),
    ],
)
def test_unsupported_keys_are_an_error_with_their_name(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    saved(reference(*PAIRS[name]), tmp_path)
    [key] = change
    key = "relative.buckets" if "buckets" in key else key
    with pytest.raises(UserError, match=key):
        architecture(tmp_path, **change)


def test_umt5_has_positions_in_every_layer_and_is_unknown(tmp_path: Path) -> None:
    saved(reference("UMT5ForConditionalGeneration", T5_11), tmp_path)
    with pytest.raises(UserError, match=r"\bmodel_type\b.*'umt5'.*\bmt5\b"):
        architecture(tmp_path)
