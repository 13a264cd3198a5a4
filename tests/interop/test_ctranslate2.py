"""Exports to CTranslate2 give the same outputs; unsupported models are errors that say why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from headway.decode.logits_processors import SpecialTokens
from headway.errors import ConfigError, FolderError, UserError
from headway.interop.ctranslate2 import export as to_ctranslate2
from headway.interop.ctranslate2.engine import Ctranslate2Engine
from headway.interop.ctranslate2.exportable import POSITIONS, check_exportable
from headway.interop.exporting import export_run
from headway.interop.importing import import_run
from headway.settings.folder import load_run
from headway.settings.model import StackSettings
from headway.tasks.engines import engine_of
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..facts import missing
from ..models.variants import VARIANTS, settings_of
from .padded_runs import LINES, answers, assert_same_facts, lines_for, tiny_run
from .test_hf_decoders import DECODERS
from .test_hf_seq2seq import PAIRS
from .test_round_trip import write_words
from .theirs import reference, saved

REFUSALS = {
    "relative-grouped": "model.activation='relu2'",
    "window": "model.window=3",
    "window-and-alibi": "model.window=2",
}
"""Of all families."""

REFUSALS_OF: dict[str, dict[str, str]] = {
    "translate": {
        "parallel-one-key-head": "model.block_layout='parallel'",
        "no-positions-parallel": "model.block_layout='parallel'",
        "alibi-three-heads": "model.positions='alibi'",
        "qk-norm-scaled-rotary": "model.qk_norm=True",
    },
    "complete": {"no-positions-parallel": "model.norm='rms'"},
    "fill": {
        "parallel-one-key-head": "model.block_layout='parallel'",
        "no-positions-parallel": "model.block_layout='parallel'",
        "alibi-three-heads": "model.positions='alibi'",
        "albert-like": "model.d_embedding=12",
    },
}


def exported(run: Path, out: Path, *, int8: bool = False) -> LoadedRun:
    loaded = open_plain(str(run))
    out.mkdir()
    to_ctranslate2.write(loaded, out, int8=int8)
    return loaded


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", ["translate", "complete", "fill"])
def test_every_variant_gives_the_same_outputs_or_is_an_error(
    tmp_path: Path, task: str, variant: str
) -> None:
    run, out = tiny_run(tmp_path / "run", task, variant, n_layers=2), tmp_path / "out"
    reason = (REFUSALS | REFUSALS_OF[task]).get(variant)
    if reason is not None:
        with pytest.raises(ConfigError) as caught:
            exported(run, out)
        assert not missing(caught.value, reason, 'to="onnx"')
        assert not list(out.iterdir())
        return
    loaded = exported(run, out)
    proof = to_ctranslate2.prove(loaded, out, [line for line in LINES if line], int8=False)
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4
    engine = Ctranslate2Engine(out, load_run(out))
    decode = {"beam": 1, "length_penalty": "none"} if task != "fill" else {}
    lines = lines_for(task)
    ours = answers(run, lines, **decode)
    assert_same_facts(ours, answers(out, lines, engine, **decode))


@pytest.mark.parametrize(
    "name", ["gpt2", "llama, llama3 scaling", "neox", "marian, other sides", "bart", "t5 1.1"]
)
def test_imported_models_can_be_exported_to_ctranslate2(tmp_path: Path, name: str) -> None:
    """With the roles that their tokens have: what begins, what is forced, what never comes."""
    source = saved(reference(*(DECODERS | PAIRS)[name]), tmp_path / "theirs")
    write_words(source)
    run, out = tmp_path / "run", tmp_path / "out"
    import_run(str(source), run)
    assert export_run(str(run), "ctranslate2", out).passed
    lines = ["a b c", "w1 w2 d e f", "7 z", ""]
    engine = Ctranslate2Engine(out, load_run(out))
    ours = answers(run, lines, beam=1, sample=False, max_len=12)
    assert_same_facts(ours, answers(out, lines, engine, beam=1, sample=False, max_len=12))


def test_another_norm_in_the_decoder_is_an_error() -> None:
    model = settings_of("seq2seq", "as-published", decoder=StackSettings(norm_eps=1e-3))
    with pytest.raises(ConfigError, match=r"model\.decoder\.norm_eps=0\.001\b.*to=.onnx."):
        check_exportable(model, "translate")


def test_int8_weights_are_made_of_copies(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", "translate", "as-published")
    loaded = open_plain(str(run))
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    (tmp_path / "out").mkdir()
    to_ctranslate2.write(loaded, tmp_path / "out", int8=True)
    after = loaded.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_int8_is_smaller_and_its_proof_has_the_difference(tmp_path: Path) -> None:
    for task in ("translate", "complete", "embed"):
        run = tiny_run(tmp_path / task, task, "as-published", d_ff=512)
        sizes = []
        for int8 in (False, True):
            out = tmp_path / f"{task}-{int8}"
            proof = export_run(str(run), "ctranslate2", out, int8=int8)
            sizes.append((out / "model.bin").stat().st_size)
            saved = json.loads((out / "proof.json").read_text())
            assert saved["passed"] == proof.passed
            assert (proof.max_difference > 1e-4) == int8
            assert ("int8" in proof.text()) == int8
        assert sizes[1] < 0.6 * sizes[0]


def test_a_proof_of_other_weights_fails(tmp_path: Path) -> None:
    """What is proved is what was written, not what should have been."""
    run, out = tiny_run(tmp_path / "run", "complete"), tmp_path / "out"
    loaded = exported(run, out)
    with torch.no_grad():
        next(loaded.model.parameters())[3] += 1
    assert not to_ctranslate2.prove(loaded, out, ["ba de"], int8=False).passed


@pytest.mark.parametrize("name", ["tatoeba-de-en", "stories"])
def test_the_shipped_models_say_the_same_in_fp32(tmp_path: Path, name: str) -> None:
    sentences = ["Der Hund schläft.", "I have no time.", "Once upon a time"]
    proof = export_run(name, "ctranslate2", tmp_path / "out", sentences=sentences)
    assert proof.passed
    assert proof.max_difference < 1e-4
    assert proof.equal_outputs == 1


def test_without_the_library_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"headway\[ctranslate2\]"):
        export_run("stories", "ctranslate2", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"headway\[ctranslate2\]"):
        Ctranslate2Engine(tmp_path, load_run(tiny_run(tmp_path / "run", "complete")))


def test_folders_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    run, out = tiny_run(tmp_path / "run", "complete"), tmp_path / "out"
    settings = load_run(run)
    with pytest.raises(FolderError, match=r"engine=.ctranslate2..*--to ctranslate2\b"):
        engine_of("ctranslate2", run, settings)
    assert engine_of("torch", run, settings) is None
    exported(run, out)
    with pytest.raises(FolderError, match=rf"{out}\b.*model\.safetensors\b.*engine=.ctranslate2."):
        engine_of("torch", out, settings)
    whole = (out / "model.bin").read_bytes()
    (out / "model.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FolderError, match=rf"CTranslate2\b.*{out}\b"):
        engine_of("ctranslate2", out, settings)


def test_positions_without_an_end_get_one_that_is_far(tmp_path: Path) -> None:
    run, out = tiny_run(tmp_path / "run", "translate", "post-sinusoidal-relu"), tmp_path / "out"
    exported(run, out)
    engine = Ctranslate2Engine(out, load_run(out))
    target = open_plain(str(run)).vocab.target
    searcher = engine.searcher(load_run(out).decode, SpecialTokens.of(target))
    assert len(searcher([[5] * POSITIONS])) == 1
    with pytest.raises(UserError, match=r"\b1,025\b.*\b1,024\b"):
        searcher([[5] * (POSITIONS + 1)])
