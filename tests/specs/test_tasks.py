"""The table of tasks: every row of it holds what others ask of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.folder import load_run
from headway.settings.model import FAMILY_SETTINGS
from headway.settings.overrides import Overrides
from headway.settings.run import RunSettings, load_run_settings, resolved_toml
from headway.settings.task_rows import possible, spec_of
from headway.specs.metrics import METRICS
from headway.specs.needs import LABEL, TAGS, WORDS
from headway.specs.options import OPTIONS, SCORING
from headway.specs.tasks import ALIASES, SPECS, Spec
from headway.tasks.task import Task
from headway.training.request import TrainRequest

ROWS = [row for spec in SPECS.values() for row in spec.rows]
TASKS = list(SPECS)
GOLDEN = Path(__file__).parents[1] / "golden" / "configs"


def named(row: Spec) -> str:
    return f"{row.name}-{row.modality}"


def test_importing_the_table_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, headway.specs.tasks; "
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_the_decoding_settings_of_the_table_are_all_settings() -> None:
    named = set().union(*(row.decode for row in ROWS))
    assert named == {field.name for field in fields(DecodeSettings)}


def test_rows_have_names_of_their_own() -> None:
    assert len({(row.name, row.modality) for row in ROWS}) == len(ROWS)
    for name, spec in SPECS.items():
        assert {row.name for row in spec.rows} == {name}
        assert not any(row.others for row in spec.others)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_class_of_a_row_does_what_runs_ask_of_it(row: Spec) -> None:
    module, name = row.objective.split(".")
    cls = getattr(import_module(f"headway.tasks.{module}"), name)
    asked = [name for name in vars(Task) if not name.startswith("_")]
    assert "predictor" in asked
    assert [name for name in asked if not callable(getattr(cls, name, None))] == []


@pytest.mark.parametrize("task", TASKS)
def test_the_settings_of_a_task_are_read_from_the_section_of_its_name(task: str) -> None:
    kind = SPECS[task].settings
    assert {row.settings for row in SPECS[task].rows} == {kind}
    if kind is None:
        assert task not in {field.name for field in fields(RunSettings)}
        return
    assert is_dataclass(kind)
    assert type(getattr(RunSettings(task=task), task)) is kind
    assert f"[{task}]" in resolved_toml(RunSettings(task=task))
    for other in TASKS:
        if other != task:
            with pytest.raises(ConfigError, match=rf"\[{task}\].*\b{other}\b"):
                load_run_settings(None, [], {"task": other, f"{task}.{fields(kind)[0].name}": 1})


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_score_has_its_record(row: Spec) -> None:
    assert row.scores[0] == row.metrics[0].name
    assert all(METRICS[metric.name] is metric for metric in row.metrics)
    assert "loss" in row.scores
    assert len(set(row.scores)) == len(row.scores)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_needs_are_columns_that_readers_know(row: Spec) -> None:
    for need in row.needs:
        if need not in (WORDS, TAGS):  # whose names their reader takes from the table
            assert f"{need.name}_field" in {field.name for field in fields(DataSettings)}
    inputs = [need for need in row.needs if need.role == "input"]
    assert any(not need.optional for need in inputs)
    modality = "words" if row.reads == "tagged" else row.modality
    assert any(modality in need.kinds for need in inputs)
    assert (LABEL in row.needs) == (row.answers == "label")
    assert (TAGS in row.needs) == (row.answers == "tags")


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_options_and_settings_of_decoding_are_those_that_there_are(row: Spec) -> None:
    assert row.options <= OPTIONS.keys()
    assert row.scoring <= SCORING.keys()
    decoding = {field.name for field in fields(DecodeSettings)}
    assert row.decode is None or row.decode < decoding


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_family_of_a_row_reads_what_the_row_is_given(row: Spec) -> None:
    fronts = {"text": None, "image": "image", "video": "image", "audio": "audio"}
    for family in row.families:
        names = {field.name for field in fields(FAMILY_SETTINGS[family])}
        assert names & {"image", "audio"} == {fronts[row.modality]} - {None}
    assert set(row.families) <= set(SPECS[row.name].all_families)


@pytest.mark.parametrize("task", TASKS)
def test_settings_say_which_row_a_run_is_of(task: str) -> None:
    spec = SPECS[task]
    assert spec_of(task) is spec
    assert spec_of(RunSettings(task=task)) is spec
    for row in spec.rows:
        if len(spec.rows) > 1:
            model = FAMILY_SETTINGS[row.families[0]]()
            if row.modality != "video":
                assert possible(RunSettings(task=task, model=model)) == (row,)


def test_what_counts_mistakes_is_better_when_it_is_less() -> None:
    less = {name for name, metric in METRICS.items() if metric.lower}
    assert less == {"loss", "ppl", "bits_per_byte", "wer", "cer", "mae", "rmse"}
    assert METRICS["wer"].better(3.0, 4.0)
    assert METRICS["bleu"].better(4.0, 3.0)
    assert METRICS["wer"].shown(12.345) == "12.35 %"
    assert METRICS["loss"].shown(0.12345) == "0.123"


@pytest.mark.parametrize("task", TASKS)
def test_a_score_of_another_task_is_an_error_before_any_file_is_read(task: str) -> None:
    names = SPECS[task].scores
    for name in METRICS:
        given = {"task": task, "data.text": ["nowhere.txt"], "train.metric": name}
        if name in names:
            assert load_run_settings(None, [], given).train.metric == name
        else:
            with pytest.raises(ConfigError, match=rf"train\.metric='{name}'.*\b{task}\b"):
                load_run_settings(None, [], given)


@pytest.mark.parametrize("task", TASKS)
def test_a_typing_mistake_gets_the_nearest_name(task: str) -> None:
    for name in SPECS[task].scores:
        with pytest.raises(ConfigError, match=f"'{name}s'.*'{name}'"):
            load_run_settings(None, [f"train.metric={name}s"], {"task": task})


def test_fill_has_other_scores_for_images_than_for_text() -> None:
    text, media = {"task": "fill"}, {"task": "fill", "data.media": ["image"]}
    with pytest.raises(ConfigError, match=r"'variance_explained'.*ppl"):
        load_run_settings(None, ["train.metric=variance_explained"], text)
    assert (
        load_run_settings(None, ["train.metric=variance_explained"], media).train.metric
        == "variance_explained"
    )
    with pytest.raises(ConfigError, match=r"'ppl'.*explained"):
        load_run_settings(None, ["train.metric=ppl"], media)


def test_other_words_are_those_of_tasks_that_there_are() -> None:
    for name, alias in ALIASES.items():
        assert name not in SPECS
        assert alias.task in ("", *SPECS)


@pytest.mark.filterwarnings("ignore::headway.settings.renamed.RenamedSettingWarning")
@pytest.mark.parametrize("teacher", ["see", "caption-videos", "fill-audio"])
def test_a_student_is_given_what_its_teacher_is(teacher: str, tmp_path: Path) -> None:
    """Also where both tasks have one name, and the files would say otherwise."""
    shutil.copy(GOLDEN / f"{teacher}.toml", tmp_path / "config.toml")
    media = Overrides({"data.media": ["x.png"]})
    request = TrainRequest(task="distil", overrides=media, teacher=str(tmp_path))
    settings = request.resolve().settings
    assert spec_of(settings).modality == spec_of(load_run(tmp_path)).modality
    with pytest.raises(ConfigError, match=r"\bdata\b"):
        replace(request, overrides=Overrides({"data.text": ["x"]})).resolve()


def test_only_images_have_a_teacher_of_their_token() -> None:
    for what in ("text", "video", "audio"):
        given = {"task": "classify", "classify.modality": what, "classify.teacher": "run"}
        with pytest.raises(ConfigError, match=rf"classify\.teacher.*\b{what}\b"):
            load_run_settings(None, [], given)
    given = {"task": "classify", "classify.modality": "image", "classify.teacher": "run"}
    assert load_run_settings(None, [], given).classify.teacher == "run"


def test_settings_of_a_model_determine_its_inputs() -> None:
    media = {"task": "classify", "data.media": ["x"]}
    assert len(possible(load_run_settings(None, [], media))) == 3
    for word, what in (("audio.bands=40", "audio"), ("image.frames=4", "video"),
                       ("image.frames=1", "image")):  # fmt: skip
        [row] = possible(load_run_settings(None, [f"model.{word}"], media))
        assert row.modality == what
