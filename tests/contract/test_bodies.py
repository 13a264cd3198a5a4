"""Other bodies keep the contract of the table: some rows, each with a body, through the same tests.

What a body changes is in its own file; that nothing else knows of it is what these say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UserError
from headway.nn.lora import add_lora
from tests.facts import naming

from ..once import once
from . import test_answers, test_learning, test_pages, test_training, tiny
from .tiny import ROWS, Tiny, named, write_files

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "translate-lstm": ("translate-text", {"body": "lstm", "source_attention": "additive"}),
    "translate-gru-last": (
        "translate-text", {"body": "gru", "source_attention": "last", "bidirectional": False}),
    "translate-convolution": ("translate-text", {"body": "convolution", "dilation": 2}),
    "complete-sha-rnn": ("complete-text", {"body": "sha-rnn", "d_ff": 64}),
    "complete-gru": ("complete-text", {"body": "gru"}),
    "classify-lstm": ("classify-text", {"body": "lstm"}),
    "classify-images": ("classify-image", {"body": "convolution", "kernel": 5}),
    "tag-gru": ("tag-text", {"body": "gru", "block_layout": "post"}),
    "fill-lstm": ("fill-text", {"body": "lstm"}),
    "embed-convolution": ("embed-text", {"body": "convolution"}),
    "caption-gru": ("caption-image", {"body": "gru"}),
    "transcribe-lstm": ("transcribe-audio", {"body": "lstm"}),
}  # fmt: skip

FEWER_TESTS = ("fill-lstm", "embed-convolution", "caption-gru", "transcribe-lstm",
               "translate-gru-last", "complete-gru")  # fmt: skip
"""Covered by the others already."""

plain_settings = tiny.settings_of


@cache
def settings_of(name: str) -> Callable[[Any], dict[str, Any]]:
    more = {f"model.{key}": value for key, value in BODIES[name][1].items()}
    gone = ("model.n_heads", "model.d_ff")

    def found(row: Any) -> dict[str, Any]:
        result = {key: value for key, value in plain_settings(row).items() if key not in gone}
        return result | more

    return found


@pytest.fixture
def of_body(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tiny:
    name = request.param
    monkeypatch.setattr(tiny, "settings_of", settings_of(name))
    row = next(row for row in ROWS if named(row) == BODIES[name][0])
    files = once(tmp_path_factory, "contract-files", write_files)
    folder = once(tmp_path_factory, f"body-{name}", lambda out: tiny.train(row, files, out / "run"))
    return Tiny(row, folder / "run", files)


every = pytest.mark.parametrize("of_body", BODIES, indirect=True)
some = pytest.mark.parametrize(
    "of_body", [name for name in BODIES if name not in FEWER_TESTS], indirect=True
)


@every
def test_alone_is_as_in_a_batch_and_a_page_can_be_made(of_body: Tiny, tmp_path: Path) -> None:
    test_answers.test_alone_is_as_in_a_batch(of_body)
    test_pages.test_it_can_be_looked_into(of_body, tmp_path)


@some
def test_broken_off_twice_it_ends_with_the_same_bytes(of_body: Tiny, tmp_path: Path) -> None:
    test_training.test_broken_off_twice_it_ends_with_the_same_bytes(of_body, tmp_path)


@every
def test_a_loss_is_the_sum_of_its_parts_and_its_examples(of_body: Tiny) -> None:
    test_learning.test_a_loss_is_the_sum_of_its_parts_however_it_is_cut(of_body)
    test_learning.test_an_example_is_read_alone_as_among_others(of_body)


@some
def test_lists_streams_and_scores_agree(of_body: Tiny, tmp_path: Path) -> None:
    test_answers.test_a_list_a_stream_and_the_command_line_agree(of_body, tmp_path)
    test_training.test_a_run_is_scored_on_its_own_validation_set(of_body)


@pytest.mark.parametrize("of_body", ["translate-lstm"], indirect=True)
def test_exports_and_studies_of_heads_reject_other_bodies(of_body: Tiny, tmp_path: Path) -> None:
    for to in ("hf", "ctranslate2", "onnx", "torch"):
        with pytest.raises(UserError, match="lstm"):
            of_body.run.export(to, tmp_path / to)
    code, _, found = tiny.command(
        "prune", str(of_body.folder), "--heads", "1", "--out", str(tmp_path / "less")
    )
    assert code == 2
    assert "lstm" in found
    with pytest.raises(UserError, match=r"lora\.rank"):
        add_lora(of_body.model, 2, 4.0, "all")
    code, _, found = tiny.command("look", str(of_body.folder), "--text", "a", "--hide", "source.1",
                                 "--out", str(tmp_path / "x.html"))  # fmt: skip
    assert code == 2
    assert "model.body=transformer" in found


@pytest.mark.slow
@pytest.mark.parametrize("body", ["lstm", "gru", "convolution", "sha-rnn", "ngram"])
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_row_learns_and_answers_with_every_body_or_is_an_error(
    row: Any, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings_of(row: Any) -> dict[str, Any]:
        gone = {"model.n_heads", "model.d_ff"}
        if body == "ngram":
            gone |= {"model.n_layers", "model.d_model", *tiny.SETTINGS} - {"data.valid_size"}
        found = {key: value for key, value in plain_settings(row).items() if key not in gone}
        few = {"train.steps": 3, "train.eval_every": 3, "train.warmup": 1}
        found |= {"model.body": body, **(few if body != "ngram" else {})}
        return found | ({"model.d_ff": 64} if body == "sha-rnn" else {})

    monkeypatch.setattr(tiny, "settings_of", settings_of)
    write_files(tmp_path)
    if body in ("sha-rnn", "ngram") and row.name != "complete":
        with pytest.raises(UserError, match=naming(body, "decoder")):
            tiny.train(row, tmp_path, tmp_path / "run")
        return
    tiny.train(row, tmp_path, tmp_path / "run")
    one = Tiny(row, tmp_path / "run", tmp_path)
    if row in tiny.ANSWERING:
        assert len(one.answers) == len(one.questions)
