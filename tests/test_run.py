"""A run in Python: called, streamed, scored, looked into; by several at the same time."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import pkgutil
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway.errors import ConfigError, DataError, UserError
from headway.settings.folder import load_run
from headway.tasks import dataset
from headway.tasks.answers import (
    Answer,
    Answers,
    GapAnswer,
    LabelAnswer,
    TagAnswer,
    TextAnswer,
    VectorAnswer,
)
from tests.facts import figures, missing, naming

from .interop.padded_runs import answers, lines_for, media_lines, media_run, tiny_run
from .once import once

NAMES = (
    "load", "train", "check", "available", "Run", "Answer", "Answers", "Scores", "Report",
    "UserError", "Parts",
)  # fmt: skip
TASKS = ("translate", "complete", "classify", "fill", "tag", "embed")


@cache
def shipped(name: str) -> headway.Run:
    return headway.load(name, device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        for task in TASKS:
            tiny_run(folder / task, task)
        for name in ("see", "watch", "identify"):
            media_run(folder / name, name)

    return once(tmp_path_factory, "python-runs", make)


def test_public_names_survive_importing_every_module() -> None:
    before = {name: getattr(headway, name) for name in NAMES}
    for found in pkgutil.walk_packages(headway.__path__, "headway."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for _ in range(2):
        for name in NAMES:
            assert getattr(headway, name) is before[name]
    assert sorted(headway.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(headway))
    assert "tatoeba-de-en" in headway.available()
    assert headway.load("stories").task == headway.load("stories").task == "complete"
    with pytest.raises(AttributeError, match="'loud'"):
        _ = headway.loud


def test_loading_reads_settings_and_no_torch() -> None:
    code = (
        "import sys, headway; run = headway.load('tatoeba-de-en');"
        "run.task, run.needs, run.labels, run.scores, run.options(), repr(run), headway.Answers;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Frame:
    """A data frame as packages have them: named columns, each with values."""

    def __init__(self, **columns: list[Any]) -> None:
        self.held = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)  # as pandas: names, not rows


class ArrowTable:
    """An Arrow table: `columns` are values without names."""

    def __init__(self, **columns: list[Any]) -> None:
        self.held = columns
        self.column_names = list(columns)
        self.columns = list(columns.values())

    def __getitem__(self, name: str) -> list[Any]:
        return self.held[name]


class Dataset:
    """A dataset of Hugging Face: rows, and features."""

    def __init__(self, **columns: list[Any]) -> None:
        self.held = columns
        self.column_names = list(columns)
        self.features: dict[str, object] = dict.fromkeys(columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in zip(*self.held.values(), strict=True):
            yield dict(zip(self.held, row, strict=True))

    def __getitem__(self, name: str) -> list[Any]:
        return self.held[name]


def records(**columns: list[Any]) -> list[dict[str, Any]]:
    return list(Dataset(**columns))


TABLES: list[Callable[..., Any]] = [Frame, ArrowTable, Dataset, records]


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_a_table_are_answered_and_not_the_names_of_its_columns(
    table: Callable[..., Any], runs: Path
) -> None:
    run = headway.load(runs / "classify")
    texts = ["ba de", "fi ko", "go"]
    columns = {"n": [7, 8, 9], "text": texts, "label": ["x", "y", "z"], "note": ["a", "b", "c"]}
    rows = table(**columns)
    alone = run(texts)
    for found in (run(rows), list(run.stream(rows))):
        assert [one.text for one in found] == alone.texts
        assert [one.row for one in found] == records(**columns)
    named = table(id=["p", "q", "r"], body=texts, note=["a", "b", "c"])
    found = run(named, text="body")
    assert found.texts == alone.texts
    assert [one.id for one in found] == ["p", "q", "r"]
    with pytest.raises(UserError, match="note"):
        run(table(note=[1, 2]))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_with_extra_columns_is_scored(table: Callable[..., Any], runs: Path) -> None:
    run = headway.load(runs / "classify")
    texts, labels = ["ba de", "fi ko", "go"], [*run.labels, *run.labels, *run.labels][:3]
    plain = pytest.approx(dict(run.evaluate(records(text=texts, label=labels))))
    assert dict(run.evaluate(table(n=[7, 8, 9], text=texts, label=labels))) == plain
    other = table(n=[7, 8, 9], body=texts, kind=labels, note=texts)
    assert dict(run.evaluate(other, text="body", label="kind")) == plain


def test_rows_of_other_tasks_are_bound_as_in_training(runs: Path) -> None:
    translate, tag = headway.load(runs / "translate"), headway.load(runs / "tag")
    texts = ["ba de", "fi ko"]
    assert translate(Frame(n=[1, 2], source=texts, target=texts)).texts == translate(texts).texts
    assert translate(Frame(text=texts)).texts == translate(texts).texts
    words = [text.split() for text in texts]
    assert tag(Frame(tokens=words, ner_tags=[[0, 0]] * 2)).texts == tag(texts).texts
    assert tag(Frame(text=texts)).texts == tag(texts).texts
    see = headway.load(runs / "see")
    pixels = [np.full((8, 8, 3), value, np.uint8) for value in (0, 255)]
    found = see(Frame(image=pixels, name=["a", "b"]), image="image")
    assert [one.row for one in found] == [{"name": "a"}, {"name": "b"}]
    assert found.texts == see(pixels).texts


def test_a_row_without_a_text_is_an_error_of_that_row(runs: Path) -> None:
    run = headway.load(runs / "classify")
    rows = Frame(text=["ba de", None, float("nan"), 7])
    found = list(run.stream(rows, errors="keep"))
    assert [bool(one.error) for one in found] == [False, True, True, True]
    assert "'text'" in found[1].error
    assert "7" in found[3].error
    assert len(run(Frame(text=[]))) == 0
    with pytest.raises(UserError, match=r"data\['train'\]"):
        run({"train": Dataset(text=["ba"]), "test": Dataset(text=["de"])})


def test_missing_files_are_an_error_of_loading(runs: Path, tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", "classify")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=naming(folder, "model.safetensors")):
        headway.load(folder)
    with pytest.raises(UserError, match=naming("no-such-run tatoeba-de-en")):
        headway.load("no-such-run")
    with pytest.raises(UserError, match=naming("load() tatoeba-de-en")):
        headway.load()


@pytest.mark.parametrize(
    ("names", "options", "facts"),
    [
        (("tatoeba-de-en", "digits"), {}, "/digits transcribe /tatoeba-de-en translate"),
        (("digits",), {"precision": "fp8"}, "precision fp8 bf16"),
        (("digits",), {"device": "tpu"}, "tpu cpu cuda"),
        (("digits",), {"device": None}, "None cpu cuda"),
        (("digits",), {"engine": "jax"}, "engine jax onnx"),
        ((["digits", "digits"],), {}, "`['digits', 'digits']` load("),
        ((None,), {}, "None load("),
        (("",), {}, "'' load("),
    ],
)
def test_wrong_arguments_are_an_error_of_loading(
    names: tuple[str, ...], options: dict[str, str], facts: str
) -> None:
    with pytest.raises(UserError, match=naming(facts)):
        headway.load(*names, **options)


@pytest.mark.parametrize("task", TASKS)
def test_one_gives_an_answer_and_several_give_what_the_command_prints(
    task: str, runs: Path
) -> None:
    run = headway.load(runs / task, device="cpu")
    lines = lines_for(task)
    found = run(lines)
    assert isinstance(found, Answers)
    assert found.to_dicts() == answers(runs / task, lines)
    first = run(lines[0])
    assert isinstance(first, Answer)
    assert first.text == found[0].text
    assert [one.text for one in run.stream(f"{line}\n" for line in lines)] == found.texts
    assert run(tuple(lines)).texts == run(np.array(lines)).texts == found.texts  # type: ignore[union-attr]


def test_each_task_has_its_kind_of_answer(runs: Path) -> None:
    kinds: dict[str, type[Answer]] = {
        "translate": TextAnswer, "complete": TextAnswer, "classify": LabelAnswer,
        "fill": GapAnswer, "tag": TagAnswer, "embed": VectorAnswer,
    }  # fmt: skip
    for task, kind in kinds.items():
        run = headway.load(runs / task, device="cpu")
        found = run([lines_for(task)[0]] * 2)
        assert all(isinstance(one, kind) for one in found)
        if task == "embed":
            assert found.vectors.shape[0] == 2
        elif task != "tag":
            assert all(0 < (one.score or 0) <= 1 for one in found)


def test_what_can_be_read_once_is_for_streams(runs: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")
    for given in (iter(["ba"]), (line for line in ["ba"]), map(str, ["ba"])):
        with pytest.raises(TypeError, match=r"run\.stream"):
            run(given)
    for one in ("ba", b"ba", {"text": "ba"}, 5):
        with pytest.raises(TypeError, match=r"run\(x\)"):
            run.stream(one)  # type: ignore[arg-type]


def test_streams_hold_little_and_keep_the_order(runs: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")
    taken = 0

    def lines() -> Iterator[dict[str, object]]:
        nonlocal taken
        for taken in range(1000):
            yield {"text": f"ba de {taken}", "id": taken}

    found = run.stream(lines())
    assert next(found).id == 0
    assert taken < 300
    assert [one.id for one in found] == list(range(1, 1000))
    assert figures(found.summary())[0] == "1,000"


def test_errors_are_raised_or_kept_in_their_place(runs: Path) -> None:
    run = headway.load(runs / "fill", device="cpu")
    given = ["ba [MASK]", "no gap", {"text": 7, "id": "c"}, "[MASK] de"]
    with pytest.raises(DataError, match=naming("2 `'no gap'` [MASK]")):
        run(given)
    with pytest.raises(DataError, match=naming(1, 7)):
        run([7, "ba [MASK]"])
    found = list(run.stream(given, errors="keep"))
    assert [bool(one.error) for one in found] == [False, True, True, False]
    assert not missing(found[1].error, "`'no gap'` [MASK]")
    assert not missing(found[2].error, 3, 7)
    assert found[2].id == "c"
    assert found[3].text == run("[MASK] de").text
    with pytest.raises(UserError, match="errors='leave'"):
        run.stream(given, errors="leave")  # type: ignore[arg-type]


def test_an_error_of_the_source_comes_after_the_answers_so_far(runs: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")

    def lines() -> Iterator[str]:
        yield from ["ba", "de"]
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(run.stream(lines()))
    assert len(found) == 2


def test_options_are_checked_and_belong_to_one_call(runs: Path) -> None:
    run = shipped("tatoeba-de-en")
    before = run("Guten Morgen.").to_dict()
    several = run("Guten Morgen.", beam=4, n_best=3)
    assert len(several.others) == 2
    assert isinstance(several.others[0], TextAnswer)
    assert run("Guten Morgen.").to_dict() == before
    with pytest.raises(TypeError, match=naming("beem= tatoeba-de-en beam")):
        run("Guten Morgen.", beem=2)
    with pytest.raises(UserError, match=naming("beam=0 1")):
        run("Guten Morgen.", beam=0)
    with pytest.raises(UserError, match=naming("precision headway.load(")):
        run("Guten Morgen.", precision="int8")
    with pytest.raises(TypeError, match=naming("beam= classify")):
        headway.load(runs / "classify", device="cpu")("ba", beam=2)
    settings = run.settings
    with pytest.raises(AttributeError, match="'settings'"):
        run.settings = None  # type: ignore[assignment]
    assert run.settings is settings
    assert "Good" in run("Guten Morgen.", prefix="Good").text
    assert "morning" not in run("Guten Morgen.", banned=["morning"]).text
    assert run("Guten Morgen.", alignments=True).alignment


@pytest.mark.parametrize("options", [{"stop": 3}, {"required": 3}, {"banned": [3]}])
def test_options_of_several_texts_take_no_others(options: dict[str, object]) -> None:
    run = shipped("stories" if "stop" in options else "tatoeba-de-en")
    [(name, value)] = options.items()
    with pytest.raises(UserError, match=naming(f"{name}={value} {name}=[…]")):
        run("a", **options)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"beam": None}, "beam None"),
        ({"length_penalty_alpha": "x"}, "length_penalty_alpha 'x'"),
        ({"length_penalty": None}, "length_penalty None gnmt"),
    ],
)
def test_options_have_types(options: dict[str, object], facts: str) -> None:
    with pytest.raises(UserError, match=naming(facts)):
        shipped("tatoeba-de-en")("a", **options)


def test_errors_in_python_name_no_options(runs: Path, tmp_path: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")
    calls: list[Callable[[], object]] = [
        lambda: list(shipped("stories").write("a", beam=3)),
        lambda: run.export("none", tmp_path / "a"),
        lambda: run.export("torch", tmp_path / "a", int8=True),
        lambda: headway.load(runs / "classify", engine="jax"),
        lambda: headway.train("classify", out=tmp_path / "a"),
        lambda: headway.check("classify"),
        lambda: headway.train("distil", out=tmp_path / "a"),
    ]
    for call in calls:
        with pytest.raises(UserError) as error:
            call()
        assert "--" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "here"),
    [("predict", "run(texts)"), ("predict_proba", ".probabilities"), ("fit", "headway.train("),
     ("generate", "run.write("), ("save_pretrained", "run.export(")],
)  # fmt: skip
def test_methods_of_other_libraries_name_what_does_it_here(name: str, here: str) -> None:
    run = shipped("stories")
    assert not hasattr(run, name)
    with pytest.raises(AttributeError) as error:
        getattr(run, name)
    assert here in str(error.value)
    assert (error.value.name, error.value.obj) == (name, run)


def test_a_missing_attribute_has_a_hint_only_where_there_is_one() -> None:
    with pytest.raises(AttributeError, match="'zzz'") as error:
        _ = shipped("stories").zzz
    assert "(" not in str(error.value)  # as calls that do the same would have


def test_an_error_inside_a_property_keeps_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: headway.Run) -> None:
        raise AttributeError("reason")

    monkeypatch.setattr(headway.Run, "tokenizer", property(broken))
    with pytest.raises(AttributeError, match=r"^reason$"):
        _ = shipped("stories").tokenizer


def test_probabilities_need_no_option() -> None:
    with pytest.raises(TypeError, match=r"\.probabilities"):
        shipped("stories")("a", proba=True)


def test_errors_without_data_name_the_argument(tmp_path: Path) -> None:
    for task in ("classify", "translate", "caption"):
        with pytest.raises(UserError) as error:
            headway.train(task, out=tmp_path / "a")
        assert "FILES" not in str(error.value)
        assert "--" not in str(error.value)
        assert not missing(error.value, "data", "table")


def test_settings_of_training_are_keywords_and_others_are_named(tmp_path: Path) -> None:
    data = {"text": [f"a b{i}" for i in range(60)], "label": ["x", "y"] * 30}
    tiny = {"model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.d_ff": 16}
    run = headway.train("classify", data, out=tmp_path / "run", start="none", epochs=2, seed=5,
                        settings=tiny, device="cpu", quiet=True)  # fmt: skip
    asked = load_run(run.folder).asked
    assert (asked["train.epochs"], asked["train.seed"]) == (2, 5)
    calls: dict[str, dict[str, Any]] = {
        '"classify.balance": True': {"class_weights": "balanced"},
        '"lora.rank": 8': {"lora": 8},
        '"train.lr": 0.1': {"learning_rate": 0.1},
        "train.epochs": {"epochs": 2, "settings": {"train.epochs": 3}},
    }
    for found, keywords in calls.items():
        with pytest.raises(ConfigError, match=re.escape(found)):
            headway.train("classify", data, out=tmp_path / "no", **keywords)
    assert not (tmp_path / "no").exists()


def test_attributes_of_a_run_cannot_be_deleted() -> None:
    with pytest.raises(AttributeError, match="'settings'"):
        del shipped("stories").settings
    assert shipped("stories").settings.task == "complete"


def test_scores_are_of_the_model_that_was_kept(runs: Path, tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", "classify")
    rows: list[dict[str, object]] = [
        {"kind": "valid", "step": 1, "accuracy": 70.0},
        {"kind": "valid", "step": 2, "accuracy": 60.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert headway.load(folder).scores == {"accuracy": 60.0}
    rows.append({"kind": "end", "step": 2, "kept": "best", "scores": {"best": {"accuracy": 70.0}}})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert headway.load(folder).scores == {"accuracy": 70.0}


def test_a_run_is_sent_by_its_name(runs: Path) -> None:
    run = headway.load(runs / "classify", device="cpu", precision="fp32")
    again = pickle.loads(pickle.dumps(run))
    assert repr(again) == repr(run)
    assert again("ba").to_dict() == run("ba").to_dict()
    with run as same:
        assert same is run
    assert run("ba").label in run.labels


def test_pairs_and_fields_are_mappings(runs: Path, tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "pairs", "classify")
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(
        config.replace('other_field = ""', 'other_field = "hypothesis"')
    )
    run = headway.load(folder, device="cpu")
    assert [need.name for need in run.needs] == ["text", "other"]
    pair = run({"text": "ba", "other": "de", "label": "B-x"})
    assert pair.to_dict() == run({"text": "ba", "hypothesis": "de"}).to_dict()
    pages = run.look({"text": "ba", "other": "de"}), run.look("ba\tde")
    one, other = (page.looks[0]["streams"]["text"]["pieces"] for page in pages)
    assert one == other
    with pytest.raises(DataError, match=naming("1 'other' 'text'")):
        run({"text": "ba"})
    with pytest.raises(DataError, match=naming("1 {'text': 'other':")):
        run("ba")
    with pytest.raises(DataError, match=naming("1 'oter' other")):
        run({"text": "ba", "other": "de", "oter": ""})


def test_columns_inside_others_are_found_where_they_were_in_training(
    runs: Path, tmp_path: Path
) -> None:
    folder = tiny_run(tmp_path / "run", "translate")
    config = (folder / "config.toml").read_text()
    for side, name in (("source", "de"), ("target", "en")):
        assert f'{side}_field = "{side}"' in config
        config = config.replace(f'{side}_field = "{side}"', f'{side}_field = "translation.{name}"')
    (folder / "config.toml").write_text(config)
    run = headway.load(folder, device="cpu")
    row = {"translation": {"de": "ba de", "en": "ba"}}
    assert run(row, max_len=3).source == "ba de"
    assert run.evaluate([row] * 3, max_len=3).examples == run.evaluate(
        {"source": ["ba de"] * 3, "target": ["ba"] * 3},
        source="source", target="target", max_len=3,
    ).examples  # fmt: skip


def test_a_sentence_may_be_given_as_words(runs: Path) -> None:
    run = headway.load(runs / "tag", device="cpu")
    in_text = run("ba de").to_dict()
    assert in_text.pop("offsets") == [[0, 2], [3, 5]]
    assert in_text.pop("source") == "ba de"
    assert run({"words": ["ba", "de"]}).to_dict() == in_text
    assert run("ba\tde").words == ("ba", "de")


@pytest.mark.parametrize("name", ["see", "watch", "identify"])
def test_media_in_memory_are_answered_as_their_files(name: str, runs: Path, tmp_path: Path) -> None:
    run = headway.load(runs / name, device="cpu")
    path = media_lines(tmp_path / "media", name)[1]
    by_file = run(path)
    assert by_file.label in run.labels
    assert run(Path(path)).probabilities == by_file.probabilities
    given: list[object] = []
    if name == "identify":
        import soundfile

        samples, rate = soundfile.read(path, dtype="float32")
        data = Path(path).read_bytes()
        dataset = {"array": samples, "sampling_rate": rate, "path": "nowhere.wav"}
        given = [(samples, rate), {"audio": samples, "rate": rate}, data]
        given += [dataset, {"audio": dataset}, {"audio": {"bytes": data, "path": "nowhere.wav"}}]
        part = run({"bytes": data, "start": 0.0, "end": 0.05})
        assert part.probs == run({"path": path, "start": 0.0, "end": 0.05}).probs
    else:
        pixels = np.load(path)
        given = [pixels, {"image" if name == "see" else "video": pixels}]
    for one in given:
        found = run(one)
        assert isinstance(found, LabelAnswer)
        assert list(found.probs) == pytest.approx(by_file.probs, abs=1e-3)
    assert len(run([given[0], path])) == 2


AUDIO = np.zeros(800, np.float32)


@pytest.mark.parametrize(
    ("name", "given", "facts"),
    [
        ("identify", AUDIO, "1 (800,) `(samples, 16000)`"),
        ("identify", {"audio": AUDIO}, "1 (800,) `(samples, 16000)`"),
        ("identify", (np.full(800, np.nan), 8000), "1 800 NaN"),
        ("identify", (np.zeros((2, 3, 4), np.float32), 8000), "1 `(2, 3, 4)`"),
        ("identify", (np.zeros(0, np.float32), 8000), "1 (0,)"),
        ("identify", b"", "1 bytes"),
        ("identify", b"abc", "1 wav flac .npy"),
        ("identify", "nowhere.wav", "nowhere.wav"),
        ("identify", {"audoi": AUDIO, "rate": 8000}, "1 'audio' 'audoi' 'rate'"),
        ("identify", {"audio": AUDIO, "rate": 8000, "start": 0.01}, "1 array"),
        ("see", {"image": np.zeros((9, 9), np.uint8), "box": [0, 0, 4, 4]}, "1 array"),
        ("identify", {"audio": "a.wav", "start": -0.5}, "1 `start` -0.5 0"),
        ("see", {"image": "a.png", "box": 4}, "1 `box` 4"),
        ("see", np.zeros((3, 20, 30), np.uint8), "1 `(3, 20, 30)` `(H, W, 3)`"),
        ("see", np.zeros((20, 30), np.int64), "1 int64 uint8"),
        ("see", np.full((20, 30), 2.0), "1 0 pixels"),
        ("see", np.full((20, 30), np.nan), "1 0 pixels"),
        ("see", np.zeros(5, np.uint8), "1 (5,) `Y X [C]`"),
        ("see", np.zeros((0, 30), np.uint8), "1 `(0, 30)`"),
        ("watch", np.zeros((20, 30), np.uint8), "1 `(20, 30)` `T Y X [C]`"),
        ("classify", b"ba", "1 b'ba' .decode()"),
        ("classify", Path("some.txt"), "1 run.stream(open('some.txt'))"),
    ],
)
def test_a_wrong_input_is_an_error_with_the_reason(
    name: str, given: object, facts: str, runs: Path
) -> None:
    with pytest.raises(DataError, match=naming(facts)):
        headway.load(runs / name, device="cpu")(given)


def test_an_open_binary_file_is_not_a_list_of_inputs(runs: Path) -> None:
    with pytest.raises(TypeError, match=naming("BytesIO .read()")):
        headway.load(runs / "see", device="cpu")(io.BytesIO(b"abc"))


def test_arrays_of_images_are_several(runs: Path) -> None:
    run = headway.load(runs / "see", device="cpu")
    found = run(np.zeros((2, 20, 30, 3), np.uint8))
    assert isinstance(found, Answers)
    assert len(found) == 2


def test_a_folder_is_not_one_input(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming(tmp_path, ".iterdir())")):
        headway.load(runs / "see", device="cpu")(tmp_path)


def test_text_is_written_in_pieces() -> None:
    run = shipped("stories")
    pieces = list(run.write("Once upon a time", max_len=8, sample=False))
    assert len(pieces) > 3
    whole = run("Once upon a time", max_len=8, sample=False, beam=1)
    assert "".join(pieces) == whole.text
    left = run.write("Once upon a time", max_len=200)
    next(left)
    left.close()  # type: ignore[attr-defined]
    assert run("Once", max_len=2, beam=1).text  # the model is free again
    with pytest.raises(UserError, match=naming("write() tatoeba-de-en translate")):
        shipped("tatoeba-de-en").write("Guten Morgen.")


def test_the_likeliest_of_given_texts_is_chosen() -> None:
    run = shipped("stories")
    found = run.choose("Tom was sad. He began to", among=["cry", "quantum, field"])
    assert isinstance(found, LabelAnswer)
    assert found.label == "cry"
    assert set(found.probabilities) == {"cry", "quantum, field"}
    for among in ([], ["one"], ["a", "a"], ["a", ""], [1, 2], None, "ab"):
        with pytest.raises(UserError, match="among="):
            run.choose("Tom", among=among)  # type: ignore[arg-type]
    several = run.choose(["Tom was sad. He began to"], among=["cry", "fly"])
    assert isinstance(several, Answers)
    with pytest.raises(UserError, match=naming("among='cry' among=[…]")):
        run.choose("a", among="cry")
    shots = [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]
    assert run("fine", shots=shots).label in ("yes", "no")


def test_scores_are_of_files_or_of_memory(tmp_path: Path) -> None:
    run = shipped("tatoeba-de-en")
    rows = [("Guten Morgen.", "Good morning."), ("Danke.", "Thanks.")]
    path = tmp_path / "test.tsv"
    path.write_text("".join(f"{de}\t{en}\n" for de, en in rows))
    by_file = run.evaluate(path)
    in_memory = run.evaluate([{"source": de, "target": en} for de, en in rows])
    assert in_memory["chrf"] == by_file["chrf"] == run.evaluate(pairs=str(path))["chrf"]
    assert "chrf" in by_file
    named = run.evaluate({"de": [de for de, _ in rows], "en": [en for _, en in rows]},
                         source="de", target="en", beam=1)  # fmt: skip
    assert named["loss"] == pytest.approx(by_file["loss"])
    with pytest.raises(UserError, match=naming("tatoeba-de-en run.evaluate(")):
        run.evaluate()
    with pytest.raises(TypeError, match="fiel="):
        run.evaluate(fiel="test.tsv")


def test_looking_leaves_the_run_as_it_is(runs: Path, tmp_path: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")
    before = run("ba de").to_dict()
    page = run.look("ba de")
    page.save(tmp_path / "look.html")
    assert (tmp_path / "look.html").stat().st_size > 10_000
    assert page._repr_html_().startswith("<iframe")
    assert len(repr(page)) < 100
    assert run("ba de").to_dict() == before


@pytest.mark.parametrize(
    ("option", "here"),
    [("num_beams", "beam"), ("max_new_tokens", "max_len"), ("num_return_sequences", "n_best")],
)
def test_an_option_of_another_library_is_translated(option: str, here: str) -> None:
    run = headway.load("tatoeba-de-en", device="cpu")
    with pytest.raises(headway.UserError) as error:
        run("Danke.", **{option: 2})
    assert f"{here}=" in str(error.value)


def test_options_of_a_page_determine_the_text_that_the_model_generates() -> None:
    run = headway.load("stories", device="cpu")
    options = ({"new": 0}, {"new": 3}, {"output": ", , ,", "new": 0}, {"begin": "!", "new": 1})
    pages = [run.look("Once upon a time", checkpoints=False, **more) for more in options]
    given, *longer = (page.looks[0]["streams"]["text"]["pieces"] for page in pages)
    added = [pieces[len(given) :] for pieces in longer]
    assert len(added[0]) == 3
    assert added[1].count(",") == 3
    assert "!" in added[2]


def test_cards_for_notebooks_show_text_as_text(runs: Path) -> None:
    card = headway.load(runs / "classify", device="cpu")._repr_html_()
    assert "B-x" in card
    assert "<script" not in card
    assert tomllib.loads((runs / "classify" / "config.toml").read_text())["task"] in card


QUESTIONS: dict[str, list[Any]] = {
    "tatoeba-de-en": ["Guten Morgen.", "Wo ist der Bahnhof?", "Danke."],
    "tatoeba-en-de": ["Good morning.", "Where is he?"],
    "stories": ["Once upon a time", "The dog"],
    "digits": ["example.wav"],
    "shapes": ["example.png"],
}
SHORT: dict[str, dict[str, Any]] = {"stories": {"max_len": 8, "sample": False, "beam": 1}}


def asked_by_threads(n_threads: int, n_calls: int, looked: headway.Run, text: str) -> None:
    """Every shipped model at once, while a page is made of one of them."""
    runs = {name: shipped(name) for name in QUESTIONS}
    questions = QUESTIONS
    if looked not in runs.values():
        runs, questions = {**runs, "looked": looked}, {**QUESTIONS, "looked": [text]}
    serial = {
        (name, n): runs[name](x, **SHORT.get(name, {})).to_dict()
        for name, xs in questions.items()
        for n, x in enumerate(xs)
    }
    keys = list(serial)
    begin = threading.Barrier(n_threads + 1)

    def ask(worker: int) -> list[str]:
        begin.wait()
        wrong = []
        for call in range(n_calls):
            name, n = keys[(worker + call) % len(keys)]
            found = runs[name](questions[name][n], **SHORT.get(name, {})).to_dict()
            if found != serial[name, n]:
                wrong.append(f"{name}: {found} instead of {serial[name, n]}")
        return wrong

    def look() -> list[str]:
        begin.wait()
        looked.look(text)
        return []

    with ThreadPoolExecutor(n_threads + 1) as pool:
        jobs = [pool.submit(ask, worker) for worker in range(n_threads)]
        jobs.append(pool.submit(look))
        assert [wrong for job in jobs for wrong in job.result()] == []


def test_threads_get_the_answers_that_they_would_get_alone(runs: Path) -> None:
    asked_by_threads(8, 2, headway.load(runs / "classify", device="cpu"), "ba de")


@pytest.mark.slow
def test_threads_get_them_again_and_again() -> None:
    asked_by_threads(8, 200, shipped("tatoeba-de-en"), "Guten Morgen.")


def test_the_input_of_a_stream_may_call_the_same_run(runs: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")

    def lines() -> Iterator[str]:
        for word in ("ba", "de", "fi"):
            yield f"{word} {run(word).label}"

    assert len(list(run.stream(lines()))) == 3


def test_others_are_answered_while_a_stream_waits_for_input(runs: Path) -> None:
    run = headway.load(runs / "classify", device="cpu")
    answered = threading.Event()

    def lines() -> Iterator[str]:
        yield "ba"
        assert answered.wait(20)
        yield "de"

    def other() -> None:
        run("fi")
        answered.set()

    found = run.stream(lines())
    thread: Callable[[], None] = threading.Thread(target=other).start
    thread()
    assert len(list(found)) == 2


class Counted:
    """A lock that knows how often it was given back."""

    def __init__(self) -> None:
        self.inner, self.n = threading.RLock(), 0

    def acquire(self) -> bool:
        return self.inner.acquire()

    def release(self) -> None:
        self.n += 1
        self.inner.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("task", ["translate", "complete", "fill"])
def test_others_get_their_turn_between_two_batches(task: str, runs: Path) -> None:
    run = headway.load(runs / task, device="cpu")
    lines = [lines_for(task)[0]] * 12
    run(lines[0])  # now the weights are read
    object.__setattr__(run.opened, "lock", lock := Counted())
    whole = run(lines, batch_tokens=100_000).texts
    together, lock.n = lock.n, 0
    assert run(lines, batch_tokens=1).texts == whole  # a batch each
    assert lock.n >= together + 11


@pytest.mark.parametrize("name", ["see", "identify"])
def test_they_do_between_batches_of_media(
    name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = headway.load(runs / name, device="cpu")
    paths = media_lines(tmp_path / "media", name)[1:2] * 12
    run(paths[0])
    object.__setattr__(run.opened, "lock", lock := Counted())
    whole = run(paths).labels
    together, lock.n = lock.n, 0
    monkeypatch.setitem(dataset.READ_AT_ONCE, "cpu", 1)  # a batch each
    assert run(paths).labels == whole
    assert lock.n >= together + 11


def test_they_do_while_it_is_scored() -> None:
    run = shipped("tatoeba-de-en")
    rows = [{"source": "Danke.", "target": "Thanks."}, {"source": "Gut.", "target": "Good."}]
    run("Danke.")
    object.__setattr__(run.opened, "lock", lock := Counted())
    run.evaluate(rows)
    together, lock.n = lock.n, 0
    run.evaluate(rows, batch_tokens=1)
    assert lock.n > together > 2


def test_entities_have_their_offsets_in_the_text(runs: Path) -> None:
    run = headway.load(runs / "tag")
    text = "  ba, de. "
    answer = run(text)
    assert answer.words == ("ba", ",", "de", ".")
    assert [text[start:end] for start, end in answer.offsets] == list(answer.words)
    assert answer.tags == run({"words": list(answer.words)}).tags
    marked = TagAnswer(
        words=("Honolulu", ",", "Hawaii"), tags=("B-loc", "I-loc", "I-loc"), marked=True,
        offsets=((3, 11), (11, 12), (13, 19)), source="in Honolulu, Hawaii.",
    )  # fmt: skip
    assert [tuple(span) for span in marked.spans] == [("loc", 0, 2, "Honolulu, Hawaii", 3, 19)]
    given = run([{"words": ["ba,", "de."]}])[0]
    assert (given.words, given.offsets) == (("ba,", "de."), ())
    assert "offsets" in answer.to_dict()
    assert "offsets" not in given.to_dict()
