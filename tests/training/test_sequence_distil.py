"""A student translator is given what its teacher makes of the sources, once, also when killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.data.prepare import prepare
from headway.data.store import PreparedData, load_prepared
from headway.decode.writer import Writer
from headway.models.folder import model_weights, save_weights
from headway.progress import SILENT
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.folder import CONFIG, TOKENIZER
from headway.settings.presets import preset
from headway.settings.run import RunSettings, resolved_toml
from headway.settings.start import DistilSettings
from headway.storage import replace_text
from headway.tasks import sequence_distil as module
from headway.tasks.loaded_run import open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tasks.sequence_distil import (
    make_distilled,
    prepare_distilled,
    with_distilled,
    with_teachers_words,
)
from tests.training.test_translate_task import made_of, model_of

CPU = torch.device("cpu")


class Killed(Exception):
    pass


@pytest.fixture
def school(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PreparedData, RunSettings]:
    """Data prepared with the teacher's vocabulary, and settings that name the teacher."""
    monkeypatch.setattr(module, "BLOCK", 40)
    (tmp_path / "first").mkdir()
    before = made_of(tmp_path / "first", kind="words")
    model = model_of(before)
    run = tmp_path / "teacher"
    save_weights(run, model_weights(model))
    before.vocab.save(run / TOKENIZER)
    shape = replace(
        preset("transformer-test"), vocab_size=before.vocab.target.vocab_size, dropout=0.0
    )
    data = DataSettings(source=(str(tmp_path / "first" / "de"),),
                        target=(str(tmp_path / "first" / "en"),), valid_size=30)  # fmt: skip
    settings = RunSettings(
        task="translate", data=data, model=shape, decode=DecodeSettings(beam=2, max_len=8)
    )
    replace_text(run / CONFIG, resolved_toml(settings))
    settings = replace(settings, distil=DistilSettings(teacher=str(run)))
    return prepare(with_teachers_words(settings), tmp_path / "run"), settings


def test_all_of_it_is_one_call(school: tuple[PreparedData, RunSettings], tmp_path: Path) -> None:
    prepared, settings = school
    made = prepare_distilled(settings, tmp_path / "run", SILENT, "cpu")
    assert targets(made) != targets(prepared)
    assert made.vocab.target.to_json() == (tmp_path / "teacher" / TOKENIZER).read_text()


def targets(prepared: PreparedData) -> list[list[int]]:
    return [prepared.train["target"][i].tolist() for i in range(prepared.train.n)]


def test_the_targets_are_the_teachers_translations(
    school: tuple[PreparedData, RunSettings], tmp_path: Path, slow: Any
) -> None:
    prepared, settings = school
    made = make_distilled(prepared, settings, tmp_path / "run", CPU, slow)
    n = prepared.train.n
    assert f" {n}/{n} " in slow.stream.getvalue()
    teacher = writer_of(open_run(tmp_path / "teacher", device="cpu"))
    source = prepared.vocab.source
    lines = [source.decode(prepared.train["source"][i].tolist()) for i in range(prepared.train.n)]
    texts = [found.text for found in teacher.write(lines)]
    assert targets(made) == prepared.vocab.target.encode_batch(texts)
    assert targets(made) != targets(prepared)
    assert made.train["source"] is prepared.train["source"]
    assert made.valid is prepared.valid
    assert made.vocab.target.to_json() == prepared.vocab.target.to_json()
    again = with_distilled(load_prepared(tmp_path / "run"), tmp_path / "run")
    assert targets(again) == targets(made)
    before = slow.stream.getvalue()
    make_distilled(prepared, settings, tmp_path / "run", CPU, slow)
    assert slow.stream.getvalue() == before  # nothing is translated twice


def test_a_killed_run_resumes_after_the_last_block(
    school: tuple[PreparedData, RunSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow: Any,
) -> None:
    prepared, settings = school
    straight = targets(make_distilled(prepared, settings, tmp_path / "run", CPU, SILENT))
    for name in ("train.taught.tokens", "train.taught.lengths"):
        (tmp_path / "run" / "data" / name).unlink()
    translated: list[str] = []
    plain = Writer.write

    def some(self: Writer, lines: Any, *more: Any, **named: Any) -> Any:
        if len(translated) >= 80:
            raise Killed
        translated.extend(lines)
        return plain(self, lines, *more, **named)

    monkeypatch.setattr(Writer, "write", some)
    with pytest.raises(Killed):
        make_distilled(prepared, settings, tmp_path / "run", CPU, SILENT)
    part = tmp_path / "run" / "data" / "train.part"
    with part.open("a") as file:
        file.write("[[1, 2], [3")  # a block that was being written
    assert targets(with_distilled(prepared, tmp_path / "run")) == targets(prepared)
    monkeypatch.setattr(Writer, "write", plain)
    made = make_distilled(prepared, settings, tmp_path / "run", CPU, slow)
    assert targets(made) == straight
    # What was there is not counted as work of this process.
    printed = slow.stream.getvalue().splitlines()[0]
    assert f" 120/{prepared.train.n}" in printed
    assert not part.exists()
    assert np.asarray(made.train["target"].lengths).dtype == np.int32


def test_outputs_of_a_teacher_are_cut_to_its_positions(
    school: tuple[PreparedData, RunSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of an output may have more tokens than the output had."""
    prepared, settings = school
    monkeypatch.setattr(module, "max_positions", lambda front: 4)
    made = make_distilled(prepared, settings, tmp_path / "run", CPU, SILENT)
    assert int(made.train["target"].lengths.max()) == 3
