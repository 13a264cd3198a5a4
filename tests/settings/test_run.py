"""The settings of a run: from a file and words, to `config.toml`, and back."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.errors import ConfigError, DataError
from headway.settings.augment import AugmentSettings
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.effects import AUGMENT_AUDIO, AUGMENT_IMAGES
from headway.settings.overrides import Overrides, flatten, nest
from headway.settings.presets import preset
from headway.settings.recipes import FOLDER, about, in_folder, recipe_names, recipe_path
from headway.settings.run import (
    RunSettings,
    differences,
    load_run_settings,
    resolved_toml,
    run_settings,
)
from headway.settings.task_rows import spec_of
from headway.settings.train import TrainSettings
from headway.specs.tasks import SPECS

from ..facts import missing


def read_back(settings: RunSettings) -> RunSettings:
    return run_settings(tomllib.loads(resolved_toml(settings)))


def test_every_default_comes_back() -> None:
    settings = RunSettings(task="translate")
    assert read_back(settings) == settings


def test_every_setting_comes_back() -> None:
    """With text that TOML has to escape, numbers that need all their digits, and lists."""
    settings = RunSettings(
        task="translate",
        data=DataSettings(source=('a "b".de', "ü\\\n\x7f"), target=("a", "b"), max_ratio=1 / 3 + 1),
        tokenizer=TokenizerSettings(kind="words", vocab_size=77, joint=False, normalisation="none"),
        model=replace(preset("transformer-test"), dropout=0.1 + 0.2),
        train=TrainSettings(steps=10, lr=1 / 3, warmup=0, compile="no", ema=0.999, patience=3),
        decode=DecodeSettings(beam=6, groups=3, max_len=9, length_penalty="none"),
        fingerprint="0123abc",
        asked=Overrides(
            {"train.lr": 1 / 3, "data.source": ["a", 'b"c'], "x": True, "train.ema": "none"}
        ),
    )
    assert read_back(settings) == settings


def test_lines_are_computed_only_for_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking parses the file once for each of its lines: a run would open ten times slower."""
    monkeypatch.setattr("headway.settings.load.line_of", lambda text, key: 4711)
    (tmp_path / "good.toml").write_text('labels = ["a"]\n[train]\nmetric = "bleu"\n')
    (tmp_path / "bad.toml").write_text('labels = ["a\\n"]\n')
    with pytest.raises(DataError, match=r"bad\.toml.*\b4711\b.*labels.*'a\\n'"):
        load_run_settings(tmp_path / "bad.toml", [])
    monkeypatch.setattr("headway.settings.load.line_of", lambda text, key: pytest.fail(key))
    assert load_run_settings(tmp_path / "good.toml", []).labels == ("a",)


@pytest.mark.parametrize("section", ["data", "tokenizer", "train", "decode"])
def test_config_toml_is_complete(section: str) -> None:
    """But for what is None, which TOML cannot say."""
    settings = RunSettings(task="translate")
    written = tomllib.loads(resolved_toml(settings))[section]
    values = getattr(settings, section)
    expected = {f.name for f in fields(values) if getattr(values, f.name) is not None}
    assert set(written) == expected


def test_what_the_user_set_is_remembered_and_nothing_else() -> None:
    settings = load_run_settings(
        None, ["train.lr=1e-3", "model.n_layers=3", "model.tie=none"], {"data.pairs": ["x.tsv"]}
    )
    assert settings.asked == {
        "data.pairs": ["x.tsv"], "train.lr": 0.001, "model.n_layers": 3, "model.tie": "none",
    }  # fmt: skip
    assert read_back(settings).asked == settings.asked


def test_a_word_beats_an_option_and_both_beat_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('[data]\npairs = ["a"]\nmax_len = 1\n[train]\nlr = 1.0\nsteps = 4\n')
    given = {"data.pairs": ["b"], "data.max_len": 2}
    settings = load_run_settings(path, ["data.max_len=3", "train.lr=2"], given)
    assert settings.data.pairs == ("b",)
    assert settings.data.max_len == 3
    assert (settings.train.lr, settings.train.steps) == (2.0, 4)
    assert settings.asked == {
        "data.pairs": ["b"], "data.max_len": 3, "train.lr": 2, "train.steps": 4,
    }  # fmt: skip


def test_what_a_run_wrote_is_a_recipe_of_all_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    run = load_run_settings(
        None, ["task=translate", "train.lr=0.5", "model.preset=transformer-test"]
    )
    path.write_text(resolved_toml(replace(run, fingerprint="abc")))
    as_run = load_run_settings(path, [])
    assert as_run.asked == run.asked
    assert as_run.fingerprint == "abc"
    recipe = load_run_settings(path, [], is_recipe=True)
    assert recipe.fingerprint == ""
    assert recipe.asked["train.beta2"] == 0.98
    assert recipe.asked["model.d_model"] == 32
    assert (recipe.model, recipe.train) == (run.model, run.train)


def test_a_recipe_does_not_take_over_the_threads_that_a_run_happened_to_have(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.toml"
    run = load_run_settings(None, ["task=translate"])
    path.write_text(resolved_toml(replace(run, train=replace(run.train, threads=1))))
    assert load_run_settings(path, []).train.threads == 1  # of the run itself: it goes on so
    assert load_run_settings(path, [], is_recipe=True).train.threads is None
    path.write_text(resolved_toml(load_run_settings(None, ["task=translate", "train.threads=1"])))
    assert load_run_settings(path, [], is_recipe=True).train.threads == 1


@pytest.mark.parametrize(("unit", "other"), [("epochs", "steps"), ("steps", "epochs")])
def test_a_word_replaces_how_long_a_recipe_trains_in_either_unit(
    tmp_path: Path, unit: str, other: str
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f'task = "translate"\n[train]\n{other} = 9\n')
    settings = load_run_settings(path, [f"train.{unit}=2"], is_recipe=True)
    assert (getattr(settings.train, unit), getattr(settings.train, other)) == (2, None)
    with pytest.raises(ConfigError) as caught:
        load_run_settings(path, [f"train.{unit}=2", f"train.{other}=3"], is_recipe=True)
    assert not missing(caught.value, f"{unit}=2", f"{other}=3")


def test_differences_name_the_keys_with_both_values() -> None:
    before = {"train.lr": 0.1, "same": [1], "gone": "x"}
    now = {"train.lr": 0.2, "same": [1], "new": True}
    gone, new, changed = differences(before, now)
    assert not missing(gone, "gone", '"x"')
    assert not missing(new, "new", "true")
    assert not missing(changed, "train.lr", "0.1", "0.2")
    assert changed.index("0.1") < changed.index("0.2")
    assert differences(now, now) == []


@pytest.mark.parametrize(
    ("a", "b"), [("train.lr=1e-3", "train.lr=0.001"), ("train.lr=1", "train.lr=1.0")]
)
def test_the_same_number_in_other_notation_is_equal(a: str, b: str) -> None:
    one, other = (load_run_settings(None, [word]).asked for word in (a, b))
    assert differences(one, other) == []


def test_tables_become_dotted_keys() -> None:
    tables: dict[str, Any] = {"a": {"b": {"c": 1}}, "d": (1, 2), "e": None, "f": {}}
    assert flatten(tables) == {"a.b.c": 1, "d": [1, 2], "e": "none"}
    assert nest(flatten(tables)) == {"a": {"b": {"c": 1}}, "d": [1, 2], "e": "none"}


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["lr=3"], ("'lr'", "train.lr")),
        (["beam=3"], ("'beam'", "decode.beam")),
        (["trian.lr=3"], ("trian", "train")),
        (["train.lrr=3"], ("train.lrr", "lr")),
        (["task=translte"], ("translte", "translate")),
        (["train.lr=fast"], ("train.lr", '"fast"', "number")),
        (["train.steps=0"], ("[train]", "steps=0", "1")),
        (["train.optimizer=sgd"], ("train.optimizer", '"sgd"', "adam", "adamw", "muon")),
        (["train=3"], ("train", "3", "seed", "steps", "optimizer")),
        (["train.lr"], ("'train.lr'", "model.n_layers=4")),
        (["model.decoder.heads=3"], ("model.decoder.heads", "model.n_heads")),
        (["model.decoder_ffn_dim=64"], ("model.decoder_ffn_dim", "model.decoder.d_ff")),
        (["model.n_layer=3"], ("model.n_layer", "n_layers")),
        (["model.preset=transfomer-base"], ("transfomer-base", "transformer-base")),
        (["tokenizer.vocab_size=3"], ("[tokenizer]", "vocab_size=3", "8")),
        (["decode.beam=5", "decode.groups=2"], ("[decode]", "beam=5", "groups=2", "beam=4")),
        (
            ["task=classify", "data.media=[x]", "classify.modality=image", "augment.bands=2"],
            ("augment.bands", "classify"),
        ),
        (["task=caption", "augment.noise=0.1"], ("augment.noise", "caption")),
        (["task=identify", "augment.flip=true"], ("augment.flip", "identify")),
        (
            ["task=fill", "data.media=['x']", "model.family=audio-encoder", "augment.crop=2"],
            ("augment.crop", "fill"),
        ),
        (["task=classify", "data.media=[x]", "augment.rand=11"], ("[augment]", "rand=11", "10")),
    ],
)
def test_a_mistake_is_named_with_the_fix(words: list[str], facts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_settings(None, words)
    assert not missing(caught.value, *facts)


def test_changes_of_both_kinds_are_taken_where_the_kind_is_not_known_yet() -> None:
    words = ["task=fill", "data.media=['x']", "augment.crop=2", "augment.noise=0.1"]
    assert load_run_settings(None, words).augment.crop == 2
    assert (
        load_run_settings(None, ["task=classify", "data.media=[x]", "augment.rand=10"]).augment.rand
        == 10
    )


def test_every_change_is_of_images_or_of_recordings() -> None:
    names = [f"augment.{field.name}" for field in fields(AugmentSettings)]
    assert [*AUGMENT_IMAGES, *AUGMENT_AUDIO] == names


def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("# what\n\n[train]\nsteps = 3\nlr = true\n")
    with pytest.raises(ConfigError, match=r"r\.toml.*\b5\b.*train\.lr.*\btrue\b"):
        load_run_settings(path, [])


@pytest.mark.parametrize("text", ["data = 3\n", "task = 'translate'\ndata = [1]\n"])
def test_a_section_that_is_a_value_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"\bdata\b.*(3|\[1\]).*\bsource\b"):
        load_run_settings(path, [], {"data.pairs": ["x"]})


# Recipes


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_loads_and_has_a_description(name: str) -> None:
    path = recipe_path(name)
    settings = load_run_settings(path, [], is_recipe=True)
    assert settings.task in SPECS
    data = settings.data
    assert data.text or data.source or data.pairs or data.media
    assert read_back(settings) == settings
    assert len(about(path)) > 20
    assert path.parent == FOLDER


def test_the_files_of_a_recipe_are_looked_for_in_a_folder(tmp_path: Path) -> None:
    path = recipe_path("multi30k-en-de")
    names = ["train.en", "train.de", "val.en", "val.de"]
    for name in names[:3]:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=rf"multi30k-en-de.*val\.de.*{tmp_path}"):
        in_folder(path, tmp_path)
    (tmp_path / "val.de").touch()
    found = in_folder(path, tmp_path)
    assert found["data.source"] == [str(tmp_path / "train.en")]
    assert found["data.valid_target"] == [str(tmp_path / "val.de")]
    settings = load_run_settings(path, [], found)
    assert settings.data.target == (str(tmp_path / "train.de"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data\n", r"mine\.toml.*TOML.*\b1\b"),
        ('[data]\nsource = "train.en"\n', r"mine\.toml.*\b2\b.*data\.source.*train\.en"),
        ("data = 3\n", r"mine\.toml.*\b1\b.*data\b.*3"),
    ],
)
def test_a_broken_recipe_of_the_users_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert recipe_path(str(path)) == path
    with pytest.raises(ConfigError, match=message):
        load_run_settings(path, [], in_folder(path, tmp_path))


def test_recipes_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == recipe_names()
    assert main(["recipes", recipe_names()[0]]) == 0
    assert tomllib.loads(capsys.readouterr().out)["task"] in SPECS
    assert main(["recipes", "multi30k"]) == 2
    assert not missing(capsys.readouterr().err, "'multi30k'", "multi30k-en-fr")


WITHOUT_EFFECT = [
    ("train.rdrop=1", "embed"),
    ("train.label_smoothing=0.1", "embed"),
    ("train.label_smoothing_kind=torch", "embed"),
    ("train.label_smoothing=0.1 tag.crf=true", "tag"),
    ("train.label_smoothing=0.1 transcribe.ctc=1", "transcribe"),
    ("tokenizer.vocab_size=500 classify.modality=image", "classify"),
    ("tokenizer.kind=words classify.modality=video", "classify"),
    ("tokenizer.lowercase=true", "identify"),
    ("train.floor=0.1 train.schedule=constant", "complete"),
    ("train.cooldown=0.5 train.schedule=linear", "translate"),
]


@pytest.mark.parametrize(("words", "task"), WITHOUT_EFFECT)
def test_a_setting_without_effect_on_a_task_is_named(words: str, task: str) -> None:
    """With the other setting that takes its effect away, or the task."""
    first, *rest = words.split()
    key = first.partition("=")[0]
    with pytest.raises(ConfigError) as caught:
        load_run_settings(None, [first, *rest], {"task": task})
    why = [word.partition("=")[0] for word in rest if not word.startswith("classify.")]
    why = why or [spec_of(task).name]
    assert not missing(caught.value, key, *why)


def test_setting_the_default_value_is_not_an_error() -> None:
    """A run's own `config.toml`, which has every setting, serves as a recipe."""
    for task in SPECS:
        words = ["train.rdrop=0", "train.cooldown=0.2", "train.schedule=linear"]
        words += [
            "train.label_smoothing=0",
            "tokenizer.lowercase=false",
            "tokenizer.vocab_size=none",
        ]
        assert load_run_settings(None, words, {"task": task}).task == task


def test_what_rebuilds_hidden_parts_has_no_labels_to_smooth() -> None:
    media = {"task": "fill", "data.media": ["image"]}
    for word in ("train.label_smoothing=0.1", "tokenizer.kind=words", "train.rdrop=1"):
        assert load_run_settings(None, [word] if "rdrop" not in word else [], {"task": "fill"})
        with pytest.raises(ConfigError, match=rf"{word.partition('=')[0]}\b.*\bfill\b"):
            load_run_settings(None, [word], media)
