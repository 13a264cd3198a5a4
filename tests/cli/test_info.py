"""`headway info` and `headway presets`: the same facts as text and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.settings.folder import SHIPPED
from headway.settings.presets import PRESETS, preset
from headway.settings.toml import to_toml
from tests.facts import figures, missing


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> str:
        assert main(list(words)) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


@pytest.fixture
def facts(text: Any) -> Any:
    return lambda *words: json.loads(text(*words, "--json"))


def test_presets_lists_every_name_with_its_exact_size(text: Any) -> None:
    lines = text("presets").splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(PRESETS)
    (base,) = (line for line in lines if line.startswith("transformer-base "))
    assert base.split("  ")[0] == "transformer-base"
    for cell in ("seq2seq", "6+6", "63,045,632", "65 M", "Vaswani et al. 2017, table 3"):
        assert cell in base


def test_presets_can_be_of_one_family_and_in_json(facts: Any) -> None:
    rows = facts("presets", "--family", "decoder")
    assert {row["family"] for row in rows} == {"decoder"}
    assert {row["name"]: row["parameters"] for row in rows}["gpt2"] == 124_439_808


def deep_is_slow(name: str) -> Any:
    deep = PRESETS[name].settings.n_layers > 12
    return pytest.param(name, marks=pytest.mark.slow) if deep else name


@pytest.mark.parametrize("name", [deep_is_slow(name) for name in PRESETS])
def test_every_preset_can_be_described(facts: Any, name: str) -> None:
    described = facts("info", name)
    assert described["parameters"] == sum(part["parameters"] for part in described["parts"])
    assert described["bytes"]["training"] == 16 * described["parameters"]
    assert described["bytes"]["activations"]["fused_bytes"] > 0


def test_a_preset_a_folder_and_a_file_are_described_alike(facts: Any, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(preset("bert-tiny")))
    from_preset = facts("info", "bert-tiny", "model.n_layers=3")
    assert from_preset["settings"]["n_layers"] == 3
    assert from_preset == facts("info", str(tmp_path), "model.n_layers=3")
    assert from_preset == facts("info", str(tmp_path / "config.toml"), "model.n_layers=3")


def test_shipped_models_answer_to_their_name(facts: Any) -> None:
    assert facts("info", "digits")["family"] == "audio-seq2seq"
    assert facts("info", "shapes") == facts("info", str(SHIPPED / "shapes"))


def test_a_preset_wins_over_a_shipped_model_of_its_name(
    facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.settings.folder.shipped_names", lambda: ["bert-tiny"])
    assert facts("info", "bert-tiny")["family"] == "encoder"


def test_more_tokens_take_more_memory(facts: Any) -> None:
    few = facts("info", "decoder-test", "--batch-tokens", "64")["bytes"]
    many = facts("info", "decoder-test", "--batch-tokens", "640")["bytes"]
    assert few["training"] == many["training"]
    assert many["activations"]["fused_bytes"] > 8 * few["activations"]["fused_bytes"]


def cells_of(shown: str) -> dict[str, list[str]]:
    """The cells of each line by its first word; of several lines the last one counts."""
    rows = [re.split(" {2,}", line.strip()) for line in shown.splitlines() if line]
    return {first.split()[0]: rest for first, *rest in rows}


def test_the_text_shows_shape_parts_and_memory(text: Any) -> None:
    shown = text("info", "transformer-base")
    cells = cells_of(shown)
    for name, value in (
        ("layers", "6 + 6"),
        ("tokens", "0"),
        ("total", "63,045,632"),
        ("training", "962.0 MiB"),
        ("inference", "240.5 MiB"),
        ("cache", "24.0 KiB"),
    ):
        assert cells[name][0] == value
    assert "source_front.tokens" in cells["tokens"][1]
    assert not missing(cells["layers"][1], "encoder decoder")
    assert "120.2 MiB" in shown


def test_the_text_shows_both_sides_where_they_differ(text: Any) -> None:
    own = ("n_layers=2", "n_heads=4", "n_kv_heads=2", "d_ff=1024")
    shown = text("info", "transformer-base", *(f"model.decoder.{word}" for word in own))
    cells = cells_of(shown.partition("memory")[0])
    assert cells["layers"][0] == "6 + 2"
    assert (cells["heads"][0], figures(cells["heads"][1])) == ("8 + 4", ["64", "128", "8", "2"])
    assert "2,048 + 1,024" in shown
    assert cells_of(shown)["cache"][0] == "4.0 KiB"


def test_only_what_decodes_has_a_cache_and_only_dropout_keeps_attention_weights(text: Any) -> None:
    assert "cache" not in text("info", "bert-base")
    assert "cache" in text("info", "gpt2")
    assert "9.3 GiB" in text("info", "gpt2")  # of the attention weights
    assert "9.3 GiB" not in text("info", "gpt2", "model.attention_dropout=0")


def test_text_in_a_pipe_is_plain(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    narrow = text("info", "gpt2") + text("presets")
    assert "\x1b" not in narrow
    assert "…" not in narrow
    assert "1,557,611,200" in narrow
    assert all(line == line.rstrip() for line in narrow.splitlines())
