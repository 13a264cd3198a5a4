"""One way from what was asked for to complete settings: pure, and with a reason for each choice."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.data.media.open_item import MediaRef
from headway.errors import ConfigError
from headway.progress import SILENT
from headway.settings.facts import DatasetStats, DeviceInfo
from headway.settings.presets import preset
from headway.settings.renamed import rename
from headway.settings.run import (
    Resolved,
    RunSettings,
    load_resolved,
    load_run_settings,
    resolved_toml,
)
from headway.settings.train import TrainSettings
from headway.tasks.task import find_task
from headway.training.resolve import resolve, resolve_run
from headway.training.run_folder import RunFolder
from tests.stored import read_back
from tests.training.shown import write_images

PAIRS = DatasetStats(n=29_000, n_tokens=400_000, vocab_size=8000)
GPU = DeviceInfo(type="cuda", free_bytes=80 << 30, bf16=True)
GOLDEN = Path(__file__).parents[1] / "golden" / "configs"


def test_each_choice_has_its_reason_and_each_wish_its_place() -> None:
    settings = load_run_settings(None, ["train.clip=2", "model.dropout=0.2"], {"task": "translate"})
    found = resolve(settings, PAIRS, GPU)
    for key, facts in (
        ("train.lr", ["29,000", "GPU"]),
        ("train.steps", ["40", "29,000"]),
        ("model.d_model", ["transformer-tiny", "29,000", "GPU"]),
        ("model.vocab_size", ["tokenizer"]),
    ):
        assert all(fact in found.why[key] for fact in facts), key
    assert not {"train.clip", "model.dropout", "train.seed"} & found.why.keys()
    text = resolved_toml(found)
    assert f"\nlr = 0.008  # chosen: {found.why['train.lr']}\n" in text
    assert "\nclip = 2.0  # asked: train.clip=2\n" in text
    assert "\nseed = 1\n" in text
    assert tomllib.loads(text)["format"] == 2
    again = read_back(found)
    assert (again, again.why) == (found, found.why)
    assert again.asked.origin("train.clip").text == "train.clip=2"


def test_reasons_are_correct_for_little_data_and_few_steps() -> None:
    few = resolve(RunSettings(task="translate"), replace(PAIRS, n=44, n_tokens=240), DeviceInfo())
    assert "epochs" not in few.why["train.steps"]
    short = RunSettings(task="translate", train=TrainSettings(steps=4))
    assert resolve(short, PAIRS, DeviceInfo()).why["train.eval_every"].startswith("4 ")
    text = resolve(RunSettings(task="complete"), replace(PAIRS, longest=64), DeviceInfo())
    assert "repeats" in text.why["decode.sample"]
    assert "end" in text.why["decode.max_len"]


def test_lora_settings_without_lora_are_an_error() -> None:
    given = {"task": "complete", "data.text": ["x"], "start.run": "y", "lora.alpha": 2.0}
    with pytest.raises(ConfigError, match=r"lora\.alpha\b.*lora\.rank\b"):
        load_run_settings(None, [], given)


def test_weight_decay_with_adam_is_an_error() -> None:
    """Also if the task chose the weight decay: the user may have set only the optimiser."""
    train = TrainSettings(weight_decay=0.1, optimizer="adam")
    with pytest.raises(ConfigError, match=r"train\.weight_decay\b.*train\.optimizer=adamw\b"):
        resolve(RunSettings(task="translate", train=train), PAIRS, DeviceInfo())


@pytest.mark.parametrize("name", ["mem_get_info", "is_bf16_supported", "is_available"])
def test_choosing_settings_queries_no_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, name, lambda *_, **__: pytest.fail(name))
    found = resolve(RunSettings(task="translate"), PAIRS, GPU)
    assert found == resolve(RunSettings(task="translate"), PAIRS, GPU)
    assert found.train.precision == "bf16"


def test_values_set_in_python_count_as_set_by_the_user() -> None:
    """A model and a rate, which a plan would have chosen otherwise."""
    model = replace(preset("transformer-test"), d_ff=96)
    settings = RunSettings(task="translate", model=model, train=TrainSettings(lr=1e-4, steps=7))
    found = resolve(settings, PAIRS, GPU)
    assert (found.train.lr, found.train.steps) == (1e-4, 7)
    kept = RunSettings(task="translate", train=TrainSettings(optimizer="adam", schedule="noam"))
    assert resolve(RunSettings(task="translate"), PAIRS, GPU).train.optimizer == "muon"
    assert resolve(kept, PAIRS, GPU).train.optimizer == "adam"
    assert found.model == replace(model, vocab_size=8000)
    assert found.asked.origin("train.lr").text == "train(settings=…)"
    assert "lr = 0.0001  # asked: train(settings=…)\n" in resolved_toml(found)


def test_images_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    media = write_images(tmp_path / "image")
    settings = load_run_settings(
        None, [], {"task": "classify", "data.media": [media], "classify.modality": "image"}
    )
    prepared = find_task(settings).prepare(settings, tmp_path, SILENT)
    monkeypatch.setattr(MediaRef, "read", lambda *_: pytest.fail("opened again"))
    found = resolve_run(settings, prepared, torch.device("cpu"))
    assert found.why["model.image.height"]


@pytest.mark.filterwarnings("ignore::headway.settings.renamed.RenamedSettingWarning")
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.toml")), ids=lambda path: path.stem)
def test_an_unfinished_run_from_before_the_renames_resumes_with_the_same_numbers(
    path: Path, tmp_path: Path
) -> None:
    """The command that began it, given again, finds what it resolved to then."""
    text = path.read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    before = rename(tomllib.loads(text), str(path))
    again = load_run_settings(None, [], before["asked"])
    home = RunFolder(tmp_path)
    home.check(again, restart=False)
    stored = home.stored(again.task)
    assert isinstance(stored, Resolved)
    for name, value in before["train"].items():
        assert getattr(stored.train, name) == value, name
    assert stored == load_resolved(tmp_path / "config.toml")
    assert read_back(stored) == stored


TEXTS = DatasetStats(n=5_000, n_tokens=60_000, longest=40, vocab_size=8_000, labels=("a", "b", "c"))


def epochs_of(**changes: object) -> int:
    task = RunSettings(task="classify")
    found = resolve(task, replace(TEXTS, **changes), DeviceInfo())  # type: ignore[arg-type]
    return round(found.train.steps / (TEXTS.n_tokens / found.train.batch_tokens))


def test_labels_of_several_are_seen_more_often_the_rarer_they_are() -> None:
    assert epochs_of(counts=(2_000, 1_500, 1_500)) == 3
    assert epochs_of(answer="number", mean=1.0) == 3
    assert epochs_of(answer="labels", counts=(2_000, 2_000, 2_000)) == 3
    assert epochs_of(answer="labels", counts=(2_000, 200, 200)) == 6
    assert epochs_of(answer="labels", counts=(2_000, 20, 20)) == 10
    many = replace(TEXTS, n_tokens=2_000_000, answer="labels", counts=(2_000, 20, 20))
    found = resolve(RunSettings(task="classify"), many, DeviceInfo()).train
    assert round(found.steps * found.batch_tokens / many.n_tokens) == 3


@pytest.mark.parametrize(
    ("counts", "metric"), [((900, 91, 91), "accuracy"), ((900, 90, 90), "f1"), ((), "accuracy")]
)
def test_macro_f1_chooses_the_checkpoint_of_imbalanced_classes(
    counts: tuple[int, ...], metric: str
) -> None:
    facts = replace(TEXTS, counts=counts)
    found = resolve(RunSettings(task="classify"), facts, DeviceInfo())
    assert found.train.metric == metric
    assert bool(re.search(r"\b90\b.*\b900\b", found.why["train.metric"])) == (metric == "f1")
    asked = RunSettings(task="classify", train=TrainSettings(metric="accuracy"))
    assert resolve(asked, facts, DeviceInfo()).train.metric == "accuracy"
