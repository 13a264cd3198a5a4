"""Captioners of `transformers`, a ViT and a GPT-2: the same scores and captions, and back again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.errors import UserError
from headway.interop.exporting import export_run
from headway.interop.families import family_named
from headway.interop.importing import import_run
from headway.nn.layout import Layout
from headway.settings.folder import load_run
from headway.settings.model import StackSettings
from headway.settings.run import RunSettings
from headway.settings.vision import ImageSeq2SeqSettings
from headway.tasks.loaded_run import open_plain

from .ours import tensors_named
from .test_hf_images import VIT, prepared
from .test_round_trip import same_bytes, write_words
from .theirs import GPT2, SIZE, architecture, check, ours, saved, shaken

END = 1
DECODER = {**GPT2, "n_layer": 1, "n_head": 2, "n_inner": 24}
SIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other sides": (VIT, DECODER),
    "alike": (
        {**VIT, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"},
        {**GPT2, "n_inner": 40, "tie_word_embeddings": False},
    ),
}


def model_of(name: str) -> Any:
    sees, writes = SIDES[name]
    torch.manual_seed(len(name))
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**sees), transformers.GPT2Config(**writes)
    )
    theirs = transformers.VisionEncoderDecoderModel(both).eval()
    facts = {"decoder_start_token_id": END, "eos_token_id": END, "pad_token_id": 0}
    theirs.generation_config = transformers.GenerationConfig(**facts, max_length=9, num_beams=3)
    return shaken(theirs)


def images() -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (3, 1, 3, 16, 16), dtype=torch.uint8, generator=draw)


def folder_of(name: str, folder: Path) -> Any:
    theirs = model_of(name)
    saved(theirs, folder)
    write_words(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("name", SIDES)
@torch.no_grad()
def test_the_scores_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = model_of(name)
    mine, x_BTCYX = ours(saved(theirs, tmp_path)), images()
    tokens_BT = torch.randint(0, SIZE, (3, 7), generator=torch.Generator().manual_seed(2))
    expected = theirs(pixel_values=prepared(x_BTCYX), decoder_input_ids=tokens_BT).logits
    given, layout = mine.source_front.collate(list(x_BTCYX))
    x_ND = mine(given, layout, tokens_BT.flatten(), Layout.of([7] * 3))
    check(mine.scores(x_ND), expected.flatten(0, 1))


def test_only_differing_settings_of_the_decoder_are_stored(tmp_path: Path) -> None:
    other = architecture(saved(model_of("other sides"), tmp_path / "a")).model
    assert isinstance(other, ImageSeq2SeqSettings)
    assert other.stack("encoder").activation == "gelu"
    assert other.stack("encoder").norm_eps == 1e-12
    own = other.decoder
    assert (own.n_heads, own.d_ff, own.activation, own.norm_eps) == (2, 24, "gelu-tanh", 1e-5)
    same = architecture(saved(model_of("alike"), tmp_path / "b")).model
    assert isinstance(same, ImageSeq2SeqSettings)
    assert same.stack("encoder") == same.stack("decoder")
    assert (same.decoder.n_heads, same.decoder.activation, same.tie) == (None, None, "none")


@torch.no_grad()
def test_captions_are_those_of_generate_and_it_goes_out_as_it_came(tmp_path: Path) -> None:
    theirs = folder_of("other sides", tmp_path / "theirs")
    import_run(str(tmp_path / "theirs"), tmp_path / "run")
    run, x_BTCYX = open_plain(str(tmp_path / "run")), images()
    assert (run.settings.task, run.settings.decode.beam) == ("caption", 3)
    transformers.logging.set_verbosity_error()
    greedy = {"num_beams": 1, "max_new_tokens": 8, "bad_words_ids": [[0]]}
    words = run.vocab.target
    assert (words.bos, words.eos) == (END, END)
    settings = replace(run.settings.decode, beam=1, max_len=8, length_penalty="none")
    found = Searcher([run.model], settings, SpecialTokens.of(words))(list(x_BTCYX.numpy()))
    for [best, *_], image in zip(found, x_BTCYX, strict=True):
        result = theirs.generate(prepared(image[None]), **greedy)[0].tolist()[1:]
        assert best.tokens == (result[: result.index(END)] if END in result else result)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4
    same_bytes(tmp_path / "theirs", tmp_path / "out")
    before, after = (
        json.loads((tmp_path / f / "config.json").read_text()) for f in ("theirs", "out")
    )
    assert before == after


def test_a_captioner_trained_further_goes_out_by_itself(tmp_path: Path) -> None:
    """Such a run has no import.json."""
    folder_of("alike", tmp_path / "theirs")
    import_run(str(tmp_path / "theirs"), tmp_path / "run")
    (tmp_path / "run" / "import.json").unlink()
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4
    assert tensors_named(proof) == []
    again = import_run(str(tmp_path / "out"), tmp_path / "again").settings
    assert replace(again.model, dropout=0.0) == replace(
        load_run(tmp_path / "run").model, dropout=0.0
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"encoder": {**VIT, "model_type": "swin"}}, r"\bencoder\b.*\bmodel_type\b.*'vit'"),
        ({"decoder": {**GPT2, "model_type": "bert"}}, r"\bdecoder\b.*\bmodel_type\b.*'gpt2'"),
        (
            {"encoder": {**VIT, "model_type": "vit", "hidden_size": 48}},
            r"\bd_model\b.*\b48\b.*\b32\b",
        ),
        (
            {"encoder": {**VIT, "model_type": "vit", "qkv_bias": False}},
            r"\battention_bias\b.*'o'.*'qkvo'",
        ),
        (
            {"encoder": {**VIT, "model_type": "vit", "patch_size": "x"}},
            r"\bencoder\b.*\bpatch_size\b.*'x'",
        ),
        ({"architectures": ["Other"]}, r"'Other'.*\bVisionEncoderDecoderModel\b"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    saved(model_of("other sides"), tmp_path)
    with pytest.raises(UserError, match=said):
        architecture(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, r"\bclass_token\b"),
        ({"positions": "sinusoidal"}, r"\bmodel\.positions\b.*'sinusoidal'.*'learned'"),
        ({"embedding_scale": True}, r"\bembedding_scale\b.*\btrue\b"),
        ({"block_layout": "post"}, r"\bmodel\.block_layout\b.*'post'.*'pre'"),
        ({"decoder": StackSettings(n_layers=2, activation="swiglu")}, r"\bactivation='swiglu'"),
    ],
)
def test_a_captioner_without_an_architecture_is_an_error(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = architecture(saved(model_of("alike"), tmp_path)).model
    assert isinstance(found, ImageSeq2SeqSettings)
    if not changes:
        changes = {"image": replace(found.image, class_token=False)}
    settings = RunSettings(task="caption", model=replace(found, **changes))
    with pytest.raises(UserError, match=said):
        family_named("vision-encoder-decoder").write(settings)
