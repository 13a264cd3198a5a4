"""Who speaks: classes of recordings, the margin, and whether two are of one speaker."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import DataError, UserError
from headway.models.encoder import Encoder
from headway.models.folder import model_weights, save_weights
from headway.models.parts.output_heads import CosineHead, ModelInput
from headway.settings.folder import CONFIG, load_run
from headway.settings.run import load_run_settings, resolved_toml
from headway.settings.task_rows import spec_of
from headway.tasks.answers import Answer
from headway.tasks.dataset import EvalPass
from headway.tasks.identify import IdentifyObjective, item_vectors, threshold_of, verification
from headway.tasks.label import ClassificationDataset
from headway.tasks.label_kinds import with_margin
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.preprocess.preprocessor import preprocessor_of
from headway.tasks.readout import OneVector, Readout, readout_of
from headway.tasks.task import InferenceRequest, make_task
from tests.training.labelled import entries, resolved, same_after_stops, trained
from tests.training.shown import RATE, settings_of, write_list, write_speakers

CPU = torch.device("cpu")
IDENTIFY = make_task(spec_of("identify"))
SPEAKERS = {"ada": 300.0, "bea": 700.0, "cy": 1500.0}
STRANGERS = {"dan": 450.0, "eve": 1100.0, "fay": 2600.0}
TRAINING = {"train__steps": 25, "train__batch_tokens": 120, "train__micro_tokens": 120}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoken")
    write_speakers(folder / "known", SPEAKERS)
    write_speakers(folder / "strangers", STRANGERS, 4, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spoken: Path) -> Path:
    folder = tmp_path_factory.mktemp("run")
    settings = settings_of("identify", str(spoken / "known"), **TRAINING, identify__margin=0.2)
    settings, prepared = resolved(IDENTIFY, settings, folder)
    worker = trained(settings, prepared, folder)
    save_weights(folder, model_weights(worker.model))
    (folder / CONFIG).write_text(resolved_toml(settings))
    scores = worker.objective.evaluate(EvalPass(worker.model, CPU))
    with (folder / "metrics.jsonl").open("a") as file:
        import json

        file.write(json.dumps({"kind": "end", "step": 40, "figures": scores.figures}) + "\n")
    return folder


def used(run: Path, options: dict[str, Any] | None = None) -> InferenceRequest:
    opened = open_run(run, device="cpu")
    return InferenceRequest(opened, opened.settings, options or {})


def answers(run: Path, lines: Iterable[object], **options: Any) -> list[Answer]:
    return list(IDENTIFY.predictor(used(run, options)).answers(map(str, lines)))


@torch.no_grad()
def read_items(run: LoadedRun, items: list[Any], readout: Readout) -> torch.Tensor:
    intake = preprocessor_of(run.settings)
    found = ClassificationDataset(intake.input_dataset(intake.columns(items)))
    batch = found.batch(np.arange(len(items)), CPU)
    return readout.read(run.model, *batch.streams).averaged_logits()


def test_speakers_are_learned(run: Path, spoken: Path) -> None:
    settings = load_run_settings(run / CONFIG, [])
    model: Any = settings.model
    assert model.audio.rate == RATE
    assert (model.audio.n_fft, model.audio.hop) == (200, 80)
    files = [spoken / "known" / name / "3.wav" for name in SPEAKERS]
    assert [answer.text for answer in answers(run, files)] == list(SPEAKERS)
    figures = entries(run)[-1]["figures"]
    assert figures["verification"]["eer"] < 0.1
    assert "image" not in figures


def test_the_margin_turns_only_the_angle_of_the_speaker(run: Path) -> None:
    prepared = IDENTIFY.load_prepared(run)
    settings = load_run(run)
    task = IdentifyObjective(settings, prepared)
    [model] = open_run(run, device="cpu").models
    assert isinstance(model, Encoder)
    given, layout = model.front.collate([prepared.valid.audio[0]])  # type: ignore[operator]
    with torch.no_grad():
        scale, margin = settings.identify.scale, settings.identify.margin
        read = readout_of(settings).read(model, ModelInput(given, layout))
        assert isinstance(read.scores, CosineHead)
        plain_BC, targets_BC = read.averaged_logits(), torch.tensor([[0.0, 1.0, 0.0]])
        turned_BC = with_margin(read.x_RD, read.scores, targets_BC, margin)
        found = task.label_type.loss(read.with_weights(torch.ones(1)), targets_BC).nll
        torch.testing.assert_close(found, -turned_BC.log_softmax(-1)[0, 1])
    angle = math.acos(float(plain_BC[0, 1]) / scale) + margin
    assert float(turned_BC[0, 1]) == pytest.approx(scale * math.cos(min(angle, math.pi)), abs=1e-3)
    torch.testing.assert_close(turned_BC[:, [0, 2]], plain_BC[:, [0, 2]], rtol=1e-5, atol=1e-4)


def test_the_batch_does_not_change_a_vector(run: Path) -> None:
    audio = IDENTIFY.load_prepared(run).train.audio
    opened = open_run(run, device="cpu")
    items = [audio[i] for i in range(5)]
    for read in (readout_of(opened.settings), OneVector(unit=True)):
        together = read_items(opened, items, read)
        alone = torch.cat([read_items(opened, [item], read) for item in items])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_stopped_every_few_steps_it_ends_with_the_same_weights(
    spoken: Path, tmp_path: Path
) -> None:
    changes = {"augment__speed": 0.1, "augment__noise": 0.1, "augment__gain_db": 6.0,
               "train__steps": 7, "train__eval_every": 4, "model__dropout": 0.1}  # fmt: skip
    settings = settings_of("identify", str(spoken / "known"), **(TRAINING | changes))
    settings, prepared = resolved(IDENTIFY, settings, tmp_path)
    assert same_after_stops(settings, prepared, tmp_path)


def test_strangers_are_verified(run: Path, spoken: Path) -> None:
    from headway.settings.data import DataSettings

    found = IDENTIFY.evaluation(used(run), DataSettings(media=(str(spoken / "strangers"),)))
    facts = found.facts["verification"]
    assert facts["unseen"]
    assert (facts["same"], facts["other"]) == (3 * 6, 66 - 3 * 6)
    assert "accuracy" not in found.facts
    both = (str(spoken / "strangers"), str(spoken / "known"))
    found = IDENTIFY.evaluation(used(run), DataSettings(media=both))
    assert found.facts["accuracy"] > 90.0
    assert found.facts["n"] == 36
    assert found.facts["verification"]["same"] == 18


def test_a_test_set_without_trials_is_an_error(run: Path, spoken: Path, tmp_path: Path) -> None:
    from headway.settings.data import DataSettings

    path = str(spoken / "strangers" / "dan" / "0.wav")
    listed = write_list(tmp_path / "one.jsonl", [{"path": path, "label": "dan"}])
    with pytest.raises(DataError, match=r"\bspeaker"):
        IDENTIFY.evaluation(used(run), DataSettings(media=(listed,)))


def test_is_it_the_same_speaker(run: Path, spoken: Path) -> None:
    files = [spoken / "known" / "ada" / "1.wav", spoken / "known" / "cy" / "1.wav"]
    against = str(spoken / "known" / "ada" / "0.wav")
    same, other = answers(run, files, against=against)
    assert same.lines().startswith("same\t")
    assert other.lines().startswith("different\t")
    assert same.to_dict()["cosine"] > other.to_dict()["cosine"]
    assert threshold_of(run) == pytest.approx(same.to_dict()["threshold"], abs=1e-3)


def test_a_speaker_is_identified_from_a_list(run: Path, spoken: Path, tmp_path: Path) -> None:
    lines = [
        {"path": str(spoken / "known" / name / f"{i}.wav"), "label": name.upper()}
        for name in SPEAKERS
        for i in range(2)
    ]
    listed = write_list(tmp_path / "enrolled.jsonl", lines)
    files = [spoken / "known" / name / "3.wav" for name in SPEAKERS]
    found = answers(run, files, against=listed, top=2)
    assert [answer.to_dict()["label"] for answer in found] == ["ADA", "BEA", "CY"]
    assert len(found[0].lines().split("\t")) == 4


def test_a_silent_recording_is_called_silent(run: Path, spoken: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "still.npy", np.zeros(RATE // 4, np.int16))
    heard = next((spoken / "known").rglob("*.wav"))
    quiet = write_list(tmp_path / "still.jsonl", [{"path": "still.npy", "rate": RATE}])
    for options in ({}, {"against": str(heard)}):
        silent, loud = answers(run, [quiet, heard], **options)
        assert silent.to_dict()["silent"] is True
        assert "still.jsonl" in silent.notes[0]
        assert "silent" not in loud.to_dict()
        assert loud.notes == ()


def test_vectors_are_written(run: Path, spoken: Path, tmp_path: Path) -> None:
    files = [spoken / "known" / "ada" / "1.wav", tmp_path / "none.wav"]
    [unreadable] = answers(run, files, to=str(tmp_path / "v.npy"))
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.shape == (2, 32)
    assert np.linalg.norm(vectors[0]) == pytest.approx(1.0, abs=1e-5)
    assert np.isnan(vectors[1]).all()
    assert "none.wav" in unreadable.error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"against": "a.wav", "scores": True}, r"scores=.*against="),
        ({"against": "a.wav", "top": 2}, r"top=.*against="),
        ({"against": "missing.wav"}, "missing.wav"),
    ],
)
def test_options_that_do_not_go_together(run: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        answers(run, ["a.wav"], **options)


def test_pairs_of_vectors_that_fall_apart_have_no_errors() -> None:
    vectors_ND = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    found = verification(vectors_ND, np.repeat(np.arange(3), 4))
    assert found is not None
    assert (found.eer, found.same, found.other, found.speakers) == (0.0, 18, 48, 3)
    assert 0.0 < found.threshold <= 1.0
    assert verification(vectors_ND[:4], np.zeros(4, np.int64)) is None
    mixed = verification(vectors_ND, np.tile(np.arange(3), 4))
    assert mixed is not None
    assert mixed.eer > 0.5


def test_vectors_of_all_items_are_in_order(run: Path) -> None:
    task = IdentifyObjective(load_run(run), IDENTIFY.load_prepared(run))
    opened = open_run(run, device="cpu")
    whole = item_vectors(EvalPass(opened.model, CPU, max_examples=9), task.train_dataset)
    assert len(whole) == 9
    one = read_items(opened, [task.prepared.train.audio[7]], OneVector(unit=True))
    np.testing.assert_allclose(whole[7], one[0].numpy(), atol=1e-5)
