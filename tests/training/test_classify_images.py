"""Classes of images and videos: learned, whatever stands beside them, taught by another run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.data.media.store import ImageStore
from headway.errors import ConfigError, DataError
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.models.vision import ImageEncoder
from headway.nn.loss import LabelSmoothing
from headway.settings.folder import CONFIG, load_run
from headway.settings.run import RunSettings, load_run_settings, resolved_toml
from headway.specs.tasks import SPECS
from headway.tasks.dataset import Batch, EvalPass
from headway.tasks.label import ClassificationDataset, ClassifyObjective
from headway.tasks.label_kinds import SingleLabel, top_n_accuracy
from headway.tasks.loaded_run import open_run
from headway.tasks.losses import plain as plain_loss
from headway.tasks.media_format import audio_settings, image_settings, patch_of, pixel_statistics
from headway.tasks.preprocess.preprocessor import preprocessor_of
from headway.tasks.readout import readout_of
from headway.tasks.task import make_task
from headway.tasks.thumbnails import data_uri, thumbnails
from headway.training.distributed import Distributed
from headway.training.trainer import Trainer
from tests.facts import naming
from tests.training.labelled import resolved, same_after_stops, trained
from tests.training.shown import SIDES, image, settings_of, write_images, write_videos

CPU = torch.device("cpu")
_, IMAGES, VIDEOS, _ = map(make_task, SPECS["classify"].rows)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_images(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, images: str) -> Path:
    """The folder of a run that knows its sides."""
    folder = tmp_path_factory.mktemp("learned")
    settings, prepared = resolved(IMAGES, settings_of("classify", images, train__steps=50), folder)
    worker = trained(settings, prepared, folder)
    save_weights(folder, model_weights(worker.model))
    (folder / CONFIG).write_text(resolved_toml(settings))
    return folder


@torch.no_grad()
def read_items(model: Any, items: list[Any], settings: Any) -> torch.Tensor:
    intake = preprocessor_of(settings)
    found = ClassificationDataset(intake.input_dataset(intake.columns(items)))
    batch = found.batch(np.arange(len(items)), CPU)
    return readout_of(settings).read(model, *batch.streams).averaged_logits()


def test_sides_are_learned(learned: Path, images: str) -> None:
    task = ClassifyObjective(load_run(learned), IMAGES.load_prepared(learned))
    scores = task.evaluate(EvalPass(open_run(learned, device="cpu").model, CPU))
    assert scores["accuracy"] == 100.0
    assert "top5" not in scores  # of three classes all would be among them
    assert scores.baselines["majority class"]["accuracy"] < 50.0
    assert {one["true"] for one in scores.figures["examples"]["classes"]} == set(SIDES)
    assert scores.samples[0]["target"] in SIDES


def test_defaults_follow_from_the_images(images: str, tmp_path: Path) -> None:
    settings, prepared = resolved(IMAGES, settings_of("classify", images), tmp_path)
    model: Any = settings.model
    shape = model.image
    assert (shape.height, shape.width, shape.channels, shape.patch) == (8, 8, 1, 2)
    assert model.n_labels == 3
    assert model.d_model == 32
    assert settings.labels == tuple(sorted(SIDES))
    assert settings.augment.crop == 1
    assert shape.mean == tuple(pixel_statistics(prepared.train.images)["mean"])
    kept = resolved(
        IMAGES, settings_of("classify", images, augment__crop=0, train__lr=0.5), tmp_path
    )[0]
    assert kept.augment.crop == 0
    assert kept.train.lr == 0.5


def test_patches_fit_images_of_any_usual_size() -> None:
    assert [patch_of(size, size) for size in (28, 32, 64, 96, 224)] == [4, 4, 8, 8, 16]


def loss_of(task: ClassifyObjective, model: Any, tokens: int) -> float:
    """Of the first step, cut into parts of so many rows."""
    parts = task.parts(task.epoch(0)[0], tokens)
    return sum(loss(task, model, task.batch(part, CPU, None)) for part in parts)


def loss(task: ClassifyObjective, model: Any, batch: Batch[torch.Tensor]) -> float:
    return plain_loss(task)(model, batch).sum.item()


def test_the_cut_and_the_fixed_form_do_not_change_the_loss(images: str, tmp_path: Path) -> None:
    settings = settings_of(
        "classify", images, classify__balance=True, train__batch_tokens=170, augment__crop=0
    )
    settings, prepared = resolved(IMAGES, settings, tmp_path)
    task = ClassifyObjective(settings, prepared)
    model = build_model(settings.model, seed=1).eval()
    whole = loss_of(task, model, 170)
    assert loss_of(task, model, 51) == pytest.approx(whole, rel=1e-5)
    [part] = task.parts(task.epoch(0)[0], 170)
    fixed = task.fixed(400)
    assert fixed is not None
    batch = task.batch(part, CPU, fixed)
    assert batch.streams[0].layout.n_sequences == fixed.n_sequences == 170 // 17
    assert loss(task, model, batch) == pytest.approx(whole, rel=1e-5)
    small = replace(part, rows=part.rows._replace(rows=part.rows.rows[:4]))
    batch = task.batch(small, CPU, fixed)
    assert batch.weights_R[4:].sum() == 0
    alone = loss(task, model, task.batch(small, CPU, None))
    assert loss(task, model, batch) == pytest.approx(alone, rel=1e-5)


def test_mixed_images_share_their_targets(images: str, tmp_path: Path) -> None:
    changes = {"augment__mixup": 0.8, "augment__cutmix": 1.0, "augment__crop": 0}
    settings, prepared = resolved(IMAGES, settings_of("classify", images, **changes), tmp_path)
    task = ClassifyObjective(settings, prepared)
    model = build_model(settings.model, seed=1)
    [part] = task.parts(task.epoch(0)[0], 1000)
    assert isinstance(model, ImageEncoder)
    targets_BC = task.augment(model.train(), task.batch(part, CPU, None)).targets
    assert targets_BC.sum(1).allclose(torch.ones(len(targets_BC)))
    assert ((targets_BC > 0.01) & (targets_BC < 0.99)).any()
    plain_BC = task.augment(model.eval(), task.batch(part, CPU, None)).targets
    assert set(plain_BC.unique().tolist()) == {0.0, 1.0}


def test_several_sizes_in_one_batch_score_as_alone(learned: Path) -> None:
    run = open_run(learned, device="cpu")
    draw = np.random.default_rng(3)
    sizes = (8, 12, 8, 10, 16)
    items = [image("top", draw, size)[None, None] for size in sizes]
    together = read_items(run.model, items, run.settings)
    alone = torch.cat([read_items(run.model, [item], run.settings) for item in items])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("modality", ["image", "video"])
def test_stopped_every_few_steps_it_ends_with_the_same_weights(
    modality: str, tmp_path: Path
) -> None:
    kind, write = (IMAGES, write_images) if modality == "image" else (VIDEOS, write_videos)
    changes = {"train__steps": 7, "train__eval_every": 4, "augment__rand": 1, "augment__flip": True,
               "augment__cutmix": 1.0, "model__dropout": 0.1}  # fmt: skip
    if modality == "video":
        changes |= {"model__image__frames": 4, "model__image__tubelet": 2}
    changes["data__valid_size"] = 8
    settings = settings_of("classify", write(tmp_path / "media"), **changes)
    settings, prepared = resolved(kind, settings, tmp_path)
    assert same_after_stops(settings, prepared, tmp_path)


def test_videos_are_classified_by_motion(tmp_path: Path) -> None:
    changes = {"model__image__frames": 4, "model__image__tubelet": 1, "train__steps": 60,
               "model__image__patch": 4, "augment__crop": 0}  # fmt: skip
    settings = settings_of("classify", write_videos(tmp_path, 80), **changes)
    settings, prepared = resolved(VIDEOS, settings, tmp_path)
    task = VIDEOS.objective(settings, prepared)
    worker = trained(settings, prepared, tmp_path)
    assert task.train_dataset.lengths.max() == 1 + 4 * 4
    assert task.evaluate(EvalPass(worker.model, CPU))["accuracy"] >= 90.0


TAUGHT = {"model__image__distil_token": True, "train__steps": 3}


def test_a_teacher_teaches_the_second_token(learned: Path, images: str, tmp_path: Path) -> None:
    settings = settings_of(
        "classify", images, classify__teacher=str(learned), **TAUGHT, train__label_smoothing=0.0
    )
    settings, prepared = resolved(IMAGES, settings, tmp_path)
    model: Any = settings.model
    assert model.heads == ("classes", "distilled")
    task = ClassifyObjective(settings, prepared)
    assert task.teacher is not None
    student = build_model(settings.model, seed=1)
    assert isinstance(student, ImageEncoder)
    student.train()
    [part] = task.parts(task.epoch(0)[0], 1000)
    batch = task.batch(part, CPU, None)
    torch.manual_seed(5)
    loss = plain_loss(task)(student, batch).sum
    torch.manual_seed(5)
    shown = task.augment(student, batch)
    [stream], targets_BC = shown.streams, shown.targets
    said_B = task.teacher.predict(stream)
    assert (said_B == batch.targets).float().mean() > 0.9
    x_ND = student(stream.values, stream.layout)
    logs = [
        scores.log_softmax(-1)
        for scores in (student.heads["classes"](x_ND[stream.layout.starts_B.long()]),
                       student.heads["distilled"](x_ND[stream.layout.starts_B.long() + 1]))
    ]  # fmt: skip
    own = -(targets_BC * logs[0]).sum()
    taught = -logs[1].gather(1, said_B[:, None]).sum()
    torch.testing.assert_close(loss, (own + taught) / 2, rtol=1e-5, atol=1e-5)


def test_without_a_teacher_both_heads_learn_the_label(
    learned: Path, images: str, tmp_path: Path
) -> None:
    settings = settings_of(
        "classify", images, classify__teacher=str(learned), **TAUGHT, augment__crop=0
    )
    settings, prepared = resolved(IMAGES, settings, tmp_path)
    task = ClassifyObjective(settings, prepared)
    task.teacher = None
    model = build_model(settings.model, seed=1)
    [part] = task.parts(task.epoch(0)[0], 1000)
    plain_loss(task)(model, task.batch(part, CPU, None)).sum.backward()
    for head in ("classes", "distilled"):
        gradient = model.get_parameter(f"heads.{head}.linear.weight").grad
        assert gradient is not None
        assert gradient.abs().sum() > 0


def test_both_heads_answer_together(learned: Path, images: str, tmp_path: Path) -> None:
    settings = settings_of("classify", images, classify__teacher=str(learned), **TAUGHT)
    settings, prepared = resolved(IMAGES, settings, tmp_path)
    worker = Trainer(settings, prepared, Distributed(), lambda text: None)
    model = worker.model.eval()
    assert isinstance(model, ImageEncoder)
    item = prepared.valid.images[0]
    given, layout = model.front.collate([item])  # type: ignore[operator]
    with torch.no_grad():
        x_ND = model(given, layout)
        first = model.head_named("classes")(model.pooled(x_ND, layout))
        mean = (first + model.head_named("distilled")(x_ND[1:2])) / 2
    torch.testing.assert_close(read_items(model, [item], settings), mean)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classify__teacher": "LEARNED"}, r"classify\.teacher\b.*distil_token=true"),
        ({"model__image__distil_token": True}, r"distil_token\b.*classify\.teacher="),
        (
            {"classify__teacher": "LEARNED", **TAUGHT, "model__image__height": 12},
            "image.height=8",
        ),
    ],
)
def test_teacher_and_token_must_fit(
    learned: Path, images: str, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    change = {key: str(learned) if value == "LEARNED" else value for key, value in change.items()}
    with pytest.raises(ConfigError, match=said):
        resolved(IMAGES, settings_of("classify", images, **change), tmp_path)


def test_a_teacher_of_other_classes_is_an_error(learned: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other")
    (tmp_path / "other" / "top").rename(tmp_path / "other" / "bottom")
    settings = settings_of("classify", other, classify__teacher=str(learned), **TAUGHT)
    with pytest.raises(ConfigError, match=r"(?=.*classify\.teacher=)(?=.*\btop\b)(?=.*\bbottom\b)"):
        resolved(IMAGES, settings, tmp_path)


def test_a_folder_without_classes_is_an_error(tmp_path: Path) -> None:
    write_images(tmp_path / "all")
    with pytest.raises(DataError, match=r"(?=.*/left\b)(?=.*\blabel\b)"):
        resolved(IMAGES, settings_of("classify", str(tmp_path / "all" / "left")), tmp_path)


@pytest.mark.parametrize(
    ("task", "read", "what"),
    [("classify", image_settings, "images"), ("identify", audio_settings, "audio")],
)
def test_a_model_that_reads_something_else_is_an_error(
    task: str, read: Callable[[RunSettings], object], what: str
) -> None:
    asked_for = {"task": task, "data.media": ["none"], "model.preset": "bert-tiny"}
    with pytest.raises(ConfigError, match=naming(task, what, "encoder")):
        read(load_run_settings(None, [], asked_for))


@pytest.mark.parametrize("text", ["", "path\tlabel\n"])
def test_a_list_that_names_nothing_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"none\.tsv"):
        image_settings(settings_of("classify", str(path)))
    with pytest.raises(DataError, match=r"none\.tsv"):
        audio_settings(settings_of("identify", str(path)))


def test_a_run_starts_from_another_with_its_form_and_other_classes(
    learned: Path, tmp_path: Path
) -> None:
    other = write_images(tmp_path / "other")
    (tmp_path / "other" / "top").rename(tmp_path / "other" / "bottom")
    asked_for = {"task": "classify", "data.media": [other], "start.run": str(learned)}
    settings = load_run_settings(None, ["train.steps=1", "data.valid_size=12"], asked_for)
    assert image_settings(settings).patch == 2
    settings, prepared = resolved(IMAGES, settings, tmp_path)
    found: list[str] = []
    Trainer(settings, prepared, Distributed(), found.append)
    assert settings.labels == ("bottom", "left", "right")
    assert "classes" in found[0]


def test_confused_classes_show_images() -> None:
    draw = np.random.default_rng(0)
    sides = [SIDES[i % 3] for i in range(12)]
    store = ImageStore.of([image(side, draw)[None, None] for side in sides])
    labels_N = np.arange(12) % 3
    shares_NC = np.full((12, 3), 0.01)
    shares_NC[np.arange(12), labels_N] = 0.9
    shares_NC[[0, 3]] = [0.01, 0.8, 0.01]  # two left ones taken for right ones
    shares_NC[[2]] = [0.95, 0.01, 0.01]
    small = {row: {"image": data_uri(store[row])} for row in range(12)}
    found = thumbnails(small.__getitem__, shares_NC, labels_N, SIDES)
    assert [(one["true"], one["said"], one["count"]) for one in found["confused"]] == [
        ("left", "right", 2), ("top", "left", 1)
    ]  # fmt: skip
    assert found["confused"][0]["share"] == 0.5
    assert [one["true"] for one in found["wrong"]] == ["top", "left", "left"]
    assert [one["true"] for one in found["right"]][:3] == ["left", "right", "top"] or len(
        {one["true"] for one in found["right"][:3]}
    ) == 3
    assert found["wrong"][0]["image"] == data_uri(store[2])


def test_a_thumbnail_is_a_small_png() -> None:
    from base64 import b64decode
    from io import BytesIO

    from PIL import Image

    pixels = np.arange(2 * 3 * 200 * 100, dtype=np.uint32).astype(np.uint8)
    found = data_uri(pixels.reshape(2, 3, 200, 100)).removeprefix("data:image/png;base64,")
    assert Image.open(BytesIO(b64decode(found))).size == (24, 48)


def test_the_right_class_among_the_likeliest() -> None:
    logs_NC = np.log(np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]))
    labels_N = np.array([0, 2, 1])
    assert top_n_accuracy(logs_NC, labels_N, 1) == pytest.approx(1 / 3)
    assert top_n_accuracy(logs_NC, labels_N, 2) == pytest.approx(2 / 3)
    assert top_n_accuracy(logs_NC, labels_N, 3) == 1.0
    wide_NC = np.pad(logs_NC, ((0, 0), (0, 4)), constant_values=-9.0)
    target = SingleLabel(tuple("abcdefg"), LabelSmoothing(1.0, 0.0))
    values = target.values(np.exp(wide_NC), np.array([0, 6, 1]))
    assert values["top5"] == pytest.approx(200 / 3)
