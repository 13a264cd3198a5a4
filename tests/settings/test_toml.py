"""What is written can be read: every setting, any text, and the line where a key stands."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.settings.kept_heads import KeptHeads
from headway.settings.load import model_settings
from headway.settings.model import (
    FAMILY_SETTINGS,
    AudioSettings,
    EncoderSettings,
    ImageSettings,
    ModelSettings,
    RelativeSettings,
    RopeSettings,
    StackSettings,
)
from headway.settings.presets import PRESETS
from headway.settings.run import load_model_settings
from headway.settings.toml import line_of, to_toml, toml_value
from headway.specs.values import describe, setting_types

SHARE = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
BIASES = st.sets(st.sampled_from("qkvo")).map(lambda letters: "".join(sorted(letters)))


@st.composite
def any_rope(draw: st.DrawFn) -> RopeSettings:
    scaling: Any = draw(st.sampled_from(["none", "linear", "ntk", "llama3"]))
    factor = 1.0 if scaling == "none" else draw(st.floats(1, 1e6))
    return RopeSettings(base=draw(POSITIVE), scaling=scaling, factor=factor)


@st.composite
def any_settings(draw: st.DrawFn) -> ModelSettings:
    """Settings with every kind of value, away from their defaults, that the checks let pass."""
    family = draw(st.sampled_from(list(FAMILY_SETTINGS)))
    n_kv_heads, repeats = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    positions = draw(st.sampled_from(["sinusoidal", "learned", "rotary", "relative", "none"]))
    values: dict[str, Any] = {
        "n_heads": n_kv_heads * repeats,
        "n_kv_heads": n_kv_heads if repeats > 1 else draw(st.sampled_from([None, n_kv_heads])),
        "d_model": n_kv_heads * repeats * 2 * draw(st.integers(1, 100)),
        "d_head": draw(st.none() | st.integers(1, 64).map(lambda half: 2 * half)),
        "vocab_size": draw(st.integers(1, 2**63)),
        "activation": draw(st.sampled_from(["relu", "gelu-tanh", "swiglu"])),
        "attention_bias": draw(BIASES),
        "norm_eps": draw(POSITIVE),
        "dropout": draw(SHARE),
        "window": draw(st.none() | st.integers(1, 5000)),
        "qk_norm": draw(st.booleans()),
        "positions": positions,
    }
    if positions == "rotary":
        values["rope"] = draw(any_rope())
    if positions == "relative":
        values["relative"] = RelativeSettings(buckets=8, max_distance=draw(st.integers(5, 500)))
    if family == "encoder":
        values["heads"] = draw(st.sampled_from([(), ("words",), ("pooled", "tags")]))
        values["n_labels"] = 5 if "tags" in values["heads"] else 0
    if family.startswith("image"):
        size, tubelet = draw(st.integers(32, 300)), draw(st.integers(1, 3))
        values["image"] = ImageSettings(
            height=size,
            frames=2 * tubelet,
            tubelet=tubelet,
            stem=draw(st.sampled_from(["patches", "conv"])),
            class_token=family == "image-encoder",
            mean=draw(st.sampled_from([(0.5,), (0.1, 0.2, 0.3)])),
            positions=draw(st.sampled_from(["learned", "none"])),
        )
    if family.startswith("audio"):
        strides = draw(st.sampled_from([(1, 2), (4,), (2, 2, 1)]))
        values["audio"] = AudioSettings(strides=strides, pad_s=draw(SHARE), positions="none")
    if family.endswith("-encoder"):
        values["positions"] = draw(st.sampled_from(["none", "alibi"]))
        values.pop("rope", None)
        values.pop("relative", None)
    if family == "image-encoder":
        del values["vocab_size"]
    if family == "seq2seq":
        values["tie"] = draw(st.sampled_from(["all", "none", "target-softmax"]))
        n_layers = draw(st.none() | st.integers(1, 9))
        values["decoder"] = StackSettings(n_layers=n_layers)
        if draw(st.booleans()):
            values["kept_heads"] = KeptHeads(encoder=(tuple(range(repeats)),) * 6)
    try:
        return FAMILY_SETTINGS[family](**values)
    except ConfigError:  # an invalid combination, which no settings that are written have
        reject()


@settings(deadline=None)
@given(any_settings())
def test_settings_survive_writing_and_loading(written: ModelSettings) -> None:
    assert model_settings(tomllib.loads(to_toml(written))["model"]) == written


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(PRESETS[name].settings))
    assert load_model_settings(path, []) == PRESETS[name].settings


@settings(deadline=None)
@given(st.text() | st.lists(st.text()))
def test_any_text_survives_writing_and_reading(value: str | list[str]) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


def test_text_with_every_awkward_character_survives() -> None:
    text = "".join(map(chr, range(256))) + "\"\"\"'''\\u0041\r\n\u2028\ufeff🙂"
    assert tomllib.loads(f"value = {toml_value(text)}") == {"value": text}


def test_every_setting_is_written_with_the_family_first() -> None:
    text = to_toml(PRESETS["bert-base"].settings)
    assert text.startswith('[model]\nfamily = "encoder"\n')
    values = tomllib.loads(text)["model"]
    names = {field.name for field in fields(EncoderSettings)}
    assert set(values) == (names | {"family"}) - {
        "n_kv_heads", "d_head", "window", "embeddings", "d_embedding", "kept_heads", "parts",
        "token_dropout_mask",
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind", [*FAMILY_SETTINGS.values(), RopeSettings, RelativeSettings, KeptHeads]
)
def test_none_is_only_ever_a_default_since_it_is_written_by_leaving_it_out(kind: type) -> None:
    defaults = kind()
    for name, hint in setting_types(kind).items():
        if not hasattr(hint, "__dataclass_fields__") and describe(hint).endswith("or none"):
            assert getattr(defaults, name) is None, name


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("model", 3),
        ("model.a", 4),
        ("model.list", 5),
        ("model.b c", 9),
        ("model.text", 10),
        ("model.rope", 14),
        ("model.rope.base", 14),
        ("model.deep.er", 15),
        ("model.table", 17),
        ("model.table.x", 18),
        ("model.missing", None),
        ("a", None),
    ],
)
def test_the_line_of_a_key_is_found_in_any_spelling(key: str, line: int | None) -> None:
    text = '''# comment
x = 1
[model]
a = 1
list = [
  1, # a = 2

]
"b c" = 1
text = """
missing = 1
[other]
"""
rope = {base = 1}
deep.er = 1

[model.table]
x = 1
'''
    assert line_of(text, key) == line
