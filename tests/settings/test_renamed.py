"""Earlier names of settings, in files, arguments, options and Python."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.cli.main import main
from headway.errors import ConfigError, FolderError
from headway.settings.model import Seq2SeqSettings, StackSettings
from headway.settings.overrides import FROM_PYTHON, Overrides, parse_override
from headway.settings.renamed import KEYS, VALUES, RenamedSettingWarning, current, current_value
from headway.settings.run import load_resolved, load_run_settings, run_settings
from headway.settings.toml import comments_of, lines_of
from headway.tasks.history import entries

from ..facts import missing, naming

EARLIER = Path(__file__).parent / "earlier_names"
SHIPPED = Path(headway.__file__).parent / "shipped"
OLD = """task = "caption"

[model]
family = "picture-seq2seq"
wiring = "post"  # chosen: by hand

[model.picture]
patch = 8

[train]
pool = 4
smoothing = 0.0
metric = "exact"

[caption]
what = "videos"
"""


SIZES = """[model]
family = "seq2seq"
n_decoder_layers = 2  # chosen: by hand
d_decoder_ff = 64

[model.decoder]
n_heads = 4
"""


def test_sizes_of_the_decoder_move_to_a_section_of_their_own(tmp_path: Path) -> None:
    recipe = old_recipe(tmp_path, SIZES)
    with pytest.warns(RenamedSettingWarning, match=naming("model.n_decoder_layers")):
        settings = load_run_settings(recipe, [])
    model = settings.model
    assert isinstance(model, Seq2SeqSettings)
    assert model.decoder == StackSettings(n_layers=2, d_ff=64, n_heads=4)
    assert (model.stack("encoder").d_ff, model.stack("cross").d_ff) == (2048, 64)
    assert comments_of(SIZES)["model.decoder"] == {"n_layers": "chosen: by hand"}
    assert lines_of(SIZES)["model.decoder.d_ff"] == 4


def old_recipe(folder: Path, text: str = OLD) -> Path:
    path = folder / "old.toml"
    path.write_text(text)
    return path


@pytest.fixture(params=sorted(path.stem for path in EARLIER.glob("*.toml")))
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A shipped run with the `config.toml` that was written before settings were renamed."""
    folder = tmp_path / str(request.param)
    shutil.copytree(SHIPPED / str(request.param), folder)
    shutil.copy(EARLIER / f"{request.param}.toml", folder / "config.toml")
    return folder


def test_a_run_with_earlier_names_opens_and_answers_the_same(old_run: Path) -> None:
    new = SHIPPED / old_run.name
    (example,) = new.glob("example.*")
    x: Any = example.read_text().splitlines()[0] if example.suffix == ".txt" else example
    with pytest.warns(RenamedSettingWarning, match=r"config\.toml.*train\.smoothing"):
        run = headway.load(old_run)
    assert load_resolved(new / "config.toml") == run.settings
    assert (
        [*run(x).vector] == [*headway.load(new)(x).vector]
        if run.task == "embed"
        else (run(x).text == headway.load(new)(x).text)
    )


@pytest.mark.parametrize(("number", "line"), [(1, ""), (3, "format = 3\n")])
def test_a_run_of_another_format_is_rejected_in_one_line(
    number: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(SHIPPED / "tatoeba-de-en", run)
    text = (run / "config.toml").read_text().partition("\n")[2]  # without the checksum
    (run / "config.toml").write_text(text.replace("format = 2\n", line))
    for words in (["predict", str(run), "--text", "x"], ["info", str(run)], ["look", str(run)]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert not missing(err, str(run / "config.toml"), number)
        assert err.count("\n") == 1
    with pytest.raises(FolderError, match=naming(run / "config.toml", number)):
        headway.load(run)


def test_all_settings_of_a_file_are_read_by_their_earlier_names(tmp_path: Path) -> None:
    with pytest.warns(RenamedSettingWarning) as found:
        settings = load_run_settings(old_recipe(tmp_path), [], is_recipe=True)
    assert len(found) == 1
    line = str(found[0].message)
    assert not missing(line, "old.toml model.picture model.image train.pool train.bucket_steps")
    assert "\n" not in line
    assert settings.train.bucket_steps == 4
    assert settings.train.label_smoothing == 0.0
    assert settings.train.metric == "exact_match"
    assert settings.caption.modality == "video"
    assert settings.asked["model.image.patch"] == 8
    assert settings.asked["model.family"] == "image-seq2seq"
    assert settings.asked.origin("model.image.patch").text == "old.toml, line 8"
    assert not settings.asked.keys() & {*KEYS, "model.picture.patch"}


def test_every_earlier_name_leads_to_a_setting() -> None:
    for key in {*KEYS.values(), *VALUES}:
        section, _, name = key.partition(".")
        fields = {"model.image", "model.audio", "model.family", "model.source_attention"}
        settings: Any = run_settings({"task": "translate"})
        if key not in fields and section != "model":
            assert hasattr(getattr(settings, section), name), key
    assert not KEYS.keys() & set(KEYS.values())


def test_lines_and_comments_are_found_by_current_names() -> None:
    assert lines_of(OLD)["train.bucket_steps"] == 11
    assert comments_of(OLD)["model"] == {"block_layout": "chosen: by hand"}


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("train.pool=3", "train.bucket_steps", 3),
        ("model.picture.patch=8", "model.image.patch", 8),
        ("classify.what=sounds", "classify.modality", "audio"),
        ("classify.modality=sounds", "classify.modality", "audio"),
        ("data.long=windows", "data.on_long", "split"),
        ("train.metric=explained", "train.metric", "variance_explained"),
        ("model.family=sound-encoder", "model.family", "audio-encoder"),
    ],
)
def test_an_argument_may_have_an_earlier_name_or_value(word: str, path: str, value: object) -> None:
    with pytest.warns(RenamedSettingWarning):
        assert parse_override(word) == (path.split("."), value)


def test_an_argument_replaces_the_setting_of_a_file_by_either_name(tmp_path: Path) -> None:
    for text, word in ((OLD, "train.bucket_steps=9"), (OLD, "train.pool=9")):
        with pytest.warns(RenamedSettingWarning):
            settings = load_run_settings(old_recipe(tmp_path, text), [word], is_recipe=True)
        assert settings.train.bucket_steps == 9


def test_both_names_together_are_an_error(tmp_path: Path) -> None:
    both = OLD.replace("pool = 4", "pool = 4\nbucket_steps = 4")
    with pytest.raises(ConfigError, match=r"old\.toml.*train\.pool.*train\.bucket_steps"):
        load_run_settings(old_recipe(tmp_path, both), [], is_recipe=True)
    with pytest.raises(ConfigError, match=r"train\.pool.*train\.bucket_steps"):
        Overrides.from_arguments(["train.bucket_steps=1", "train.pool=1"])
    with pytest.raises(ConfigError, match=r"train\.pool.*train\.bucket_steps"):
        Overrides({"train.pool": 1, "train": {"bucket_steps": 1}})


def test_python_takes_earlier_names() -> None:
    with pytest.warns(RenamedSettingWarning, match=r"train\.smoothing.*train\.label_smoothing"):
        found = Overrides({"train": {"smoothing": 0.2}, "decode.alpha": 1.0}, FROM_PYTHON)
    assert found["train.label_smoothing"] == 0.2
    assert found["decode.length_penalty_alpha"] == 1.0
    run = headway.load(SHIPPED / "tatoeba-de-en")
    text = "Er fährt mit dem Rad."
    with pytest.warns(RenamedSettingWarning, match=r"decode\.alpha"):
        old = run(text, alpha=3.0).score
    assert old == run(text, length_penalty_alpha=3.0).score != run(text).score
    with pytest.raises(ConfigError, match=r"alpha.*length_penalty_alpha"):
        run(text, alpha=3.0, length_penalty_alpha=3.0)


def test_an_option_may_have_an_earlier_name_and_is_noted_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["predict", "tatoeba-de-en", "--text", "Hallo.", "--scores"]
    assert main([*command, "--length-penalty-alpha", "3"]) == 0
    want = capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*command, "--alpha", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.out == want.out
    notes = [line for line in printed.err.splitlines() if "--alpha" in line]
    assert len(notes) == 1
    assert not missing(notes[0], "decode.alpha decode.length_penalty_alpha")


def test_names_of_today_are_not_noted(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_run_settings(
            None, ["train.bucket_steps=3", "classify.modality=image"], {"task": "classify"}
        )
    assert current("model.image.patch") == "model.image.patch"
    assert current_value("train.metric", "bleu") == "bleu"


def test_metrics_of_an_older_log_have_their_current_names(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"kind": "valid", "step": 1, "exact": 3.0, "baselines": {"x": {"exact": 1.0}}}\n'
    )
    (found,) = entries(path)
    assert found["exact_match"] == 3.0
    assert found["baselines"] == {"x": {"exact_match": 1.0}}


def test_a_trained_run_takes_a_decoding_setting_by_either_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    for word in ("decode.alpha=3", "decode.length_penalty_alpha=3"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main(["predict", "tatoeba-de-en", "--text", "Guten Tag.", "--scores", word]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
