"""Every benchmark runs at toy size, and saves what the tables are made from."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from benchmarks import machine, report, run
from headway.cli.main import main as headway
from headway.interop.importing import import_run
from tests.facts import missing, naming
from tests.inside.browser import chromium
from tests.interop.test_whisper import whisper_folder

FOLDER = Path(machine.__file__).parent
ROUNDS = ["--rounds", "1"]
ONE_THREAD = ["--threads", "1"]
"""More would wait for each other wherever a core is taken, and take time for that."""
SMALL = ["--vocab", "60", "--layers", "1", "--width", "96"]
PARTS = {"machine", "lit_translator", "peers", "sentences", "report", "run", "__init__",
         "bodies_growth", "bodies_speed", "bodies_tables"}  # fmt: skip
"""What the benchmarks share; `report`, `run` and `bodies_tables` have tests of their own."""

Words = Callable[[Path], list[str]]


def speakers(folder: Path) -> list[str]:
    """Two prompts as Asterisk has them, and one without speech."""
    draw = np.random.default_rng(0)
    for name in ("hello", "beep", "bye"):
        samples_S = draw.normal(size=4000) * 0.1
        soundfile.write(folder / f"{name}.wav", samples_S, 8000)
    found = ["; a comment", "hello: Hello there.", "bye: Good [pause] bye", "beep: [a tone]"]
    (folder / "core-sounds-en.txt").write_text("\n".join(found) + "\n")
    return [str(folder), "--out", str(folder / "out")]


def whisper(folder: Path) -> tuple[str, Path]:
    """A tiny one, and the prompts that it hears."""
    asked = importlib.import_module("benchmarks.asterisk").main(speakers(folder))
    assert asked is None
    whisper_folder(folder / "theirs")
    import_run(str(folder / "theirs"), folder / "run")
    return str(folder / "run"), folder / "out"


def spoken(folder: Path) -> list[str]:
    name, data = whisper(folder)
    return [name, str(data), "--prompts", "2", *ONE_THREAD, *ROUNDS]


def transcripts(folder: Path) -> list[str]:
    name, data = whisper(folder)
    return [name, str(data / "all.tsv"), "--first", "1", *ONE_THREAD]


def corpus(folder: Path) -> list[str]:
    for language, lines in {
        "de": ["Wo wohnst du?", "Ja."],
        "en": ["Where are you?", "Yes."],
    }.items():
        (folder / "tatoeba").mkdir(exist_ok=True)
        (folder / f"tatoeba/test.{language}").write_text("\n".join(lines) + "\n")
    (folder / "stories").mkdir()
    (folder / "stories/test.txt").write_text("Once upon a time.\n<|endoftext|>\nThe end.\n")
    return ["--data", str(folder), "--sentences", "2"]


def german(folder: Path) -> list[str]:
    (folder / "de").write_text("Wo wohnst du?\nJa.\n")
    sizes = ["--lines", "2", "--base-lines", "1", "--preset", "transformer-test"]
    return ["--text", str(folder / "de"), *sizes, *ONE_THREAD, *ROUNDS]


def images(folder: Path) -> list[str]:
    draw = np.random.default_rng(0)
    np.save(folder / "a.npy", draw.integers(0, 256, (12, 8, 8, 1), dtype=np.uint8))
    rows = [{"path": "a.npy", "index": i, "label": "ab"[i % 2]} for i in range(12)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = ["--labels", "1", "--seeds", "1", "--fill-steps", "1", "--steps", "1"]
    model = ["model.d_model=8", "model.n_heads=2", "model.n_layers=1", "model.d_ff=8"]
    sets = ["--arms", "scratch", "tuned", "--work", str(folder / "work")]
    media = ["--media", str(folder / "a.jsonl"), "--test", str(folder / "a.jsonl")]
    return ["toy", *media, *few, *sets, "--model", *model]


def words(*given: str) -> Words:
    return lambda folder: [*given]


def few_pairs(folder: Path) -> list[str]:
    lines = [f"a{i % 7} b{i % 5} c\tc b{i % 5} a{i % 7}\n" for i in range(60)]
    (folder / "pairs.tsv").write_text("".join(lines))
    sizes = ["model.d_model=8", "model.n_heads=2", "model.n_layers=1", "model.d_ff=8"]
    cases = ["--pairs", str(folder / "pairs.tsv"), "--budgets", "1s", "--cases", "as it is"]
    return [*cases, "--settings", *sizes, "tokenizer.kind=words", "data.valid_size=4"]


def labelled(folder: Path) -> list[str]:
    """Texts whose first word says their label, and a tiny run to begin with."""
    data, encoder = folder / "toy", folder / "vectors"
    data.mkdir()
    for part, n in (("train", 24), ("valid", 8), ("test", 8)):
        rows = "".join(f"{'ab'[i % 2]} of {part} {i}\t{'AB'[i % 2]}\n" for i in range(n))
        (data / f"{part}.tsv").write_text("text\tlabel\n" + rows)
    (folder / "pairs.tsv").write_text("".join(f"a {i}\tb of train {i}\n" for i in range(24)))
    asked = ["train", "embed", "--pairs", str(folder / "pairs.tsv"), "--out", str(encoder)]
    sizes = ["model.d_model=8", "model.n_heads=2", "model.n_layers=1", "model.d_ff=8"]
    one_step = ["train.steps=1", "tokenizer.kind=words", "data.valid_size=4"]
    assert headway([*asked, *sizes, *one_step]) == 0
    runs = [
        "--seeds",
        "1",
        "--set",
        "train.steps=1",
        "--work",
        str(folder / "work"),
    ]
    return [str(data), *runs, "--encoder", str(encoder)]


def texts(folder: Path) -> list[str]:
    return [*labelled(folder), "--systems", "majority", "bag of words", "encoder", "nothing"]


def few_texts(folder: Path) -> list[str]:
    return [*labelled(folder), "--systems", "tuned", "neighbours", "--labels", "4"]


def few_bodies(folder: Path) -> list[str]:
    """Reviews of two kinds, and one body to read them."""
    (folder / "sst2").mkdir()
    for part in ("train", "test"):
        rows = [f"{'good' if i % 2 else 'bad'} film {i}\t{i % 2}\n" for i in range(40)]
        (folder / f"sst2/{part}.tsv").write_text("".join(rows))
    small = ["tokenizer.kind=words", "tokenizer.vocab_size=none", "data.valid_size=4"]
    few = ["--sets", "sst2", "--bodies", "gru", "--tokens", "1", "--minutes", "0",
           "--layers", "1", "--width", "32"]  # fmt: skip
    work = ["--work", str(folder / "work"), "--lengths", "8", "16", *ROUNDS, "--device", "cpu"]
    return [str(folder), *few, *work, "--set", *small]


TOYS: dict[str, tuple[Words, str | None, tuple[str, ...]]] = {
    "asterisk": (speakers, None, ()),
    "bodies": (few_bodies, "bodies", ("sets", "growth", "options")),
    "budget": (few_pairs, "budget", ("runs",)),
    "data": (words("--pairs", "200", "--words", "100"), "data", ("work",)),
    "decode": (
        words("--tokens", "2", *SMALL, *ONE_THREAD, *ROUNDS),
        "decode-base", ("cases",),
    ),
    "encode": (
        words("--preset", "bert-tiny", "--sentences", "4", *ROUNDS),
        "encode-bert-tiny", ("systems", "peaks", "work", "difference"),
    ),
    "engine": (german, "engine-ctranslate2", ("cases",)),
    "few_labels": (images, "few-labels-toy", ("table", "rows", "fill")),
    "few_texts": (few_texts, "few-texts", ("sets", "encoder")),
    "gpt2_decode": (
        words("--tokens", "2", *SMALL, *ONE_THREAD, *ROUNDS),
        "gpt2-decode", ("cases",),
    ),
    "gpt2_documents": (
        words("--words", "600", "--known", "40", "--longest", "60", "--reports", "1", "--settings",
              "model.d_model=8", "model.n_layers=1", "model.n_heads=2", "model.d_ff=8",
              "train.batch_tokens=128", "train.steps=100"),
        "gpt2-documents", ("documents", "work"),
    ),
    "gpt2_train": (
        words("--tiny", "--device", "cpu", "--steps", "1", *ROUNDS),
        "gpt2-train-tiny", ("systems", "peaks", "work"),
    ),
    "int8": (
        words("--tokens", "2", *SMALL, "--sentences", "4", *ONE_THREAD, *ROUNDS),
        "int8", ("cases", "memory_of_gpt2_bytes"),
    ),
    "int8_quality": (corpus, "int8-quality", ("quality",)),
    "page": (
        words("--tokens", "8", "--sentence", "Ja.", *ROUNDS), "page", ("script_bytes", "chromium"),
    ),
    "prepare": (
        words("--pairs", "200", "--turns", "1", "--cores", "1000"),
        "prepare", ("work", "best_seconds"),
    ),
    "serve": (
        words(
            "--preset", "decoder-test", "--translator", "transformer-test", "--requests", "4",
            "--tokens", "2", "--concurrent", "1", "2",
            "--seconds", "0.2", "--room", "2", "--idle", "5", "--minutes", "0", "--beam", "1",
            "--inside", "--alone", *ONE_THREAD,
        ),
        "serve",
        ("decoder", "translator", "decoder-mixed", "overload", "overload-parsed", "idle", "growth"),
    ),
    "shortcuts": (words("--tiny", *ROUNDS), "shortcuts", ("cases",)),
    "audio_speed": (words("--seconds", "2", *ROUNDS), "audio-speed", ("seconds_of_audio",)),
    "taps": (words("--presets", "bert-tiny", "decoder-test", *ROUNDS), "taps", ("cases",)),
    "texts": (texts, "texts", ("sets", "options")),
    "train_run": (
        words("--size", "toy", "--pairs", "60", "--steps", "2", "--longest", "100",
              "--tokens", "110", *ROUNDS),
        "train-run-toy", ("lengths", "work"),
    ),
    "train_step": (
        words("--size", "toy", "--device", "cpu", "--tokens", "110", "--batches", "2", *ROUNDS),
        "train-step-toy", ("systems", "peaks", "work"),
    ),
    "vit_speed": (
        words("--device", "cpu", "--tiny"), "vit-speed-tiny", ("training", "inference", "peaks"),
    ),
    "whisper_speed": (spoken, "whisper-speed", ("prompts", "full windows")),
    "whisper_transcripts": (transcripts, "whisper-transcripts", ("word_errors", "equal")),
}  # fmt: skip
"""Its words, the file that it saves, and what that holds beside the machine."""


def in_this_process(*given: str) -> str:
    """In place of a fresh Python: the same words, and the memory of any process."""
    flag, *rest = given
    module, *asked = rest[1:] if flag == "-c" else rest
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert not importlib.import_module(module).main(asked)
    return printed.getvalue() if flag == "-m" else "1000"


@pytest.mark.parametrize("name", TOYS)
def test_a_benchmark_runs_at_toy_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "page" and chromium() is None:
        pytest.skip("no chromium here: see `make browser`")
    given, saved, keys = TOYS[name]
    out = tmp_path / "saved"
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setattr(machine, "PEAK_SIZES", {"cpu": (32, 1 << 10), "cuda": (32, 1 << 10)})
    monkeypatch.setattr(machine, "python", in_this_process)
    monkeypatch.setattr(machine, "python_shown", in_this_process)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)  # other tests have theirs
    importlib.import_module(f"benchmarks.{name}").main(given(tmp_path))
    files = [path.name for path in out.iterdir()] if out.exists() else []
    assert files == ([f"{saved}-cpu.json"] if saved else [])
    if saved:
        result = json.loads((out / files[0]).read_text())
        assert {"machine", *keys} <= result.keys()
        check_systems(result)


def test_a_result_goes_into_the_folder_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "usual"))
    parser = argparse.ArgumentParser()
    machine.add_out(parser)
    given = parser.parse_args(["--out", str(tmp_path / "given")])
    path = machine.save("name", torch.device("cpu"), {}, given.out)
    assert path == tmp_path / "given" / "name-cpu.json"
    assert path.is_file()
    path = machine.save("name", torch.device("cpu"), {}, parser.parse_args([]).out)
    assert path.parent == tmp_path / "usual"


def test_a_system_that_failed_in_one_case_has_an_empty_cell_there() -> None:
    fast, slow = {"tokens_per_s": 20.0}, {"tokens_per_s": 10.0}
    facts = {"device": "H", "python": "3", "versions": {}, "date": "d"}
    cases = {"one": {"headway": fast, "peer": slow}, "two": {"headway": fast, "static": slow,
                                                               "peer": slow}}  # fmt: skip
    made = report.case_table({"machine": facts, "cases": cases, "failed": {"static, one": "E"}})
    assert "| one | 20 (2.00×) | 10 (1.00×) | – |" in made
    assert [line for line in made.splitlines() if not missing(line, "static one E")]


def check_systems(result: dict[str, Any]) -> None:
    """Ours and at least one other, all with a rate; and the page can be made from them."""
    if "systems" in result:
        names = list(result["systems"])
        assert any(name.startswith("headway") for name in names)
        assert not all(name.startswith("headway") for name in names)
        assert all(value > 0 for row in result["systems"].values() for value in rates(row))
        assert "| headway" in report.table(result)
    if "memory_of_gpt2_bytes" in result:
        assert "GPT-2 124M" in report.case_table(result)


def rates(row: dict[str, Any]) -> list[float]:
    found = [value for key, value in row.items() if key.endswith("tokens_per_s")]
    assert found
    return found


def test_no_benchmark_is_left_out() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == TOYS.keys() | PARTS


class Understood(Exception):
    pass


@pytest.mark.parametrize("device", run.JOBS)
def test_the_arguments_of_make_bench_parse(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def only(parser: argparse.ArgumentParser, given: Any = None) -> Any:
        parse(parser, given)
        raise Understood

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only)
    for module, *asked in run.JOBS[device]:
        with pytest.raises(Understood):
            assert not importlib.import_module(module).main(asked)


def test_few_texts_are_drawn_one_inside_the_other_and_their_neighbours_found() -> None:
    few = importlib.import_module("benchmarks.few_texts")
    rows = [f"text {i}" for i in range(30)], ["ab"[i % 3 == 0] for i in range(30)]
    two, four = (set(zip(*few.drawn(rows, each, seed=1), strict=True)) for each in (2, 4))
    assert two < four
    assert sorted(label for _, label in four) == [*"aaaa", *"bbbb"]
    known_ND = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], np.float32)
    asked_ND = np.array([[0.8, 0.2], [0.2, 0.8]], np.float32)
    assert few.neighbours(known_ND, list("aabb"), asked_ND) == ["a", "b"]


def test_texts_are_read_with_and_without_a_header(tmp_path: Path) -> None:
    texts = importlib.import_module("benchmarks.texts")
    (tmp_path / "a.tsv").write_text('text\tlabel\n"quoted\tA\n')
    (tmp_path / "b.tsv").write_text('"quoted\tA\n')
    for name in "ab":
        assert texts.read(tmp_path / f"{name}.tsv") == (['"quoted'], ["A"])
    with pytest.raises(SystemExit, match=naming(tmp_path, "train")):
        texts.Labelled.at(tmp_path)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are not to be had apart")
def test_work_side_by_side_has_cores_of_its_own_and_all_is_done() -> None:
    machine = importlib.import_module("benchmarks.machine")
    before, seen = os.sched_getaffinity(0), []
    jobs = [lambda i=i: seen.append((i, os.sched_getaffinity(0))) for i in range(5)]
    machine.side_by_side(jobs, lanes=1, cores=1)
    assert [i for i, _ in seen] == list(range(5))
    assert all(cores < before or len(before) == 1 for _, cores in seen)
    assert os.sched_getaffinity(0) == before
    with pytest.raises(SystemExit, match=naming(len(before) + 1, len(before))):
        machine.side_by_side([], lanes=len(before) + 1, cores=1)


def test_measured_bodies_are_not_measured_again_and_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = importlib.import_module("benchmarks.bodies")
    asked: list[str] = []

    def made(*words: str) -> str:
        what = json.loads(words[words.index("--piece") + 1])
        asked.append(what["name"])
        if "lstm" in what["name"] and "sst2" in what["name"] and not fixed:
            raise subprocess.CalledProcessError(1, words, stderr="no memory")
        options = bodies.asked([str(tmp_path), "--work", str(tmp_path / "work")])
        for arm in what.get("arms", ["one"]):
            of = what.get("task", "growth")
            name = what["name"] if arm == "one" else bodies.piece_name(
                of, arm, "speed" if of != "growth" else "", options)  # fmt: skip
            bodies.keep(name, {"scores": {"accuracy": 1.0}, "parameters": 1, "steps": 7}, options)
        return "{}"

    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(machine, "python", made)
    monkeypatch.setattr(bodies, "prepared", lambda task, options: None)
    words = [str(tmp_path), "--work", str(tmp_path / "work"), "--sets", "sst2", "--device", "cpu"]
    fixed = False
    with pytest.raises(SystemExit, match=naming("sst2-lstm-minutes-1 sst2-lstm-tokens-1")):
        bodies.main(words)
    first = len(asked)
    assert "sst2-gru-tokens-1" in asked  # others went on
    fixed = True
    bodies.main(words)
    assert asked[first:] == ["sst2-lstm-minutes-1", "sst2-lstm-tokens-1"]
    result = json.loads((tmp_path / "out/bodies-cpu.json").read_text())
    assert set(result["sets"]["sst2"]["rows"]["lstm"]) == {"tokens", "minutes", "speed"}
    assert set(result["growth"]) == set(importlib.import_module("benchmarks.bodies_growth").ARMS)
    known = ["--known", str(tmp_path / "out/bodies-cpu.json")]
    bodies.main([*words[:2], str(tmp_path / "elsewhere"), *words[3:], *known])
    assert len(asked) == first + 2
    tables = importlib.import_module("benchmarks.bodies_tables")
    assert "| LSTM | 0.00 M | **1.0** |" in tables.table("sst2", tmp_path / "out")
    more = [*words, "--seeds", "1", "2", "3"]
    bodies.main(more)
    assert {name[-1] for name in asked[first + 2 :]} == {"2", "3"}
    assert "| LSTM | 0.00 M | **1.0** ± 0.0 |" in tables.table("sst2", tmp_path / "out")
    n_asked = len(asked)
    bodies.main([*more[:2], str(tmp_path / "again"), *more[3:], *known])
    assert len(asked) == n_asked  # other seeds are remembered, too


def test_equal_minutes_on_a_gpu_are_measured_one_set_at_a_time() -> None:
    bodies = importlib.import_module("benchmarks.bodies")
    sets = ["multi30k", "tinyshakespeare"]
    for device, stages in (("cuda", 2), ("cpu", 1)):
        options = bodies.asked(["data", "--device", device, "--sets", *sets])
        assert len(bodies.trainings("minutes", options)) == stages
        assert len(bodies.trainings("tokens", options)) == 1
    names = [job[0] for job in bodies.trainings("minutes", options)[0]]
    assert not any("n-grams" in name for name in names)  # they take the time that they take


def test_bodies_are_as_large_as_the_transformer_that_they_are_measured_by() -> None:
    bodies = importlib.import_module("benchmarks.bodies")
    for task in bodies.TASKS.values():
        wanted = bodies.size(task, {})
        for arm in task.arms:
            found = bodies.matched(task, arm)
            model = {key.removeprefix("model."): value for key, value in found.items()}
            if model.get("body") not in (None, "ngram"):
                assert abs(bodies.size(task, model) / wanted - 1) < 0.05, (task.name, arm)


def test_attention_that_is_written_out_keeps_memory_by_the_square() -> None:
    growth = importlib.import_module("benchmarks.bodies_growth")
    model = {"vocab_size": 8, "d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1}
    kept = {
        arm: growth.of_body(arm, model, [128, 256, 512], 2, torch.device("cpu"))
        for arm in ("transformer", growth.WRITTEN_OUT)
    }
    last = {arm: line["512"]["bytes"] / line["256"]["bytes"] for arm, line in kept.items()}
    assert last["transformer"] == pytest.approx(2, abs=0.1)
    assert last[growth.WRITTEN_OUT] > 3
