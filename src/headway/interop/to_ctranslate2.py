"""`headway export --to ctranslate2`: the exported folder, and the proof of equal outputs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.torch import save_file

from headway.decode.search.hypothesis import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.errors import DataError, Option, needs
from headway.interop.ctranslate2.engine import HEADS, Ctranslate2Engine
from headway.interop.ctranslate2.exportable import check_exportable
from headway.interop.ctranslate2.spec import spec_of
from headway.interop.hf.tokenizer import write_library_tokenizer
from headway.interop.int8_proof import judged_as_int8
from headway.interop.proof import Proof, compared
from headway.interop.proof_inputs import (
    Float32Array,
    ProofCase,
    compute_cases,
    output_name,
    proof_items,
)
from headway.models.encoder import Encoder
from headway.models.seq2seq import Seq2Seq
from headway.settings.folder import CONFIG
from headway.settings.model import DecoderSettings, Seq2SeqSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.tokenizer import Tokenizer

SHOWN = 3
"""Number of different translations to show in a proof."""


def write(run: LoadedRun, out: Path, *, int8: bool) -> None:
    """Write the files for `--engine ctranslate2` and for CTranslate2 itself."""
    needs("ctranslate2", "ctranslate2")
    check_exportable(run.shape, run.settings.task)
    spec = spec_of(run.shape, run.model)
    target = vocabulary(run.vocab.target)
    if isinstance(run.shape, Seq2SeqSettings):
        spec.register_source_vocabulary(vocabulary(run.vocab.source))
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token = target[run.vocab.target.bos]
    else:
        spec.register_vocabulary(target)
    for name in ("bos", "eos", "unk"):
        setattr(spec.config, f"{name}_token", target[getattr(run.vocab.target, name)])
    spec.validate()
    spec.optimize("int8" if int8 else None)
    spec.save(str(out))
    shutil.copyfile(run.folder / CONFIG, out / CONFIG)
    write_library_tokenizer(run, out)
    if isinstance(run.model, Encoder):
        heads = run.model.heads.state_dict()
        if run.model.ngrams is not None:
            heads |= run.model.ngrams.state_dict(prefix="ngrams.")
        save_file({name: tensor.clone() for name, tensor in heads.items()}, out / HEADS)
        (out / HEADS).chmod(0o644)  # the library makes it readable only for the owner


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of a tokenizer as its file spells them, by id; check that all differ."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.library_json())
    known = inner.get_vocab(with_added_tokens=True)
    found = {number: token for token, number in known.items()}
    listed = [found.get(number, f"<|unused {number}|>") for number in range(tokenizer.vocab_size)]
    if len(set(listed)) < len(listed):
        raise DataError(
            "two tokens of the vocabulary have the same text, which CTranslate2 does not "
            f"support. Use {Option('to', 'onnx')}, or predict with {Option('engine', 'torch')}."
        )
    return listed


def prove(run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool) -> Proof:
    """Compare with the outputs of the same engine that `--engine ctranslate2` uses."""
    decode = replace(run.settings.decode, sample=False, precision="fp32")
    engine = Ctranslate2Engine(out, replace(run.settings, decode=decode))
    texts = proof_items(run, sentences)
    ours = compute_cases(run, texts)
    if isinstance(run.shape, Seq2SeqSettings):
        theirs = [engine.logits(one.tokens, one.target[1:]) for one in ours]
        notes = _searched(run, engine, [one.tokens for one in ours])
        return _compared(ours, theirs, "logits", *notes, int8=int8)
    if isinstance(run.shape, DecoderSettings):
        theirs = [np.array(engine.runner.forward_batch([one.tokens]))[0] for one in ours]
        return _compared(ours, theirs, "logits", int8=int8)
    other = compute_cases(run.with_model(engine.model().eval()), texts)
    pairs = zip(ours, other, strict=True)
    worst = max(float(np.abs(a.hidden_TD - b.hidden_TD).max()) for a, b in pairs)
    note = f"hidden states: largest difference {worst:.2g}"
    return _compared(ours, [one.scores for one in other], output_name(run), note, int8=int8)


def _compared(
    ours: Sequence[ProofCase], theirs: Sequence[Float32Array], what: str, *notes: str, int8: bool
) -> Proof:
    proof = compared("ctranslate2", ours, theirs, what=what, by=_program(), notes=notes)
    return judged_as_int8(proof, ours, theirs) if int8 else proof


def _searched(
    run: LoadedRun, engine: Ctranslate2Engine, sources: Sequence[Sequence[int]]
) -> list[str]:
    """Note how many translations are equal with the decoding settings of the run, and show some
    that differ."""
    target, settings = run.vocab.target, engine.settings.decode
    assert isinstance(run.model, Seq2Seq)
    ours = Searcher([run.model], settings, SpecialTokens.of(target))(sources)
    theirs = engine.searcher(settings, SpecialTokens.of(target), detail=True)(sources)
    differ = [
        f"headway: {target.decode(mine.tokens)}\n  CTranslate2: {target.decode(other.tokens)}"
        for (mine, *_), (other, *_) in zip(ours, theirs, strict=True)
        if mine.tokens != other.tokens
    ]
    same = len(sources) - len(differ)
    searched = f"translations with beam {settings.beam}: {same} of {len(sources)} equal"
    more = [f"… and {len(differ) - SHOWN} more"] if len(differ) > SHOWN else []
    return [searched, *differ[:SHOWN], *more]


def _program() -> str:
    return f"ctranslate2 {needs('ctranslate2', 'ctranslate2').__version__}"
