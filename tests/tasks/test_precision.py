"""`decode.precision`: models held in fewer bits answer nearly as before, and as they are asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

import headway
from headway.errors import UserError
from headway.nn.int8 import Int8Embedding, Int8Linear, has_fast_int8
from headway.settings.decode import DecodeSettings
from headway.settings.folder import load_run, run_folder
from headway.tasks.complete_answers import completer_of
from headway.tasks.loaded_run import cast_weights, open_run
from headway.tasks.seq2seq_answers import writer_of

from ..interop.padded_runs import tiny_run
from ..models.variants import EVERY, FAMILIES, inputs_of, samples, tiny

LINES = [
    "Ich habe Hunger.",
    "Wo ist der Bahnhof?",
    "",
    "Tom spricht sehr gut Deutsch und Englisch.",
]


@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_computes_nearly_the_same_in_int8(family: str, variant: str) -> None:
    plain, small = tiny(family, variant), tiny(family, variant)
    cast_weights(small, "int8")
    inputs = inputs_of(plain, samples([3, 1, 6, 4]))
    expected = plain(*inputs)
    difference = (small(*inputs) - expected).norm() / expected.norm()
    assert 0 < difference < 0.15, difference


@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_computes_nearly_the_same_in_bf16(family: str, variant: str) -> None:
    plain, small = tiny(family, variant), tiny(family, variant)
    cast_weights(small, "bf16")
    inputs = inputs_of(plain, samples([3, 1, 6, 4]))
    expected, found = plain(*inputs), small(*inputs)
    difference = (found.float() - expected).norm() / expected.norm()
    assert 0 < difference < 0.15, difference


@pytest.mark.parametrize(("name", "file"), [("shapes", "example.png"), ("digits", "example.wav")])
def test_shipped_models_of_images_and_audio_answer_in_bf16(name: str, file: str) -> None:
    plain, small = (headway.load(name, device="cpu", precision=p) for p in ("fp32", "bf16"))
    assert small(file).text == plain(file).text


def test_int8_is_an_error_on_devices_without_it() -> None:
    model = tiny("decoder", device="meta")
    with pytest.raises(UserError, match=r"decode\.precision=int8.*decode\.precision=bf16"):
        cast_weights(model, "int8")


def translated(
    lines: list[str], batch_tokens: int, precision: Literal["fp32", "int8"] = "int8"
) -> list[str]:
    folder = run_folder("tatoeba-de-en")
    settings = replace(load_run(folder).decode, precision=precision, batch_tokens=batch_tokens)
    found = writer_of(open_run(folder, device="cpu", precision=settings.precision), settings).write(
        lines
    )
    return [translation.text for translation in found]


@pytest.mark.skipif(not has_fast_int8(), reason="exact sums need products of small numbers")
def test_output_does_not_depend_on_the_batch() -> None:
    lines = [*LINES, *(f"Ich habe {n} Hunde und {n + 1} Katzen." for n in range(2, 8))]
    together = translated(lines, 4096)
    assert together == translated(lines, 1) == translated(lines, 60)
    assert together[2] == ""


def test_short_sentences_are_translated_as_in_fp32() -> None:
    assert translated(LINES[:2], 4096) == translated(LINES[:2], 4096, "fp32")


def test_a_story_is_written_in_int8() -> None:
    settings = DecodeSettings(beam=1, max_len=8, precision="int8")
    completer = completer_of(
        open_run("stories", device="cpu", precision=settings.precision), settings
    )
    assert any(isinstance(part, Int8Embedding) for part in completer.models[0].modules())
    [found] = completer.complete(["Once upon a time there was a little"])
    assert found.outputs[0].text


@pytest.mark.parametrize("task", ["classify", "tag", "fill", "embed"])
def test_models_that_read_text_are_held_so_too(task: str, tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / task, task)
    [model] = open_run(folder, device="cpu", precision="int8").models
    assert any(isinstance(part, Int8Linear) for part in model.modules())
