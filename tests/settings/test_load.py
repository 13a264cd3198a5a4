"""Loading and validating settings; unknown keys and values are errors that name them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from headway.errors import ConfigError
from headway.settings.load import from_dict, model_settings
from headway.settings.model import (
    FAMILY_SETTINGS,
    DecoderSettings,
    EncoderSettings,
    Seq2SeqSettings,
)
from headway.settings.overrides import parse_override
from headway.settings.presets import preset
from headway.settings.run import load_model_settings

from ..facts import missing


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.5
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int = 10
    fast: bool = False
    title: str = ""
    kind: Literal["cosine", "linear", "none"] = "cosine"
    limit: int | None = 3
    inner: Inner = Inner(rate=0.25)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps={self.steps} must be at least 1.")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return tmp_path / "recipe.toml"


def error_text(path: Path | None, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model_settings(path, list(words))
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("model.n_layers=4", ["model", "n_layers"], 4),
        ("model.rope.base=1e4", ["model", "rope", "base"], 1e4),
        ("model.tie=true", ["model", "tie"], True),
        ("model.tie=True", ["model", "tie"], "True"),
        ("model.init=gpt2", ["model", "init"], "gpt2"),
        ('model.init="a = b"', ["model", "init"], "a = b"),
        ("model.attention_bias=", ["model", "attention_bias"], ""),
        ("model.d_head=none", ["model", "d_head"], None),
        ("model.heads=['words', \"tags\"]", ["model", "heads"], ["words", "tags"]),
        ("model.heads=[words, tags]", ["model", "heads"], ["words", "tags"]),
        ("model.heads=[]", ["model", "heads"], []),
        ("data.name=2020-01-02", ["data", "name"], "2020-01-02"),
        ("data.name=a=b", ["data", "name"], "a=b"),
        ("data.name=1\nother = 2", ["data", "name"], "1\nother = 2"),
    ],
)
def test_an_override_is_a_path_and_a_toml_value_in_which_words_need_no_quotes(
    word: str, path: list[str], value: Any
) -> None:
    got_path, got = parse_override(word)
    assert got_path == path
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("word", ["n_layers", "=4", "model.=4", "", ".x=1"])
def test_an_override_without_key_and_value_is_an_error_with_an_example(word: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(repr(word))}.*model\.n_layers=4"):
        parse_override(word)


@pytest.mark.parametrize("word", ["model.heads=[words", 'model.init="gpt2', "model.rope={base"])
def test_an_override_with_an_open_end_is_an_error(word: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(word)}.*TOML"):
        parse_override(word)


def test_values_become_the_types_of_their_settings() -> None:
    values = {"steps": 3, "kind": "linear", "inner": {"rate": 1, "names": ["a", "b"]}}
    built = from_dict(Outer, values)
    assert built == Outer(steps=3, kind="linear", inner=Inner(rate=1.0, names=("a", "b")))
    assert type(built.inner.rate) is float
    assert from_dict(Outer, {"title": 5}).title == "5"  # as the word title=5 on the command line


def test_what_is_left_out_stays_as_the_outer_class_has_it() -> None:
    assert from_dict(Outer, {"inner": {"names": ["a"]}}).inner.rate == 0.25
    start = Outer(steps=7, inner=Inner(rate=0.75))
    assert from_dict(Outer, {"inner": {"names": ["a"]}}, base=start).inner.rate == 0.75
    assert from_dict(Outer, {}, base=start) == start


@pytest.mark.parametrize("none", [None, "none"])
def test_none_clears_an_optional_setting_and_is_a_choice_where_one_is_called_so(
    none: str | None,
) -> None:
    built = from_dict(Outer, {"limit": none, "kind": none})
    assert built.limit is None
    assert built.kind == "none"


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"step": 3}, ("run.step", "steps")),
        ({"zzz": 3}, ("run.zzz", "steps", "fast", "title", "kind", "limit", "inner")),
        ({"inner": {"rat": 1}}, ("run.inner.rat", "rate")),
        ({"inner": 3}, ("run.inner", "3", "rate", "names")),
        ({"steps": True}, ("run.steps", "true")),
        ({"steps": 3.0}, ("run.steps", "3.0")),
        ({"steps": None}, ("run.steps", "none")),
        ({"fast": 1}, ("run.fast", "1", "true", "false")),
        ({"title": 5.5}, ("run.title", "5.5")),
        ({"limit": "x"}, ("run.limit", '"x"', "none")),
        ({"kind": "cosin"}, ("run.kind", '"cosin"', "'cosine'", "linear", "none")),
        ({"inner": {"rate": True}}, ("run.inner.rate", "true", "number")),
        ({"inner": {"rate": float("nan")}}, ("run.inner.rate", "nan", "number")),
        ({"inner": {"rate": 10**400}}, ("run.inner.rate", f"1{'0' * 400}", "number")),
        ({"inner": {"names": "a"}}, ("run.inner.names", '"a"', "list")),
        ({"inner": {"names": [True]}}, ("run.inner.names", "[true]", "list")),
        ({"steps": 0}, ("[run]", "steps=0", "1")),
    ],
)
def test_a_wrong_name_or_type_is_an_error_with_its_full_key_and_what_is_expected(
    values: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Outer, values, where="run.")
    assert not missing(caught.value, *facts)


def test_a_model_starts_from_its_preset_or_its_family() -> None:
    assert model_settings({"preset": "gpt2-medium"}) == preset("gpt2-medium")
    assert model_settings({"family": "seq2seq"}) == Seq2SeqSettings()
    assert model_settings({"preset": "bert-tiny", "family": "encoder"}) == preset("bert-tiny")
    assert model_settings({"family": "decoder", "n_layers": 2}) == DecoderSettings(n_layers=2)


def test_later_wins(recipe: Path) -> None:
    recipe.write_text('[model]\npreset = "bert-tiny"\nn_layers = 3\n')
    assert load_model_settings(recipe, []).n_layers == 3
    assert load_model_settings(recipe, ["model.n_layers=4", "model.n_layers=5"]).n_layers == 5
    assert load_model_settings(recipe, ["model.preset=bert-mini"]).d_model == 256


def test_words_alone_can_name_a_model() -> None:
    words = ["model.preset=bert-tiny", "model.heads=[classes]", "model.n_labels=3"]
    settings = load_model_settings(None, words)
    assert isinstance(settings, EncoderSettings)
    assert (settings.heads, settings.n_labels, settings.d_model) == (("classes",), 3, 128)


def test_a_preset_value_can_be_cleared(recipe: Path) -> None:
    recipe.write_text('[model]\npreset = "stories260K"\nn_kv_heads = "none"\n')
    assert load_model_settings(recipe, []).n_kv_heads is None
    assert preset("stories260K").n_kv_heads == 4


def test_settings_may_live_in_nested_tables_or_dotted_words(recipe: Path) -> None:
    recipe.write_text('[model]\npreset = "stories260K"\n[model.rope]\nbase = 5000\n')
    words = ["model.rope.scaling=linear", "model.rope.factor=2"]
    rope = load_model_settings(recipe, words).rope
    assert (rope.base, rope.scaling, rope.factor) == (5000.0, "linear", 2.0)


@pytest.mark.parametrize(
    ("text", "line", "facts"),
    [
        ("\nn_head = 3", 4, ("model.n_head", "n_heads")),
        ("n_heads = 'x'", 3, ("model.n_heads", '"x"')),
        ("n_heads = 7", 1, ("[model]", "d_model=768", "n_heads=7")),
        ("n_segments = 2", 3, ("model.n_segments", "encoder", "decoder")),
        ("tie = 'all'", 3, ("model.tie", '"all"', "true", "false")),
        ("family = 'encoder'", 3, ("model.preset=gpt2", "decoder", "model.family=encoder")),
        ("family = 'enc'", 3, ("'enc'", "encoder")),
        ("[model.rope]\nbase = 0", 3, ("[model.rope]", "rope.base=0", "10000")),
        ("[trian]\nlr = 1", 3, ("trian", "model")),
        ("n_segments = [\n 2,\n]", 3, ("model.n_segments", "encoder", "decoder")),
    ],
)
def test_an_error_names_file_and_line(
    recipe: Path, text: str, line: int, facts: tuple[str, ...]
) -> None:
    recipe.write_text(f'[model]\npreset = "gpt2"\n{text}\n')
    assert not missing(error_text(recipe), str(recipe), str(line), *facts)


def test_an_error_does_not_blame_the_file_for_what_the_command_line_set(recipe: Path) -> None:
    recipe.write_text('[model]\npreset = "gpt2"\nn_heads = 12\n')
    alone = error_text(recipe, "model.n_heads=x")
    assert not missing(alone, "model.n_heads", '"x"')
    assert recipe.name not in alone
    together = error_text(recipe, "model.n_heads=7")
    facts = (str(recipe), "1", "model.n_heads=7", "[model]", "d_model=768")
    assert not missing(together, *facts)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], ("model.preset", "model.preset=gpt2", "model.family")),
        (["model.n_layers=2"], ("model.preset", "model.family", *FAMILY_SETTINGS)),
        (["model.preset=gtp2"], ("gtp2", "gpt2")),
        (["model.preset=true"], ("model.preset", "true")),
        (["model.preset=gpt2", "n_layers=2"], ("'n_layers'", "model.n_layers")),
        (["model.preset=gpt2", "train.lr=1"], ("train", "model")),
        (["model.preset=gpt2", "model.rope=1"], ("model.rope", "1", "base", "scaling", "factor")),
        (["model.preset=gpt2", "model.preset.x=1"], ("model.preset.x=1", "'model.preset'")),
        (["model=gpt2"], ("model", '"gpt2"', "preset", "family")),
    ],
)
def test_a_mistake_in_an_override_is_an_error(words: list[str], facts: tuple[str, ...]) -> None:
    assert not missing(error_text(None, *words), *facts)


def test_a_file_that_cannot_be_read_is_named(recipe: Path) -> None:
    assert str(recipe) in error_text(recipe)
    assert str(recipe.parent) in error_text(recipe.parent)
    assert recipe.name not in error_text(recipe.parent)
    recipe.write_bytes(b'[model]\npreset = "caf\xe9"\n')
    assert not missing(error_text(recipe), str(recipe), "2", "UTF-8", "0xe9")
    recipe.write_text('[model]\npreset = "gpt2\n')
    assert not missing(error_text(recipe), str(recipe), "2", "TOML")
    recipe.write_text("x = " + "[" * 100_000)
    assert str(recipe) in error_text(recipe)
    recipe.write_text("x = " + "9" * 10_000)
    assert not missing(error_text(recipe), str(recipe), "TOML")


def test_a_byte_order_mark_and_windows_line_ends_are_taken(recipe: Path) -> None:
    recipe.write_bytes(b'\xef\xbb\xbf[model]\r\npreset = "gpt2"\r\nn_layers = 2\r\n')
    assert load_model_settings(recipe, []).n_layers == 2
