"""Preparing data: nothing dropped unsaid, used again when it fits, made again when it does not."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data import prepare as preparing
from headway.data import source, workers
from headway.data.prepare import prepare
from headway.data.store import DATA, ImpossibleData, PreparedData, load_prepared
from headway.data.token_store import TokenStore, lengths_file, token_dtype, tokens_file
from headway.errors import ConfigError, DataError, FolderError
from headway.settings.run import RunSettings, run_settings
from headway.tokens.trainer import train_vocabularies
from headway.tokens.word_cache import FlatIds
from tests.facts import figures, naming

from .conftest import sentences

Write = Callable[[str, list[str]], str]
Pairs = list[tuple[str, str]]


def write_tokens(name: Path, dtype: str, blocks: Iterable[FlatIds]) -> int:
    """The two files of a store. Returns how many tokens it has."""
    n_tokens = 0
    with tokens_file(name).open("wb") as tokens, lengths_file(name).open("wb") as lengths:
        for block in blocks:
            lengths.write(block.lengths.astype("<i4").tobytes())
            tokens.write(block.ids.astype(dtype).tobytes())
            n_tokens += len(block.ids)
    return n_tokens


@pytest.fixture
def tsv(write: Write) -> Callable[..., str]:
    def pairs_to(pairs: Pairs, name: str = "pairs.tsv") -> str:
        return write(name, [f"{source}\t{target}" for source, target in pairs])

    return pairs_to


def run(path: str, tokenizer: dict[str, Any] | None = None, **data: Any) -> RunSettings:
    given = tokenizer or {"vocab_size": 400}
    return run_settings({"data": {"pairs": [path], **data}, "tokenizer": given})


def shuffled() -> Pairs:
    pairs = sentences()
    random.Random(0).shuffle(pairs)
    return pairs


def texts(prepared: PreparedData, which: str) -> Pairs:
    """The pairs of a store, from their tokens."""
    pairs = getattr(prepared, which)
    return [
        (
            prepared.vocab.source.decode(pairs["source"][i].tolist()),
            prepared.vocab.target.decode(pairs["target"][i].tolist()),
        )
        for i in range(pairs.n)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_sequences_come_back_from_the_store(tmp_path: Path, dtype: str) -> None:
    sequences = [[1, 2, 3], [], [65_535], [7] * 100, []]
    parts = (sequences[:2], [], sequences[2:])
    assert write_tokens(tmp_path / "x", dtype, map(FlatIds.of, parts)) == 104
    kept = TokenStore.open(tmp_path / "x", dtype)
    assert [kept[i].tolist() for i in range(kept.n)] == sequences
    assert kept.lengths.tolist() == [3, 0, 1, 100, 0]
    assert kept[-3].tolist() == [65_535]
    assert np.array_equal(kept.offsets, [0, 3, 3, 4, 104, 104])
    with pytest.raises(IndexError):
        kept[5]
    write_tokens(tmp_path / "none", dtype, [])
    assert TokenStore.open(tmp_path / "none", dtype).n == 0


def test_small_vocabularies_take_two_bytes_a_token() -> None:
    assert [token_dtype(n) for n in (259, 1 << 16, (1 << 16) + 1)] == ["<u2", "<u2", "<u4"]


def test_every_pair_goes_to_one_set_in_order(tmp_path: Path, tsv: Callable[..., str]) -> None:
    pairs = shuffled()
    prepared = prepare(run(tsv(pairs), valid_size=30), tmp_path)
    train, valid = texts(prepared, "train"), texts(prepared, "valid")
    assert valid == prepared.valid_pairs
    assert len(valid) == prepared.valid.n == 30
    assert train == [pair for pair in pairs if pair not in set(valid)]
    assert len(train) == prepared.train.n == 370
    assert not any(prepared.dropped.values())
    assert prepared.vocab.joint
    assert prepared.report.sizes["source_tokens"] == prepared.train["source"].lengths.sum()


def test_dropped_pairs_are_counted(tmp_path: Path, tsv: Callable[..., str]) -> None:
    long = " ".join(["Baum"] * 80)
    pairs = [*shuffled(), ("", "x"), ("x", " "), (long, "tree"), ("Baum, Baum, x", "a " * 40 + "b")]
    held = tsv(shuffled()[:5], "valid.tsv")
    prepared = prepare(run(tsv(pairs), max_len=50, max_ratio=6.0, valid_pairs=[held]), tmp_path)
    assert prepared.dropped["empty"] == 2
    assert prepared.dropped["over_long"] == 1
    assert prepared.dropped["ratio"] == 1
    assert prepared.train.n == 400
    assert prepared.report.over_long == {50: 1, 64: 1, 128: 0, 256: 0, 512: 0, 1024: 0}
    found = {finding.name: finding for finding in prepared.report.findings}
    assert found["over-long"].count == 1
    assert found["uneven"].count == 1
    assert found["empty"].count == 2


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_a_huge_line_costs_little_and_is_left_out(
    tmp_path: Path, tsv: Callable[..., str], kind: str
) -> None:
    """Megabytes without a blank: tokenised whole they would take gigabytes and minutes."""
    blob = "".join(random.Random(0).choices("abcdefghij", k=2_000_000))
    prepared = prepare(
        run(tsv([*shuffled(), (blob, "short"), ("kurz", blob)]), {"kind": kind}), tmp_path
    )
    assert prepared.dropped["over_long"] + prepared.dropped["validation_over_long"] == 2
    assert prepared.train.n + prepared.valid.n == 400
    assert max(prepared.report.over_long.values()) <= 2


def test_validation_files_are_used_as_they_are(tmp_path: Path, tsv: Callable[..., str]) -> None:
    train, valid = shuffled()[:300], [*shuffled()[300:], ("", "x"), ("Baum " * 300, "y")]
    valid[0] = ("Ｆｕｌｌ width ①", "  two  spaces ")
    valid[1] = ("Baum", "uneven " * 20)
    held = [tsv(valid, "valid.tsv")]
    settings = run(tsv(train), {"normalisation": "nfkc"}, valid_pairs=held, max_ratio=3.0)
    prepared = prepare(settings, tmp_path)
    assert prepared.valid_pairs == valid[:100]
    assert texts(prepared, "valid")[0] == ("Full width 1", "  two  spaces ")
    assert prepared.train.n == 300
    assert prepared.dropped["validation_empty"] == 1
    assert prepared.dropped["validation_over_long"] == 1
    assert prepared.report.n_valid == 102


@pytest.mark.parametrize("kind", ["unigram", "characters", "words", "bytes"])
@pytest.mark.parametrize("joint", [True, False])
def test_every_kind_of_tokenizer_serves(
    tmp_path: Path, tsv: Callable[..., str], kind: str, joint: bool
) -> None:
    tokenizer = {"kind": kind, "joint": joint, "lowercase": True}
    prepared = prepare(run(tsv(shuffled()), tokenizer), tmp_path)
    lowered = {(source.lower(), target.lower()) for source, target in shuffled()}
    assert set(texts(prepared, "train")) <= lowered
    assert prepared.vocab.joint == joint


def test_the_tokenizer_never_sees_validation_pairs(
    tmp_path: Path, tsv: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Pairs = []

    def spy(sources: Any, targets: Any, *settings: Any) -> Any:
        seen.extend(zip(sources, targets, strict=True))
        return train_vocabularies(*zip(*seen, strict=True), *settings)

    monkeypatch.setattr(preparing, "train_vocabularies", spy)
    prepared = prepare(run(tsv([*shuffled(), ("", "x")])), tmp_path)
    assert seen == texts(prepared, "train")
    assert not set(seen) & set(prepared.valid_pairs)


def test_what_the_tokenizer_cannot_cover_is_reported(
    tmp_path: Path, tsv: Callable[..., str]
) -> None:
    train, valid = shuffled()[:300], [("Der Hund mag 日本.", "The dog likes Japan.")]
    tokenizer = {"kind": "characters"}
    settings = run(tsv(train), tokenizer, valid_pairs=[tsv(valid, "valid.tsv")])
    found = {finding.name: finding for finding in prepare(settings, tmp_path).report.findings}
    assert "日 U+65E5" in found["unknown"].text
    assert found["unknown"].level == "warning"


def test_the_same_command_finds_the_data_prepared(
    tmp_path: Path, tsv: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(tsv(shuffled()))
    first = prepare(settings, tmp_path / "run")
    before = contents(tmp_path / "run" / DATA)
    monkeypatch.setattr(preparing, "DataBuilder", None)  # would fail
    again = prepare(settings, tmp_path / "run")
    assert contents(tmp_path / "run" / DATA) == before
    assert again.fingerprint == first.fingerprint
    assert again.report == first.report
    assert texts(again, "train") == texts(first, "train")
    assert load_prepared(tmp_path / "run").valid_pairs == first.valid_pairs
    moved = Path(settings.data.pairs[0]).rename(tmp_path / "moved.tsv")  # only content matters
    assert prepare(run(str(moved)), tmp_path / "run").fingerprint == first.fingerprint


def test_any_change_makes_it_again(tmp_path: Path, tsv: Callable[..., str]) -> None:
    pairs = shuffled()
    path = tsv(pairs)
    seen = {prepare(run(path), tmp_path / "run").fingerprint}
    for settings in (
        run(path, valid_size=20),
        run(path, max_len=20),
        run(path, {"vocab_size": 300}),
        run(path, {"vocab_size": 300, "lowercase": True}),
    ):
        seen.add(prepare(settings, tmp_path / "run").fingerprint)
    tsv(pairs[:-1])
    seen.add(prepare(run(path), tmp_path / "run").fingerprint)
    assert len(seen) == 6
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [DATA]


def test_two_folders_come_out_byte_for_byte_alike(tmp_path: Path, tsv: Callable[..., str]) -> None:
    settings = run(tsv(shuffled()))
    prints = [prepare(settings, tmp_path / name).fingerprint for name in "ab"]
    assert prints[0] == prints[1]
    assert contents(tmp_path / "a" / DATA) == contents(tmp_path / "b" / DATA)


def test_data_of_another_format_is_prepared_again(tmp_path: Path, tsv: Callable[..., str]) -> None:
    settings = run(tsv(shuffled()))
    now = prepare(settings, tmp_path)
    manifest = tmp_path / DATA / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"version": 2', '"version": 1'))
    with pytest.raises(DataError, match=naming(manifest)):
        load_prepared(tmp_path)
    assert prepare(settings, tmp_path).fingerprint == now.fingerprint
    assert manifest.read_text() == text
    values = {key: value for key, value in json.loads(text).items() if key != "columns"}
    manifest.write_text(json.dumps(values))
    with pytest.raises(DataError, match=naming(manifest)):
        load_prepared(tmp_path)


def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, tsv: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(tsv([*shuffled(), ("", "x"), ("日本", "Japan")]), {"kind": "characters"})
    monkeypatch.setattr(source, "BLOCK", 40)
    alone = prepare(settings, tmp_path / "1")
    monkeypatch.setattr(workers, "ALONE", 2)
    monkeypatch.setattr(workers, "cores", lambda: 3)
    started: list[int] = []
    start = workers.Workers._start

    def counted(self: Any) -> Any:
        started.append(1)
        return start(self)

    monkeypatch.setattr(workers.Workers, "_start", counted)
    assert prepare(settings, tmp_path / "3").fingerprint == alone.fingerprint
    assert contents(tmp_path / "1" / DATA) == contents(tmp_path / "3" / DATA)
    assert len(started) == 6  # for the check, and for the tokens


def test_a_worker_that_is_killed_costs_nothing_and_an_error_is_the_same_everywhere() -> None:
    die = workers.Workers(os.path.basename, 1)
    child = die._all[0]
    child.kill()
    child.wait()
    assert die("a/b") == "b"
    die.close()
    work = workers.Workers(json.loads, 2)
    try:
        assert [work(text) for text in ("[1]", "{}", "3")] == [[1], {}, 3]
        with pytest.raises(json.JSONDecodeError):
            work("{")
        assert work("4") == 4
    finally:
        work.close()


def test_one_flipped_bit_or_a_missing_file_is_noticed(
    tmp_path: Path, tsv: Callable[..., str]
) -> None:
    settings = run(tsv(shuffled()))
    wanted = prepare(settings, tmp_path / "run").fingerprint
    data = tmp_path / "run" / DATA
    whole = contents(data)
    draw = random.Random(0)
    for name, content in whole.items():
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        for broken in (damaged, content[: len(content) // 2], b"", None):
            if broken is None:
                (data / name).unlink()
            else:
                (data / name).write_bytes(broken)
            with pytest.raises(DataError, match=naming(data)) as caught:
                load_prepared(tmp_path / "run")
            assert isinstance(caught.value.__cause__, FolderError)
        assert prepare(settings, tmp_path / "run").fingerprint == wanted
        assert contents(data) == whole


def test_standard_input_and_pipes_are_read_once(
    tmp_path: Path, tsv: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tsv(shuffled())
    wanted = prepare(run(path), tmp_path / "file").fingerprint
    for _ in range(2):
        with Path(path).open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert prepare(run("-"), tmp_path / "run").fingerprint == wanted
    assert [path.name for path in (tmp_path / "run").iterdir()] == [DATA]
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    with packed.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        prepared = prepare(run("-"), tmp_path / "run")
    assert prepared.train.n == 360
    with pytest.raises(ConfigError, match=naming("-")):
        prepare(run("-", valid_pairs=["-"]), tmp_path / "run")


@pytest.mark.parametrize(
    ("pairs", "data", "finding", "facts"),
    [
        ([], {}, "no-pairs", ""),
        ([("", "b"), ("a", "")], {}, "no-pairs", "2"),
        ([("Ja.", "Yes.")] * 30, {}, "one-pair", "30 pairs.tsv:1"),
        ([("Ja.", f"Yes {i}.") for i in range(30)], {}, "no-split", "30 valid=…"),
        ([("a", "b")], {}, "no-split", "1 valid=…"),
        ([(f"{i} " * 9, "b") for i in range(30)], {"max_len": 2}, "nothing-left",
         "27 3 data.max_len 2"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_trained_on_is_an_error_with_a_reason(
    tmp_path: Path,
    tsv: Callable[..., str],
    pairs: Pairs,
    data: dict[str, Any],
    finding: str,
    facts: str,
) -> None:
    with pytest.raises(ImpossibleData, match=naming(facts)) as caught:
        prepare(run(tsv(pairs), **data), tmp_path / "run")
    assert caught.value.report.impossible
    errors = {one.name for one in caught.value.report.findings if one.level == "error"}
    assert errors == {finding}
    assert list((tmp_path / "run").iterdir()) == []
    with pytest.raises(DataError, match=naming(tmp_path / "run" / DATA)):
        load_prepared(tmp_path / "run")


def test_unreadable_files_stop_preparation_early(tmp_path: Path, tsv: Callable[..., str]) -> None:
    with pytest.raises(DataError, match=naming("source=", "target=")):
        prepare(run_settings({}), tmp_path / "run")
    with pytest.raises(DataError, match=naming(tmp_path / "none.tsv")):
        prepare(run(str(tmp_path / "none.tsv")), tmp_path / "run")
    with pytest.raises(DataError, match=naming(tmp_path)):
        prepare(run(str(tmp_path)), tmp_path / "run")
    with pytest.raises(DataError, match=naming("none.json")):
        prepare(run(tsv(shuffled()), {"file": "none.json"}), tmp_path / "run")
    bad = tmp_path / "latin.tsv"
    bad.write_bytes("Größe\tsize\n".encode("latin-1") * 3)
    with pytest.raises(DataError, match=naming("latin.tsv", 1, "0xf6", 2)):
        prepare(run(str(bad)), tmp_path / "run")
    prepared = prepare(run(str(bad), encoding="latin-1", valid_pairs=[tsv(shuffled())]), tmp_path)
    assert texts(prepared, "train")[0] == ("Größe", "size")


def test_preparation_writes_a_manifest_and_reports_progress(
    tmp_path: Path, tsv: Callable[..., str], slow: Any
) -> None:
    prepare(run(tsv(shuffled())), tmp_path, slow)
    lines = [line.rpartition("  ")[0] for line in slow.stream.getvalue().splitlines()]
    assert [figures(line) for line in lines] == [["400"], ["400/400"]]
    manifest = json.loads((tmp_path / DATA / "manifest.json").read_text())
    assert manifest["inputs"]["tokenizer"]["vocab_size"] == 400
    assert "train.source.tokens" in manifest["files"]
