"""`--engine ctranslate2`: the outputs of torch; every setting is supported or an error."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from typer.testing import CliRunner

from headway.cli.main import app
from headway.decode.logits_processors import SpecialTokens, TextConstraints
from headway.errors import ConfigError, UserError
from headway.interop.ctranslate2 import export as to_ctranslate2
from headway.interop.ctranslate2.engine import Ctranslate2Engine
from headway.interop.ctranslate2.search import MAPPED, UNSUPPORTED, Ranking, even_batches
from headway.models.folder import model_weights, save_weights
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.folder import load_run
from headway.settings.run import RunSettings, resolved_toml
from headway.tasks.loaded_run import open_plain, open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tokens.special_tokens import TokenRoles
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_vocabularies

from ..decode.copying import SIZES, copier
from .padded_runs import answers, assert_same_facts, lines_for, opened_by, tiny_run

WORDS = [f"{c}{v}" for c in "bdfgk" for v in "aeio"]
LINES = ["ba de", "", "fi ko ga", "   ", "go", "de de ba fi", "ka ke ki ko da", "ba de fi go ka"]


def vocabularies() -> Vocabularies:
    lines = [" ".join(WORDS)] * 2
    return train_vocabularies(lines, lines, TokenizerSettings(kind="words"), 2)


def copying_run(folder: Path, vocab: Vocabularies | None = None) -> Path:
    """A translator that has half learned to copy: its outputs differ, and end."""
    folder.mkdir()
    settings = RunSettings(
        task="translate", model=SIZES, data=DataSettings(max_len=12), decode=DecodeSettings(beam=3)
    )
    (folder / "config.toml").write_text(resolved_toml(settings))
    (vocab or vocabularies()).save(folder / "tokenizer.json")
    save_weights(folder, model_weights(copier(250)))
    return folder


def exported(run: Path, out: Path) -> Path:
    out.mkdir()
    to_ctranslate2.write(open_plain(str(run)), out, int8=False)
    return out


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("translate")
    run = copying_run(folder / "run")
    return run, exported(run, folder / "out")


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("complete")
    run = tiny_run(folder / "run", "complete")
    return run, exported(run, folder / "out")


def by_engine(out: Path, lines: list[str], **more: Any) -> list[dict[str, Any]]:
    decode = {key: value for key, value in more.items() if key != "options"}
    settings = load_run(out)
    settings = replace(settings, decode=replace(settings.decode, **decode))
    return answers(out, lines, Ctranslate2Engine(out, settings), **more)


def test_every_decoding_setting_is_mapped_or_an_error() -> None:
    known = {field.name for field in fields(DecodeSettings)}
    assert MAPPED.keys() | UNSUPPORTED.keys() | {"diversity"} == known
    assert not MAPPED.keys() & UNSUPPORTED.keys()
    page = (Path(__file__).parents[2] / "docs" / "weights" / "export.md").read_text()
    table = page.partition("## CTranslate2")[2].partition("## ONNX")[0]
    assert not [name for name in UNSUPPORTED.keys() - {"precision"} if f"`{name}`" not in table]
    for name, (nothing, _) in UNSUPPORTED.items():
        assert getattr(DecodeSettings(), name) == nothing


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beam": 1},
        {"length_penalty": "none"},
        {"max_len": 2, "beam": 1},
        {"min_len": 4, "beam": 1},
        {"no_repeat_ngram": 1, "beam": 1},
        {"unknown": "keep"},
        {"unknown": "copy"},
        {"batch_tokens": 20},
        {"options": {"alignments": True}},
        {"sample": True, "top_k": 1},
    ],
)
def test_translations_are_those_of_torch(
    translators: tuple[Path, Path], settings: dict[str, Any]
) -> None:
    run, out = translators
    ours = answers(run, LINES, **settings)
    assert_same_facts(ours, by_engine(out, LINES, **settings))


@pytest.mark.parametrize("penalty", ["gnmt", "power"])
def test_the_best_several_are_scored_as_torch_does(
    translators: tuple[Path, Path], penalty: str
) -> None:
    """Its search ends sooner than ours, so the last of them may be another, and no better one."""
    run, out = translators
    ours = answers(run, LINES, beam=8, n_best=3, length_penalty=penalty)
    every = answers(run, LINES, beam=20, n_best=20, length_penalty=penalty)
    theirs = by_engine(out, LINES, beam=8, n_best=3, length_penalty=penalty)
    for mine, known, found in zip(ours, every, theirs, strict=True):
        assert_same_facts(mine["outputs"][:1], found["outputs"][:1])
        by_tokens = {tuple(one["tokens"]): one for one in known["outputs"]}
        assert_same_facts([by_tokens[tuple(o["tokens"])] for o in found["outputs"]],
                          found["outputs"])  # fmt: skip
        for one, other in zip(mine["outputs"], found["outputs"], strict=True):
            assert one["score"] > other["score"] - 1e-3


@pytest.mark.parametrize("penalty", ["gnmt", "power", "none"])
def test_scores_without_details_are_nearly_ours(
    translators: tuple[Path, Path], penalty: Any
) -> None:
    """The program shares out what the unknown token had among the others."""
    run, out = translators
    settings = load_run(out)
    decode = replace(settings.decode, length_penalty=penalty, n_best=2)
    engine = Ctranslate2Engine(out, replace(settings, decode=decode))
    both = [writer_of(opened_by(*one), decode) for one in ((run,), (out, engine))]
    ours, theirs = ([one.outputs for one in t.write(LINES)] for t in both)
    for mine, other in zip(ours, theirs, strict=True):
        assert [o.text for o in mine] == [o.text for o in other]
        for name in ("score", "log_prob"):
            wanted = [pytest.approx(getattr(o, name), rel=0.1) for o in mine]
            assert [getattr(o, name) for o in other] == wanted
    assert both[0].summary.tokens == both[1].summary.tokens


def test_words_are_aligned_by_the_layer_that_we_use(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", "translate", "as-published", n_layers=3)
    out = exported(run, tmp_path / "out")
    lines, settings = ["ba de go fi", "fi ko ga mo pu"], {"options": {"alignments": True}}
    ours = answers(run, lines, beam=1, **settings)
    assert_same_facts(ours, by_engine(out, lines, beam=1, **settings))
    assert len({tuple(pair) for one in ours for pair in one["outputs"][0]["alignment"]}) > 3


def test_a_line_longer_than_all_positions_is_split(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", "translate", "pre-learned-all-biases", max_len=20)
    out = exported(run, tmp_path / "out")
    lines = ["ba de go. " * 9]
    ours = answers(run, lines, beam=1)
    assert ours[0]["parts"] > 1
    assert_same_facts(ours, by_engine(out, lines, beam=1))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_are_even(workers: int) -> None:
    lengths = [1 + (7 * i) % 23 for i in range(100)]
    groups = list(even_batches(lengths, 200, workers))
    assert sorted(i for group in groups for i in group) == list(range(100))
    assert len(groups) % workers == 0
    tokens = [sum(lengths[i] for i in group) for group in groups]
    assert max(tokens) < min(220, 1.3 * min(tokens))
    for one, other in pairwise(groups):
        assert min(lengths[i] for i in one) >= max(lengths[i] for i in other)
    assert [*even_batches([5], 200, workers)] == [[0]]
    assert [*even_batches([], 200, workers)] == []


def test_what_ended_is_ranked_first_and_by_our_penalty() -> None:
    settings = DecodeSettings(beam=3, n_best=3)
    ranking = Ranking(settings, SpecialTokens(1, 2, 0), ["<unk>", "<s>", "</s>", "a", "b"])
    tokens = [["a", "b", "a"], ["a", "</s>"], ["a", "b", "b", "b", "</s>"]]
    logs = [-0.1, -3.0, -3.2]
    scores = [
        log / len(one) ** settings.length_penalty_alpha
        for one, log in zip(tokens, logs, strict=True)
    ]
    found = ranking.hypotheses(tokens, scores)
    assert [h.tokens for h in found] == [[3, 4, 4, 4], [3], [3, 4, 3]]
    assert [h.finished for h in found] == [True, True, False]
    assert [h.log_prob for h in found] == pytest.approx([-3.2, -3.0, -0.1])
    assert found[0].score == pytest.approx(-3.2 / ((5 + 5) / 6) ** 0.6)


def test_each_output_has_its_own_longest_length(tmp_path: Path) -> None:
    """Also in one batch, and where no output comes to an end."""
    run = tiny_run(tmp_path / "run", "translate", "as-published")
    out = exported(run, tmp_path / "out")
    settings: dict[str, Any] = {"max_len": None, "extra_len": 2, "beam": 1}
    ours = answers(run, ["go", "de de ba go de", "ba de", "ba " * 9], **settings)
    lengths = [len(one["outputs"][0]["tokens"]) for one in ours]
    assert len(set(lengths)) > 2
    theirs = by_engine(out, [one["source"] for one in ours], **settings)
    assert_same_facts(ours, theirs)


@pytest.mark.parametrize("task", ["fill", "classify", "tag", "embed"])
def test_answers_of_encoders_are_those_of_torch(tmp_path: Path, task: str) -> None:
    run = tiny_run(tmp_path / "run", task, "as-published")
    out = exported(run, tmp_path / "out")
    lines = lines_for(task)
    assert_same_facts(answers(run, lines), by_engine(out, lines))


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 1},
        {"beam": 3, "n_best": 2, "length_penalty": "power"},
        {"beam": 1, "min_len": 6},
        {"beam": 1, "stop": (" mo",)},
        {"beam": 2, "stop": (" mo",)},
        {"beam": 1, "max_len": None},
        {"sample": True, "top_k": 1},
    ],
)
def test_continued_texts_are_those_of_torch(
    writers: tuple[Path, Path], settings: dict[str, Any]
) -> None:
    run, out = writers
    lines = ["ba de", "go", "", "fi ko ga mo pu ba ba de " * 3, "de de ba"]
    assert_same_facts(answers(run, lines, **settings), by_engine(out, lines, **settings))


def test_torch_keeps_its_threads(translators: tuple[Path, Path]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        Ctranslate2Engine(translators[1], load_run(translators[1]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_is_drawn_follows_the_seed(writers: tuple[Path, Path]) -> None:
    _, out = writers

    def drawn(seed: int) -> list[dict[str, Any]]:
        return by_engine(out, ["ba de", "go"], sample=True, n_best=2, seed=seed, top_p=0.9)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_text_is_shown_while_it_is_written(writers: tuple[Path, Path]) -> None:
    _, out = writers
    pieces: list[str] = []
    [found] = by_engine(out, ["ba de"], beam=1, options={"stream": pieces.append})
    assert len(pieces) > 3
    assert "".join(pieces) == "ba de" + found["outputs"][0]["text"]


def test_prefixes_and_banned_words_go_through(translators: tuple[Path, Path]) -> None:
    run, out = translators
    wishes = [TextConstraints(prefix="go ki"), TextConstraints(banned=("go",)), TextConstraints()]
    engine = Ctranslate2Engine(out, load_run(out))
    lines = ["ba de fi", "go ka", "ko ko da"]
    both = [
        [
            (found.text, pytest.approx(found.outputs[0].log_prob, rel=0.05))
            for found in translator.write(lines, wishes)
        ]
        for translator in (writer_of(opened_by(run)), writer_of(opened_by(out, engine)))
    ]
    assert both[0] == both[1]
    assert both[1][0][0].startswith("go ki")
    assert "go" not in both[1][1][0].split()
    with pytest.raises(UserError, match=r"engine=.ctranslate2..*engine=.torch."):
        list(writer_of(opened_by(out, engine)).write(["ba"], [TextConstraints(required=("de",))]))


def test_the_roles_of_tokens_are_kept(tmp_path: Path) -> None:
    """As BART has them: what a source and an output begin with, and what is never written."""
    plain = vocabularies().target
    roles = TokenRoles(
        bos="<s>", eos="</s>", unk="<unk>", source_begin=" ki", target_begin=" ko", banned=(" ba",)
    )
    given = Tokenizer(tokenizers.Tokenizer.from_str(plain.library_json()), roles=roles)
    run = copying_run(tmp_path / "run", Vocabularies(given, given))
    out = exported(run, tmp_path / "out")
    ours = answers(run, LINES)
    assert_same_facts(ours, by_engine(out, LINES))
    assert not any("ba" in one["outputs"][0]["text"] for one in ours)
    engine = Ctranslate2Engine(out, load_run(out))
    [[best]] = engine.searcher(load_run(out).decode, SpecialTokens.of(given))([[5, given.eos]])
    assert best.tokens[0] == given.target_begin
    loaded = open_plain(str(run))
    assert to_ctranslate2.prove(loaded, out, LINES[:1], int8=False).passed


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"groups": 2, "beam": 4}, r"decode\.groups=2\b.*engine=.ctranslate2..*decode\.groups=1\b"),
        ({"min_p": 0.1, "sample": True}, r"decode\.min_p=0\.1\b.*decode\.min_p=0\.0"),
        ({"precision": "bf16"}, r"decode\.precision=bf16\b.*--int8\b.*decode\.precision=fp32"),
    ],
)
def test_unsupported_settings_are_an_error_with_their_name(
    translators: tuple[Path, Path], settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        by_engine(translators[1], ["ba"], **settings)


def test_features_that_need_torch_are_an_error(
    translators: tuple[Path, Path], writers: tuple[Path, Path]
) -> None:
    out = writers[1]
    engine = Ctranslate2Engine(out, load_run(out))
    with pytest.raises(UserError, match=r"engine=.ctranslate2..*\b2\b.*engine=.torch."):
        open_run(out, out, engine="ctranslate2")
    with pytest.raises(UserError, match=r"\bdraft\b.*engine=.ctranslate2."):
        by_engine(out, ["ba"], beam=1, options={"draft": str(writers[0])})
    with pytest.raises(UserError, match=r"choose.*engine=.ctranslate2."):
        by_engine(out, ["ba"], options={"labels": "ba,de"})
    with pytest.raises(UserError, match=r"engine=.ctranslate2..*engine=.torch."):
        engine.model()


def test_translations_of_an_engine_are_scored(
    translators: tuple[Path, Path], tmp_path: Path
) -> None:
    run, out = translators
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in LINES if line.strip()))
    command = ["evaluate", str(out), "--engine", "ctranslate2", "--against", str(run), "--json"]
    files = ["--source", str(text), "--target", str(text)]
    found = CliRunner().invoke(app, [*command, *files])
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    assert "loss" not in facts
    assert facts["comparison"]["difference"]["value"] == 0


def test_the_command_names_the_penalty_of_the_second_ranking(
    translators: tuple[Path, Path],
) -> None:
    command = ["predict", str(translators[1]), "--engine", "ctranslate2"]
    found = CliRunner().invoke(app, command, input="ba de\n\ngo\n")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[1] == ""
    assert len(found.stdout.splitlines()) == 3
    assert "gnmt" in found.stderr
    command.append("decode.length_penalty=power")
    assert "gnmt" not in CliRunner().invoke(app, command, input="ba\n").stderr
