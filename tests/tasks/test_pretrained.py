"""Tasks on English text start from the shipped encoder by themselves, and say so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headway
from headway.cli.main import main
from headway.errors import ConfigError
from headway.settings.data import DataSettings
from headway.settings.folder import SHIPPED, TOKENIZER, load_run, shipped_names
from headway.settings.overrides import Overrides
from headway.settings.run import RunSettings
from headway.specs.tasks import ENGLISH
from headway.tasks.pretrained import covers, pretrained_for
from headway.tokens.tokenizer import Tokenizer, Vocabularies

ENGLISH_TEXTS = [
    "The old man walks his dog through the park every morning before work.",
    "She could not believe how quickly the children had grown over the summer.",
    "A dull film with a few good jokes, and far too long for what it says.",
    "We waited at the station for an hour, but the last train had already gone.",
]
GERMAN_TEXTS = [
    "Der alte Mann geht jeden Morgen vor der Arbeit mit seinem Hund durch den Park.",
    "Sie konnte kaum glauben, wie schnell die Kinder im Sommer gewachsen waren.",
    "Ein langweiliger Film mit einigen guten Witzen, und viel zu lang dafür.",
    "Wir haben eine Stunde am Bahnhof gewartet, aber der letzte Zug war schon weg.",
]
FRENCH_TEXTS = [
    "Le vieil homme promène son chien dans le parc chaque matin avant le travail.",
    "Elle ne pouvait pas croire que les enfants avaient grandi si vite cet été.",
    "Nous avons attendu une heure à la gare, mais le dernier train était déjà parti.",
    "Un film ennuyeux avec quelques bonnes blagues, et beaucoup trop long.",
]


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Vocabularies.load(SHIPPED / ENGLISH / TOKENIZER).target


def test_a_vocabulary_knows_its_language_and_no_other(words: Tokenizer) -> None:
    assert covers(words, ENGLISH_TEXTS)
    assert covers(words, [text.upper() for text in ENGLISH_TEXTS])
    assert not covers(words, GERMAN_TEXTS)
    assert not covers(words, FRENCH_TEXTS)
    assert not covers(words, ["qzx vbr wqy kjh " * 40])
    assert not covers(words, ["a good film"])  # too little to tell


def written(folder: Path, texts: list[str]) -> Path:
    path = folder / "texts.tsv"
    rows = [f"{text} {i}\t{'ab'[i % 2]}" for i in range(10) for text in texts]
    path.write_text("text\tlabel\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("asked", "starts"),
    [
        ({}, True),
        ({"model.dropout": 0.1, "train.steps": 5}, True),
        ({"lora.rank": 4}, True),
        ({"start.freeze": -1}, True),
        ({"start.run": ""}, False),
        ({"model.n_layers": 2}, False),
        ({"model.preset": "minilm-l6"}, False),
        ({"tokenizer.kind": "words"}, False),
    ],
    ids=str,
)
def test_explicit_settings_replace_the_usual_start(
    asked: dict[str, object], starts: bool, tmp_path: Path
) -> None:
    data = DataSettings(text=(str(written(tmp_path, ENGLISH_TEXTS)),))
    settings = RunSettings(task="classify", data=data, asked=Overrides(asked))
    assert pretrained_for(settings) == (ENGLISH if starts else "")


def test_other_tasks_languages_and_pipes_start_from_scratch(tmp_path: Path) -> None:
    german = DataSettings(text=(str(written(tmp_path, GERMAN_TEXTS)),))
    assert pretrained_for(RunSettings(task="classify", data=german)) == ""
    english = DataSettings(text=(str(written(tmp_path, ENGLISH_TEXTS)),))
    assert pretrained_for(RunSettings(task="embed", data=english)) == ENGLISH
    assert pretrained_for(RunSettings(task="fill", data=english)) == ""
    assert pretrained_for(RunSettings(task="complete", data=english)) == ""
    stream = DataSettings(text=("-",))
    assert pretrained_for(RunSettings(task="classify", data=stream)) == ""
    nowhere = DataSettings(text=(str(tmp_path / "nowhere.tsv"),))
    assert pretrained_for(RunSettings(task="classify", data=nowhere)) == ""


def test_tagged_words_are_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "tags.conll"
    sentences = ["\n".join(f"{word} O" for word in text.split()) for text in ENGLISH_TEXTS * 5]
    path.write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    settings = RunSettings(task="tag", data=DataSettings(text=(str(path),)))
    assert pretrained_for(settings) == ENGLISH


def test_a_run_prints_its_start_run_and_resumes_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = written(tmp_path, ENGLISH_TEXTS), tmp_path / "run"
    words = ["train", "classify", str(file), "--out", str(out), "--device", "cpu"]
    words += ["train.batch_tokens=128", "data.valid_size=4", "train.eval_every=1"]
    assert main([*words, "train.steps=1"]) == 0
    assert re.search(rf"\b{ENGLISH}\b.*--from none", capsys.readouterr().err)
    assert load_run(out).start.run == ENGLISH
    assert main([*words, "train.steps=1"]) == 0  # the same command: nothing to do, nothing refused
    bare = tmp_path / "bare"
    words[words.index(str(out))] = str(bare)
    assert main([*words, "train.steps=1", "--from", "none", "model.d_model=16", "model.n_heads=2",
                 "model.n_layers=1", "model.d_ff=16"]) == 0  # fmt: skip
    assert load_run(bare).start.run == ""
    assert "--from none" not in capsys.readouterr().err


@pytest.mark.parametrize("asked", [{"lora.rank": 4}, {"start.freeze": 1}])
def test_lora_and_frozen_layers_begin_with_the_usual_encoder(
    asked: dict[str, object], tmp_path: Path
) -> None:
    english, german = written(tmp_path, ENGLISH_TEXTS), tmp_path / "german"
    german.mkdir()
    steps: dict[str, object] = {"train.steps": 1, "train.batch_tokens": 128, "data.valid_size": 4}
    run = headway.train("classify", english, out=tmp_path / "run", settings=steps | asked,
                        device="cpu", quiet=True)  # fmt: skip
    assert load_run(run.folder).start.run == ENGLISH
    with pytest.raises(ConfigError, match=re.escape(next(iter(asked)))):
        headway.train("classify", written(german, GERMAN_TEXTS), out=tmp_path / "none",
                      settings=steps | asked, device="cpu", quiet=True)  # fmt: skip


def test_all_that_is_shipped_is_small() -> None:
    sizes = {
        name: sum(file.stat().st_size for file in (SHIPPED / name).rglob("*") if file.is_file())
        for name in shipped_names()
    }
    assert sizes[ENGLISH] <= 8_000_000
    assert sum(sizes.values()) <= 32_000_000
