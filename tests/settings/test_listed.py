"""One input where several are expected is one input; one run is named as everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.data.files import parts
from headway.errors import FolderError
from headway.inside import load
from headway.inside.capture.corpus import Corpus
from headway.inside.measure.maps import check_methods
from headway.interop.proof_inputs import proof_sentences
from headway.metrics.speech import character_errors, word_errors
from headway.metrics.translation import bleu, chrf, exact_match
from headway.models.folder import load_model
from headway.settings.decode import DecodeSettings
from headway.settings.folder import SHIPPED, load_run, load_settings, run_folder, run_folders
from headway.settings.listed import ensure_list
from headway.tasks.complete_answers import completer_of
from headway.tasks.fewshot import FewShotClassifier, FewShotExamples
from headway.tasks.loaded_run import open_plain, open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tasks.task import InferenceRequest, find_task
from tests.interop.padded_runs import tiny_run

GREEDY = DecodeSettings(beam=1, max_len=4)
CPU = torch.device("cpu")


def test_a_text_or_a_path_is_one_and_a_list_stays_as_it_is(tmp_path: Path) -> None:
    assert (ensure_list("ab"), ensure_list(tmp_path)) == (["ab"], [tmp_path])
    lines = iter(["a", "b"])
    assert ensure_list(lines) is lines
    assert ensure_list(("a", "b")) == ("a", "b")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for task in ("translate", "complete", "fill", "classify", "tag", "embed"):
        tiny_run(folder / task, task)
    return folder


def predictor(runs: Path, task: str, **options: Any) -> Any:
    opened = open_run(runs / task, device="cpu")
    return find_task(opened.settings).predictor(InferenceRequest(opened, opened.settings, options))


def answers(task: str) -> Callable[[Path, Any], Any]:
    return lambda runs, given: [answer.to_dict() for answer in predictor(runs, task).answers(given)]


def live_answers(runs: Path, given: Any) -> Any:
    return [answer.to_dict() for answer in predictor(runs, "classify").answers(given, live=True)]


def tags(runs: Path, given: Any) -> Any:
    return predictor(runs, "tag").tags(given)


def translated(runs: Path, given: Any) -> Any:
    found = writer_of(open_run(runs / "translate", device="cpu"), GREEDY).write(given)
    return [one.text for one in found]


def completed(runs: Path, given: Any) -> Any:
    found = completer_of(open_run(str(runs / "complete"), device="cpu"), GREEDY).complete(given)
    return [one.outputs[0].text for one in found]


def chosen(runs: Path, given: Any) -> Any:
    completer = completer_of(open_run(runs / "complete", device="cpu"), GREEDY)
    return [
        one.label for one in FewShotClassifier(completer, FewShotExamples(()), ["ba", "de"])(given)
    ]


def encoded(runs: Path, given: Any) -> Any:
    tokenizer = headway.load(runs / "classify", device="cpu").tokenizer
    return tokenizer.encode_batch(given), tokenizer.encode_words(given)[0].lists()


def corpus(runs: Path, given: Any) -> Any:
    return Corpus.of_lines(given).lines


INPUTS: dict[str, Callable[[Path, Any], Any]] = {
    "Writer.translate": translated,
    "Completer.complete": completed,
    "FewShotClassifier": chosen,
    "Tokenizer.encode": encoded,
    "Tagger.tags": tags,
    "Corpus.of_lines": corpus,
    "proof_sentences": lambda runs, given: proof_sentences(2, given),
    "answers, live": live_answers,
    **{f"answers of {task}": answers(task)
       for task in ("translate", "complete", "classify", "tag", "embed")},
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_a_bare_text_is_one_input_and_not_its_characters(runs: Path, name: str) -> None:
    alone, in_a_list = (INPUTS[name](runs, given) for given in ("ba de", ["ba de"]))
    assert alone == in_a_list


def test_a_bare_gap_image_pair_score_or_method_too(runs: Path) -> None:
    filler = predictor(runs, "fill")
    assert len(list(filler.answers("ba [MASK]"))) == 1
    shapes = open_run("shapes", device="cpu")
    use = InferenceRequest(shapes, shapes.settings)
    [caption] = find_task(use.settings).predictor(use).answers("example.png")
    assert caption.text == "a purple square left of a yellow circle"
    translator = writer_of(open_run(runs / "translate", device="cpu"), GREEDY)
    [score] = translator.score(("ba", "de"))  # type: ignore[arg-type]
    assert score == next(iter(translator.score([("ba", "de")])))
    for metric in (bleu, chrf, exact_match):
        assert metric("a b c d e", "a b c d e").value == metric(["a b c d e"], ["a b c d e"]).value
    assert word_errors("a b", "a c") == word_errors(["a b"], ["a c"])
    assert character_errors("ab", "ac") == character_errors(["ab"], ["ac"])
    assert check_methods("rollout") == ["rollout"]


def test_a_bare_path_is_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tsv")
    assert parts(path) == parts([path]) == [path]


OPENED: dict[str, Callable[[Any], Any]] = {
    "load_run": load_run,
    "load_settings": load_settings,
    "load_model": load_model,
    "inside.load": load,
    "open_plain": open_plain,
    "open_run": open_run,
    "open_run, a draft": lambda name: completer_of(
        open_run(name, device="cpu"), GREEDY, draft=name
    ),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_run_answers_to_its_name_wherever_it_is_opened(
    runs: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(runs)
    for given in ("stories", Path("stories"), "complete", Path("complete"), str(runs / "complete")):
        assert OPENED[name](given), given


def test_several_runs_may_be_given_in_all_these_ways(runs: Path) -> None:
    assert len(completer_of(open_run("stories", SHIPPED / "stories", device="cpu")).models) == 2
    assert len(open_run(runs / "complete", device="cpu").models) == 1
    with pytest.raises(FolderError):
        open_run()


def test_a_folder_comes_before_runs_and_runs_before_what_ships(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder("stories") == SHIPPED / "stories"
    tiny_run(tmp_path / "runs" / "stories", "complete")
    assert run_folder("stories") == run_folder(Path("stories")) == Path("runs/stories")
    (tmp_path / "stories").mkdir()  # as a maker of data might: no run
    assert run_folders("stories") == [Path("runs/stories")]
    (tmp_path / "stories" / "config.toml").touch()
    assert run_folders("stories") == [Path("stories")]
    with pytest.raises(FolderError, match=r"\bnothing\b.*tatoeba-de-en"):
        run_folder("nothing")
