from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_digits import NAMES, DigitsSettings, audible, make_digits

from headway.errors import ConfigError, DataError
from tests.facts import naming

RATE = 1000
SMALL = {"n": 30, "valid": 5, "test": 10, "rate": RATE}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 speakers, each digit three times: tones as loud as the digit and the speaker say, each
    with 30 ms of silence in front and 20 ms behind."""
    folder = tmp_path_factory.mktemp("recorded")
    rng = np.random.default_rng(0)
    rows, clips = [], []
    for speaker in range(1, 21):
        for digit in range(10):
            for take in range(3):
                length = int(rng.integers(150, 300))
                tone = np.full(length, 1000 + 100 * digit + speaker, np.int16)
                tone[:30] = tone[-20:] = 0
                rows.append((speaker, digit, take, length))
                clips.append(tone)
    np.save(folder / "all.npy", np.concatenate(clips))
    np.save(folder / "index.npy", np.array(rows, np.int32))
    return folder


def made(recorded: Path, out: Path, **more: Any) -> Path:
    files = {"recordings": str(recorded / "all.npy"), "index": str(recorded / "index.npy")}
    make_digits(out, DigitsSettings(**{**files, **SMALL, **more}))
    return out


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def audio_of(folder: Path, row: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.int16]]:
    samples = np.load(folder / row["path"], mmap_mode="r")
    return np.asarray(samples[round(row["start"] * row["rate"]) : round(row["end"] * row["rate"])])


def test_words_are_heard_when_and_only_when_the_times_say(recorded: Path, tmp_path: Path) -> None:
    folder = made(recorded, tmp_path / "made")
    for split in ("train", "valid", "test"):
        for row in rows_of(folder / f"{split}.jsonl"):
            audio = audio_of(folder, row)
            speaker = int(row["speaker"].removeprefix("speaker-"))
            assert row["text"].split() == [word["word"] for word in row["words"]]
            assert 2 <= len(row["words"]) <= 7
            loud = np.zeros(len(audio), bool)
            for word in row["words"]:
                first, last = round(word["start"] * RATE), round(word["end"] * RATE)
                level = 1000 + 100 * NAMES.index(word["word"]) + speaker
                heard = audio[first:last]
                # Times are right to one frame of ten samples.
                assert (heard[:-10] == level).all()
                assert not loud[first:last].any()
                loud[first:last] = True
            assert (audio[~loud] == 0).all()
    assert sum(len(audio_of(folder, row)) for row in rows_of(folder / "train.jsonl")) == len(
        np.load(folder / "train.npy")
    )


def test_speakers_of_the_test_are_heard_nowhere_else(recorded: Path, tmp_path: Path) -> None:
    folder = made(recorded, tmp_path / "made")
    facts = json.loads((folder / "made.json").read_text())
    assert facts["speakers"]["test"] == [1, 6, 11, 16]
    assert facts["speakers"]["valid"] == [3, 13]
    for kind in ("", "digits-"):
        who = [
            {row["speaker"] for row in rows_of(folder / f"{kind}{split}.jsonl")}
            for split in ("train", "valid", "test")
        ]
        assert not who[0] & who[1]
        assert not (who[0] | who[1]) & who[2]
        assert who[2] <= {f"speaker-{n:02d}" for n in facts["speakers"]["test"]}


def test_single_recordings_are_listed_by_takes_and_by_speakers(
    recorded: Path, tmp_path: Path
) -> None:
    folder = made(recorded, tmp_path / "made")
    lists = {path.stem: rows_of(path) for path in folder.glob("*-*.jsonl")}
    places = {name: {row["start"] for row in rows} for name, rows in lists.items()}
    for kind in ("speakers", "verify", "digits"):
        three = [places[f"{kind}-{split}"] for split in ("train", "valid", "test")]
        assert sum(len(one) for one in three) == len(set.union(*three)) == 600
    labels = {name: {row["label"] for row in rows} for name, rows in lists.items()}
    assert len(labels["speakers-train"]) == 20
    assert labels["speakers-train"] == labels["speakers-test"] == labels["speakers-valid"]
    assert labels["verify-train"] == labels["verify-valid"]
    assert not labels["verify-train"] & labels["verify-test"]
    assert labels["digits-test"] == set(NAMES)
    row = lists["digits-test"][41]
    level = 1000 + 100 * NAMES.index(row["label"]) + int(row["speaker"][-2:])
    assert audio_of(folder, row).max() == level


def test_the_same_seed_makes_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    options = {"noise": 0.1, "overlap": 0.05}
    folders = [made(recorded, tmp_path / name, **options) for name in "ab"]
    folders.append(made(recorded, tmp_path / "c", seed=1, **options))
    first, again, other = ({p.name: p.read_bytes() for p in f.iterdir()} for f in folders)
    assert first == again
    assert first["train.npy"] != other["train.npy"]


def test_digits_may_overlap_and_noise_has_the_given_level(recorded: Path, tmp_path: Path) -> None:
    folder = made(recorded, tmp_path / "a", overlap=0.1, gap=0.01)
    overlaps = [
        first["end"] - second["start"]
        for row in rows_of(folder / "train.jsonl")
        for first, second in zip(row["words"], row["words"][1:], strict=False)
    ]
    assert 0.0 < max(overlaps) <= 0.1
    loud = made(recorded, tmp_path / "b", noise=0.5)
    quiet = made(recorded, tmp_path / "c")
    with_noise, without = (np.load(f / "test.npy").astype(float) for f in (loud, quiet))
    share = np.std(with_noise - without) / np.sqrt(np.mean(without**2))
    assert share == pytest.approx(0.5, rel=0.1)


def test_audio_begins_and_ends_where_it_is_heard() -> None:
    clip = np.zeros(8000, np.int16)
    clip[1600:4000] = 500
    clip[6000] = 10  # a click, 34 dB below
    assert audible(clip, 8000) == (0.2, 0.5)
    assert audible(np.zeros(100, np.int16), 8000) == (0.0, 100 / 8000)


def test_files_that_do_not_fit_are_named(recorded: Path, tmp_path: Path) -> None:
    good = {"recordings": str(recorded / "all.npy"), "index": str(recorded / "index.npy")}
    np.save(tmp_path / "short.npy", np.load(recorded / "all.npy")[:-1])
    np.save(tmp_path / "floats.npy", np.zeros(5))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "text.wav").write_text("no audio")
    n = len(np.load(recorded / "all.npy"))
    for change, facts in [
        ({"recordings": str(tmp_path / "short.npy")}, f"/short.npy {n:,} {n - 1:,}"),
        ({"recordings": str(tmp_path / "floats.npy")}, "/floats.npy float64 (5,) int16"),
        ({"recordings": str(tmp_path / "none.flac")}, "/none.flac"),
        ({"recordings": str(tmp_path / "text.wav")}, "/text.wav"),
        ({"index": str(tmp_path / "text.npy")}, "/text.npy .npy"),
        ({"index": str(tmp_path / "floats.npy")}, "/floats.npy float64 speaker digit take"),
    ]:
        with pytest.raises(DataError, match=naming(facts)):
            make_digits(tmp_path / "out", DigitsSettings(**{**good, **SMALL, **change}))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="longest=1"):
        DigitsSettings(**good, longest=1)
