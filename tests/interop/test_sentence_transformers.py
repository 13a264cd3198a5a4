"""Folders of sentence-transformers: pooling and normalisation as their modules say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.interop.importing import import_run
from headway.settings.folder import load_run
from headway.settings.model import DecoderSettings, EncoderSettings

from ..facts import missing
from .folders import bert_folder, change
from .test_hf_decoders import DECODERS
from .test_hf_seq2seq import PAIRS
from .test_importing import ids, predicted
from .test_round_trip import write_words
from .theirs import reference, saved

KINDS = ("Transformer", "Pooling", "Normalize")
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")


def sentence_folder(
    folder: Path, mode: str = "mean_tokens", kinds: tuple[str, ...] = KINDS
) -> tuple[Path, Any]:
    folder, theirs = bert_folder(folder, "BertModel")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "",
         "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {f"pooling_mode_{name}": name == mode for name in (*MODES, "lasttoken")}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, **pooling})
    )
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 20, "do_lower_case": False})
    )
    return folder, theirs


@pytest.mark.parametrize("kinds", [KINDS, KINDS[:2]], ids=["normalised", "plain"])
@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "lasttoken"])
@torch.no_grad()
def test_vectors_are_pooled_and_normalised_as_the_modules_say(
    mode: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    source, theirs = sentence_folder(tmp_path / "model", mode, kinds)
    done = import_run(str(source), tmp_path / "run")
    texts = ["the film", "a long plot and the music of a scene", "ok"]
    answers = predicted(tmp_path / "run", texts, tmp_path)
    for text, answer in zip(texts, answers, strict=True):
        hidden_TD = theirs(ids(text)).last_hidden_state[0]
        x_D = {"cls_token": hidden_TD[0], "mean_tokens": hidden_TD.mean(0),
               "lasttoken": hidden_TD[-1]}[mode]  # fmt: skip
        x_D = x_D / x_D.norm() if "Normalize" in kinds else x_D
        assert np.abs(np.array(answer["vector"]) - x_D.numpy()).max() < 1e-5
    assert load_run(tmp_path / "run").embed.normalise == ("Normalize" in kinds)
    assert any(not missing(note, "20") for note in done.notes)
    model = done.settings.model
    assert isinstance(model, EncoderSettings)
    # The first token goes through the pooler where there is one, so there must be none.
    assert ("pooled" in model.heads) == (mode != "cls_token")
    unused = [name for name in done.ignored if "pooler" in name]
    assert len(unused) == (2 if mode == "cls_token" else 0)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer",),
        ("Transformer", "Pooling", "Dense"),
        ("CLIPModel",),
        ("Transformer", "Normalize", "Pooling"),
    ],
)
def test_other_modules_are_an_error(kinds: tuple[str, ...], tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "model", kinds=kinds)
    with pytest.raises(
        UserError, match=rf"modules\.json.*{', '.join(kinds)}\b.*Transformer.*Pooling.*Normalize"
    ):
        import_run(str(source), tmp_path / "run")


@pytest.mark.parametrize("mode", ["max_tokens", "mean_sqrt_len_tokens", "none"])
def test_other_poolings_are_an_error(mode: str, tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "model", mode)
    with pytest.raises(UserError) as caught:
        import_run(str(source), tmp_path / "run")
    known = [f"pooling_mode_{name}" for name in ("cls_token", "mean_tokens", "lasttoken")]
    wrong = [] if mode == "none" else [f"pooling_mode_{mode}"]
    assert not missing(caught.value, str(Path("1_Pooling/config.json")), *wrong, *known)


def test_two_poolings_at_once_are_an_error(tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "model")
    change(source / "1_Pooling" / "config.json", pooling_mode_cls_token=True)
    with pytest.raises(UserError) as caught:
        import_run(str(source), tmp_path / "run")
    message = str(caught.value)  # each is named as given, and again among those supported
    assert [message.count(f"pooling_mode_{name}") for name in ("cls_token", "mean_tokens")] == [
        2,
        2,
    ]


def test_words_added_to_every_text_are_an_error(tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "model")
    facts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"\bdefault_prompt_name\b.*'query'"):
        import_run(str(source), tmp_path / "run")
    change(source / "config_sentence_transformers.json", default_prompt_name=None)
    import_run(str(source), tmp_path / "run")


def test_decoders_make_sentence_vectors_too_but_not_pairs_of_stacks(tmp_path: Path) -> None:
    modules = sentence_folder(tmp_path / "like", "lasttoken")[0]
    for name, kind in (("decoder", "gpt2"), ("pair", "t5")):
        source = saved(reference(*(DECODERS | PAIRS)[kind]), tmp_path / name)
        write_words(source)
        shutil.copy(modules / "modules.json", source)
        shutil.copytree(modules / "1_Pooling", source / "1_Pooling")
    done = import_run(str(tmp_path / "decoder"), tmp_path / "run")
    assert isinstance(done.settings.model, DecoderSettings)
    assert (done.settings.task, done.settings.model.pooling) == ("embed", "last")
    with pytest.raises(UserError, match=r"modules\.json.*\bencoder-decoder\b"):
        import_run(str(tmp_path / "pair"), tmp_path / "no")


@pytest.mark.parametrize("path", ["../outside", "a/b"])
def test_names_of_modules_stay_in_the_folder(path: str, tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "model")
    modules = json.loads((source / "modules.json").read_text())
    modules[2]["path"] = path
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=re.escape(f"'{path}'")):
        import_run(str(source), tmp_path / "run")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
