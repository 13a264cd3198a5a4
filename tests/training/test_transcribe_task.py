"""Speech to text by the real commands, in all three ways, on speech made of tones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from headway.cli.main import main
from headway.decode.search.job import Hypothesis
from headway.decode.speech.recognizer import recognizer_of
from headway.decode.speech.transcriber import Transcriber, Transcript
from headway.models.folder import load_model
from headway.settings.audio import AudioSettings
from headway.settings.folder import load_run
from headway.settings.run import RunSettings
from headway.tasks.transcribe_answers import open_recordings
from headway.tokens.tokenizer import Vocabularies

from .spoken import RATE, spoken_audio, texts, write_manifest, write_wav

MODEL = ["model.d_model=48", "model.n_layers=2", "model.n_heads=2", "model.d_ff=96",
         "model.dropout=0", "model.audio.bands=20"]  # fmt: skip
TRAINING = ["train.batch_tokens=700", "train.lr=8e-3", "train.average=1", "augment.bands=0",
            "augment.spans=0", "augment.speed=0"]  # fmt: skip
WAYS = {
    "ctc": ["transcribe.ctc=1", "train.steps=60", "train.eval_every=60"],
    "attention": ["transcribe.ctc=0", "train.steps=110", "train.eval_every=110",
                  "model.decoder.n_layers=1"],
    "joint": ["train.steps=110", "train.eval_every=110", "model.decoder.n_layers=1"],
}  # fmt: skip
TESTED = texts(24, seed=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoken")
    write_manifest(folder, "train", texts(300, seed=1))
    write_manifest(folder, "test", TESTED, seed=1)
    return folder


@pytest.fixture(scope="module")
def runs(data: Path) -> dict[str, Path]:
    return {}


@pytest.fixture(params=list(WAYS))
def run(request: pytest.FixtureRequest, data: Path, runs: dict[str, Path]) -> Path:
    return trained(request.param, data, runs)


def trained(way: str, data: Path, runs: dict[str, Path]) -> Path:
    if way not in runs:
        out = data / way
        files = ["--media", f"{data}/train.jsonl", "--valid-media", f"{data}/test.jsonl"]
        words = [*files, "--out", str(out), "--device", "cpu", *MODEL, *TRAINING, *WAYS[way]]
        assert main(["train", "transcribe", *words]) == 0
        runs[way] = out
    return runs[way]


def ear_of(run: Path, **options: Any) -> Transcriber:
    settings = load_run(run)
    decode = replace(settings.decode, **options.pop("decode", {}))
    tokenizer = Vocabularies.load(run / "tokenizer.json").target
    model = options.pop("model", None) or load_model(run).eval()
    recognizer = recognizer_of(model, tokenizer, decode, settings.transcribe.ctc)
    return Transcriber(recognizer, tokenizer, decode, settings.model.audio, **options)  # type: ignore[union-attr]


def test_it_learns_to_transcribe(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--media", f"{data}/test.jsonl", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n"] == len(TESTED)
    assert facts["wer"] <= 10
    assert facts["cer"] <= 5
    assert facts["baselines"]["most frequent text"]["wer"] > 70
    counts = facts["words"]
    total = counts["substitutions"] + counts["deletions"] + counts["insertions"]
    n_words = sum(len(text.split()) for text in TESTED)
    assert facts["wer"] == pytest.approx(100 * total / n_words)
    # The true times of words stand in the list.
    assert facts["boundaries"]["n_words"] > 20
    assert facts["boundaries"]["median_s"] < 0.03
    assert facts["boundaries"]["shares"][1] > 0.9
    settings = load_run(run)
    assert settings.tokenizer.kind == "characters"
    assert settings.model.audio.rate == RATE  # type: ignore[union-attr]


def test_files_are_answered_with_words_and_times(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "cab dad b"
    audio, words = spoken_audio(text, 5)
    file = write_wav(tmp_path / "one.wav", audio)
    loud, half = tmp_path / "loud.wav", tmp_path / "half.aiff"
    soundfile.write(loud, np.full(RATE, 1e38, np.float32), RATE, subtype="FLOAT")
    soundfile.write(half, audio, RATE)
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    bad = [str(tmp_path / "none.wav"), str(loud), str(half), f"{'x' * 3000}.wav"]
    assert main(["predict", str(run), file, *bad, file, "--json"]) == 2
    printed = capsys.readouterr()
    shown = [json.loads(line) for line in printed.out.splitlines()]
    assert sum("error" in line for line in shown) == 4
    assert re.search(r"(?<![\d.])4(?![\d.]| s\b)", printed.err)
    assert shown[0]["text"] == shown[5]["text"] == text
    assert "none.wav" in shown[1]["error"]
    assert re.search(r"\bloud\.wav\b.*1e\+38", shown[2]["error"])
    assert "half.aiff" in shown[3]["error"]
    assert shown[0]["seconds"] == pytest.approx(len(audio) / RATE, abs=2e-3)
    for found, true in zip(shown[0]["words"], words, strict=True):
        assert found["word"] == true["word"]
        assert found["start"] == pytest.approx(true["start"], abs=0.05)
        assert found["end"] == pytest.approx(true["end"], abs=0.05)
        assert 0.3 < found["confidence"] <= 1.0
    assert main(["predict", str(run), file, "--format", "srt"]) == 0
    assert capsys.readouterr().out.startswith("1\n00:00:00,0")
    assert main(["predict", str(run), file, "--format", "doc"]) == 2
    assert "text" in capsys.readouterr().err


def test_the_batch_does_not_change_a_transcript(run: Path) -> None:
    waves = [spoken_audio(text, 3)[0] for text in TESTED[:8]]
    ear = ear_of(run, times=True)
    together = ear.transcribe_windows(waves)
    for wave_S, expected in zip(waves, together, strict=True):
        [alone] = ear.transcribe_windows([wave_S])
        assert alone.text == expected.text
        assert alone.words == tuple(
            replace(word, confidence=pytest.approx(word.confidence, abs=1e-4))
            for word in expected.words
        )


def test_a_long_recording_is_the_sum_of_its_windows(data: Path, runs: dict[str, Path]) -> None:
    """Also when it comes in small blocks; and a short one is read whole."""
    ear = ear_of(trained("ctc", data, runs), times=True)
    long = TESTED[:8]
    audio = np.concatenate([spoken_audio(text, 4, pause_s=0.07)[0] for text in long])
    assert len(audio) / RATE > 3 * ear.window_s
    pieces = [audio[first : first + 500] for first in range(0, len(audio), 500)]
    short = spoken_audio("bad cab", 4)[0]
    assert len(short) / RATE < ear.window_s
    found, [whole] = ear.transcribe([pieces, [short]]), ear.transcribe_windows([short])
    first, second = (one for one in found if isinstance(one, Transcript))
    assert len(first.segments) > 3
    assert "".join(first.text.split()) == "".join(" ".join(long).split())
    starts = [word.start for word in first.words]
    assert starts == sorted(starts)
    assert first.seconds == pytest.approx(len(audio) / RATE)
    [part] = second.segments
    assert part.transcript.text == whole.text == "bad cab"
    assert [w.start for w in part.transcript.words] == [w.start for w in whole.words]


def test_silence_has_no_words(run: Path, tmp_path: Path) -> None:
    ear = ear_of(run, times=True)
    quiet = np.random.default_rng(0).normal(0, 1e-4, RATE).astype(np.float32)
    nothing, heard = ear.transcribe_windows([quiet, spoken_audio("ab", 1)[0]])
    assert (nothing.text, nothing.is_silent, nothing.words) == ("", True, ())
    assert heard.text == "ab"
    [found] = ear.transcribe([[]])
    assert isinstance(found, Transcript)
    assert found.text == ""


def test_an_empty_transcript_has_no_word_times(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ear = ear_of(run, times=True, guard=False)
    nothing = Hypothesis([], -0.1, -0.1, [-0.1], True)
    monkeypatch.setattr(ear.recognizer, "recognize", lambda waves: [nothing for _ in waves])
    [heard] = ear.transcribe_windows([spoken_audio("ab", 1)[0]])
    assert (heard.text, heard.words) == ("", ())


def test_a_decoder_that_loops_is_noticed(data: Path, runs: dict[str, Path]) -> None:
    """CTC takes over where there is one; else drawn outputs are tried, and it is said."""
    joint, alone = (trained(way, data, runs) for way in ("joint", "attention"))
    wave_S = spoken_audio("cab dad", 6)[0]
    for run in (joint, alone):
        model = load_model(run).eval()
        tokenizer = Vocabularies.load(run / "tokenizer.json").target
        first, second = tokenizer.encode("ab")
        with torch.no_grad():  # after a comes b and after b comes a, whatever is heard
            table = model.target_front.tokens.weight  # type: ignore[union-attr]
            model.head.linear.weight = torch.nn.Parameter(0.0 * table.clone())  # type: ignore
            bias = torch.full((len(table),), -30.0)
            bias[[first, second]] = 0.0
            model.head.linear.bias = torch.nn.Parameter(bias)  # type: ignore
        limits = {"max_len": 120, "extra_len": 120, "beam": 1}
        weight = {"decode": limits, "model": model}
        [careless] = ear_of(run, guard=False, **weight).transcribe_windows([wave_S])
        [heard] = ear_of(run, **weight).transcribe_windows([wave_S])
        if run == joint:
            assert heard.text == "cab dad"
            assert not heard.is_doubtful
            assert heard.n_attempts == 2
        else:
            assert len(careless.text) > 100
            assert heard.is_doubtful
            assert heard.n_attempts == 6


def test_training_starts_from_a_run(data: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    """With its tokenizer and its way; CTC can be added to a decoder, as a fresh head."""
    files = ["--media", f"{data}/test.jsonl", "--device", "cpu", "train.steps=2",
             "data.valid_size=4", "train.batch_tokens=400", "decode.max_len=8"]  # fmt: skip
    start = trained("attention", data, runs)
    assert (
        main(["train", "transcribe", "--from", str(start), "--out", f"{tmp_path}/a", *files]) == 0
    )
    settings = load_run(tmp_path / "a")
    assert settings.transcribe.ctc == 0.0
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (start / "tokenizer.json").read_bytes()
    words = ["--from", str(start), "--out", f"{tmp_path}/b", *files, "transcribe.ctc=0.5"]
    assert main(["train", "transcribe", *words]) == 0
    assert load_model(tmp_path / "b").ctc is not None


def test_a_decoder_is_added_to_the_encoder_of_a_run(
    data: Path, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which has heard letters already: those stay what CTC hears."""
    start = trained("ctc", data, runs)
    words = ["--media", f"{data}/test.jsonl", "--device", "cpu", "train.steps=2", "train.lr=1e-9",
             "data.valid_size=4", "train.batch_tokens=400", "decode.max_len=8",
             "--from", str(start), "--out", f"{tmp_path}/a"]  # fmt: skip
    capsys.readouterr()
    assert main(["train", "transcribe", *words, "transcribe.ctc=0.5"]) == 0
    assert re.search(r"\btensors\b.*\bdecoder\b.*\bwords\b", capsys.readouterr().err)
    settings, old = load_run(tmp_path / "a"), load_model(start)
    assert settings.transcribe.ctc == 0.5
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (start / "tokenizer.json").read_bytes()
    new = load_model(tmp_path / "a")
    assert torch.allclose(new.ctc.linear.weight, old.ctc.linear.weight, atol=1e-6)  # type: ignore[union-attr]


def test_a_ctc_weight_that_does_not_fit_the_model_is_an_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--media", f"{data}/test.jsonl", "--device", "cpu", "--out", f"{tmp_path}/x"]
    for more, expected in (
        (["transcribe.ctc=1", "model.family=audio-seq2seq"], "audio-encoder"),
        (["transcribe.ctc=0.3", "model.family=audio-encoder"], "transcribe.ctc=1"),
        (["transcribe.ctc=0.3", "model.ctc=false"], "model.ctc=false"),
        (["transcribe.ctc=1.5"], "ctc=1.5"),
    ):
        assert main(["train", "transcribe", *files, *more]) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "x/model.safetensors").exists()


def test_ctc_ignores_texts_with_more_letters_than_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path, "short", texts(20, seed=3))
    path = tmp_path / "short.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**x, "text": x["text"] * 30}) + "\n" for x in lines))
    words = ["--media", str(path), "--out", f"{tmp_path}/x", "--device", "cpu"]
    assert main(["train", "transcribe", *words]) == 2
    assert "transcribe.ctc=0" in capsys.readouterr().err


def test_recordings_that_are_too_long_for_the_model_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Learned positions end somewhere. A slower voice does not carry a recording beyond it."""
    write_manifest(tmp_path, "some", texts(40, seed=4))
    rows = ["model.audio.positions=learned", "transcribe.ctc=1", "augment.speed=0.3"]
    words = ["--media", f"{tmp_path}/some.jsonl", "--device", "cpu", *MODEL, *rows, "train.steps=3",
             "train.batch_tokens=400", "data.valid_size=4"]  # fmt: skip
    out = ["--out", f"{tmp_path}/x", "model.audio.max_rows=30"]
    capsys.readouterr()
    assert main(["train", "transcribe", *words, *out]) == 0
    assert re.search(r"\b0\.6 s\b.*\b36\b.*\b4\b", capsys.readouterr().err)
    out = ["--out", f"{tmp_path}/y", "model.audio.max_rows=2"]
    assert main(["train", "transcribe", *words, *out]) == 2
    assert re.search(r"\b36\b.*\b0\.0\d s\b", capsys.readouterr().err.splitlines()[-1])


def test_no_validation_recording_that_is_short_enough_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path, "some", ["ab"] * 30)
    write_manifest(tmp_path, "long", ["cab dad b cab dad"] * 2)
    words = ["--media", f"{tmp_path}/some.jsonl", "--valid-media", f"{tmp_path}/long.jsonl",
             "--out", f"{tmp_path}/x", "--device", "cpu", *MODEL, "transcribe.ctc=1",
             "model.audio.positions=learned", "train.steps=1"]  # fmt: skip
    assert main(["train", "transcribe", *words]) == 2
    assert re.search(r"\b2\b.*\b0\.32 s\b", capsys.readouterr().err.splitlines()[-1])


def test_whole_files_of_a_list_are_as_long_as_they_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audio, _ = spoken_audio("cab dad b", 5)
    write_wav(tmp_path / "one.wav", audio)
    lines = [{"path": "one.wav"}, {"path": "one.wav", "start": 0.0, "end": 0.1}]
    path = tmp_path / "list.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("headway.data.media.audio.MOST_S", 0.2)
    shape = AudioSettings(rate=RATE)
    found = list(open_recordings([str(path)], tmp_path, shape, RunSettings(task="transcribe")))
    lengths = [sum(map(len, named.blocks)) for named in found]
    assert lengths == [len(audio), round(0.1 * RATE)]
