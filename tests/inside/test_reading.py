"""A text is read, and answered, as `headway predict` reads and answers it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.errors import DataError, UserError
from headway.inside.capture.forward import run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import GenerationOptions, max_input_tokens, read, write_uncached
from headway.inside.capture.streams import Reading
from headway.settings.decode import DecodeSettings
from headway.tasks.complete_answers import completer_of
from headway.tasks.loaded_run import open_plain, open_run

from ..interop.padded_runs import answers, lines_for, tiny_run


def written(reading: Reading, name: str = "tatoeba-de-en") -> str:
    target = open_plain(name).vocab.target
    return target.decode([output.id for output in reading.outputs])


@pytest.mark.parametrize("task", ["translate", "classify", "tag", "fill", "embed"])
def test_the_answer_is_that_of_predict(task: str, tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", task)
    run = open_plain(folder)
    lines = [line for line in lines_for(task) if line.strip()]
    if task == "tag":  # the best path of a run with transitions is no row by itself
        with torch.no_grad():
            run.model.heads["tags"].transitions.zero_()  # type: ignore[union-attr,index,operator]
        from headway.models.folder import model_weights, save_weights

        save_weights(folder, model_weights(run.model))
        run = open_plain(folder)
    options = {"scores": True} if task == "classify" else {}
    for line, facts in zip(lines, answers(folder, lines, None, options), strict=True):
        reading = read(run, line)
        names = [output.name for output in reading.outputs]
        with torch.no_grad():
            printed = run_reading(run, reading)
        if task == "translate":
            best = facts["outputs"][0]
            assert run.vocab.target.decode([o.id for o in reading.outputs]) == best["text"]
            assert float(printed.log_probs_R.sum()) == pytest.approx(best["log_prob"], abs=1e-4)
        elif task == "classify":
            assert names == [facts["label"]]
        elif task == "tag":
            assert len(names) == len(facts["tags"])
        elif task == "fill":
            found = [gap[0]["word"] for gap in facts["gaps"]]
            assert [name.replace("▁", "") for name in names] == [w.strip() for w in found]
        else:
            vector_D = torch.nn.functional.normalize(printed.scores_RC[0], dim=-1)
            torch.testing.assert_close(
                vector_D, torch.tensor(facts["vector"]), atol=1e-5, rtol=1e-4
            )


def test_the_shipped_translator_is_read_as_it_translates() -> None:
    run = open_plain("tatoeba-de-en")
    reading = read(run, "Ich gehe heute mit Tom nach Hause.")
    assert reading.first.pieces[-1] == "</s>"
    assert reading.first.words == (0, 1, 2, 3, 4, 5, 6, 6, -1)
    assert reading.last.pieces[0] == "<s>"
    assert [output.row for output in reading.outputs] == list(range(len(reading.last)))
    assert reading.outputs[-1].name == "</s>"
    assert "Tom" in written(reading)


def test_an_output_begins_as_given_and_a_hidden_word_is_not_translated() -> None:
    run = open_plain("tatoeba-de-en")
    text = "Ich gehe heute mit Tom nach Hause."
    assert written(read(run, text, GenerationOptions(prefix="Today"))).startswith("Today")
    reading = read(run, text)
    tom = reading.first.pieces.index("▁Tom")
    hidden = read(run, text, change=Intervention(hidden=frozenset({("source", tom)})))
    assert "Tom" in written(reading)
    assert "Tom" not in written(hidden)


def test_with_nothing_hidden_the_loop_without_a_cache_is_greedy_search() -> None:
    """What is hidden lies behind the source, so that nothing is."""
    run = open_plain("tatoeba-de-en")
    settings = DecodeSettings(beam=1)
    greedy = read(run, "Wir haben kein Geld.", GenerationOptions(decode=settings))
    tokens, finished = write_uncached(run, greedy, [run.vocab.target.bos], Intervention(), 40)
    assert finished
    assert [*tokens, run.vocab.target.eos] == [output.id for output in greedy.outputs]


def test_a_language_model_continues_greedily() -> None:
    run = open_plain("stories")
    prompt = "Once upon a time there was a dog"
    reading = read(run, prompt, GenerationOptions(max_new_tokens=8))
    completer = completer_of(open_run(run.folder, device="cpu"), DecodeSettings(beam=1, max_len=8))
    [found] = completer.complete([prompt])
    new = run.vocab.source.decode(list(reading.last.ids[reading.n_given :]))
    assert found.outputs[0].text.strip() == new.strip()
    assert len(reading.last) == reading.n_given + 8
    printed = run_reading(run, reading)
    assert reading.outputs[-1].id == int(printed.scores_RC[-1].argmax())
    assert (
        read(run, prompt, GenerationOptions(max_new_tokens=0)).last.ids
        == reading.last.ids[: reading.n_given]
    )


def test_a_pair_has_two_segments(tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", "classify")
    run = open_plain(folder)
    pairs = replace(run.settings, data=replace(run.settings.data, other_field="b"))
    run = run.with_model(run.model, pairs)
    reading = read(run, "ba de\tgo")
    assert reading.segments == (0, 0, 0, 0, 1, 1)
    with pytest.raises(DataError, match=r"(?=.*\btab\b)(?=.*'ba de')"):
        read(run, "ba de")


@pytest.mark.parametrize("name", ["tatoeba-de-en", "stories"])
def test_empty_and_too_long_texts_are_an_error(name: str) -> None:
    run = open_plain(name)
    with pytest.raises(UserError, match="text="):
        read(run, " \t ")
    with pytest.raises(UserError, match=rf"\d,\d\d\d tokens.*\b{max_input_tokens(run)}\b"):
        read(run, "und " * 3000)
