"""Whether `transformers` says of an exported folder what we say of the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.interop.families import family_named
from headway.interop.folder_files import read_table
from headway.interop.hf.media_proof import prove_media
from headway.interop.hf.quiet import quiet
from headway.interop.hf.tokenizer import ORIGINALS, around
from headway.interop.importing import filled
from headway.interop.name_pairs import to_ours
from headway.interop.proof import Proof, Reading, compared, our_logits, proof_texts, read_again
from headway.interop.sentence_transformers import MODULES, SentenceFolder
from headway.interop.weights import open_weights
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.nn.layout import Layout
from headway.settings.folder import TOKENIZER
from headway.settings.model import TextSettings, family_of
from headway.tasks.opened import Opened
from headway.tokens.vocabtxt import is_smiles

CLASSES = {
    "seq2seq": "AutoModelForSeq2SeqLM",
    "text": "AutoModelForCausalLM",
    "gaps": "AutoModelForMaskedLM",
    "label": "AutoModelForSequenceClassification",
    "tags": "AutoModelForTokenClassification",
    "vector": "AutoModel",
}
"""By what the run answers, or by the family of its model."""

Scores = NDArray[np.float32]


def prove(run: Opened, out: Path, sentences: Sequence[str], *, int8: bool = False) -> Proof:
    """By `transformers` where it is installed, else by reading the folder again ourselves."""
    if run.spec.modality != "text":
        return prove_media(run, out)
    ours = our_logits(run, proof_texts(run, sentences))
    what = "vectors" if run.spec.answers == "vector" else "logits"
    config = read_table(out / "config.json")
    notes = _notes(run, config)
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        theirs = _by_us(run, out, config, ours)
        notes.append("transformers is not installed: the folder was imported again instead")
        return compared("hf", ours, theirs, what=what, by="headway", notes=notes)
    with quiet(transformers), torch.no_grad():
        theirs, loading = _by_transformers(transformers, run, out, config, ours)
        same, about = _same_ids(transformers, run, out, sentences)
    by = f"transformers {transformers.__version__}"
    proof = compared("hf", ours, theirs, what=what, by=by, notes=[*notes, *loading, about])
    return replace(proof, equal_outputs=proof.equal_outputs * same)


def _notes(run: Opened, config: dict[str, Any]) -> list[str]:
    """What the numbers owe to the format."""
    assert isinstance(run.shape, TextSettings)
    said = family_named(config["model_type"]).read(config, _many(run.shape), {})
    here, there = run.shape.norm_eps, said.model.norm_eps
    if here == there:
        return []
    return [f"norms have an eps of {here:g} here and always {there:g} there"]


def _many(shape: TextSettings) -> list[str]:
    """Names enough for any number of layers."""
    return [str(number) for number in range(2 * shape.n_layers + 64)]


def _by_transformers(
    transformers: ModuleType,
    run: Opened,
    out: Path,
    config: dict[str, Any],
    readings: Sequence[Reading],
) -> tuple[list[Scores], list[str]]:
    named = (config.get("architectures") or [""])[0]
    bare = named.endswith("Model") and not named.endswith(("LMHeadModel", "MTModel"))
    embeds = run.spec.answers == "vector"
    name = named if hasattr(transformers, named) and bare == embeds else _auto_class(run)
    model, loading = getattr(transformers, name).from_pretrained(
        out, output_loading_info=True, dtype=torch.float32, local_files_only=True
    )
    model.eval()
    if run.spec.answers == "label":
        model.config.pad_token_id = None  # one text at a time: its last token is its last
    notes = [
        f"{name} found {kind.replace('_', ' ')}: {', '.join(sorted(map(str, loading[kind])))}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if loading.get(kind) and (name == named or not embeds)  # a body alone leaves the heads
    ]
    sentence = _sentence(out) if embeds else None
    return [_scores(run, model, reading, sentence) for reading in readings], notes


def _auto_class(run: Opened) -> str:
    return CLASSES.get(family_of(run.shape)) or CLASSES[run.spec.answers]


def _sentence(out: Path) -> SentenceFolder | None:
    """How a text becomes one vector, as the folder says it."""
    return SentenceFolder(out) if (out / MODULES).is_file() else None


def _scores(run: Opened, model: Any, reading: Reading, sentence: SentenceFolder | None) -> Scores:
    inputs = {"input_ids": torch.tensor([reading.tokens])}
    if reading.target:
        inputs["decoder_input_ids"] = torch.tensor([reading.target])
    if getattr(run.shape, "n_segments", 0) > 1:
        inputs["token_type_ids"] = torch.tensor([reading.segments])
    said = model(**inputs)
    if run.spec.answers == "vector":
        found = _vector(run, said, len(reading.tokens), sentence)
    elif run.spec.answers == "label":
        found = said.logits
    else:
        found = (said.prediction_logits if "prediction_logits" in said else said.logits)[0]
    return found.float().numpy()


def _vector(run: Opened, said: Any, length: int, sentence: SentenceFolder | None) -> Tensor:
    if sentence is None:  # only what comes out of BERT's pooler has no such files
        found: Tensor = said.pooler_output
        normalise = run.settings.embed.normalise
    else:
        found = Layout.of([length]).pooled(said.last_hidden_state[0], sentence.pooling)
        normalise = sentence.normalise
    return F.normalize(found, dim=-1) if normalise else found


def _same_ids(
    transformers: ModuleType, run: Opened, out: Path, sentences: Sequence[str]
) -> tuple[float, str]:
    """The share of sentences of which the exported tokenizer makes what our model reads, with all
    special tokens, and a line about it."""
    excuse = _excuse(run, out)
    if excuse is not None:
        return 1.0, f"its tokenizer is not compared: {excuse}"
    before, behind = around(run)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
        theirs = [tokenizer(text)["input_ids"] for text in sentences]
    except Exception as error:  # of any kind: it is their code and the user's file
        return 0.0, f"transformers cannot read the tokenizer: {error}"
    mine = [[*before, *ids, *behind] for ids in run.vocab.source.encode_batch(list(sentences))]
    same = sum(list(a) == b for a, b in zip(theirs, mine, strict=True))
    return same / len(mine), f"its tokenizer gives our ids for {same} of {len(mine)} sentences"


def _excuse(run: Opened, out: Path) -> str | None:
    """Why the files of a tokenizer cannot say there what they say here."""
    tokenizer = run.vocab.source
    if (out / TOKENIZER).is_file():
        ours = not (run.folder / ORIGINALS / TOKENIZER).is_file()
        if ours and tokenizer.preparation is not None:
            return "its JSON cannot say how SentencePiece prepares text"
        return None
    if (out / "vocab.txt").is_file():
        pieces = (out / "vocab.txt").read_text(encoding="utf-8").split("\n")
        if is_smiles({piece: i for i, piece in enumerate(pieces) if piece}):
            return "vocab.txt has pieces of formulas, and no class there cuts formulas"
    spm = any(out.glob("*.model")) or any(out.glob("*.spm"))
    if spm and importlib.util.find_spec("sentencepiece") is None:
        return "transformers reads it only where sentencepiece is installed"
    return None


@torch.no_grad()
def _by_us(
    run: Opened, out: Path, config: dict[str, Any], readings: Sequence[Reading]
) -> list[Scores]:
    weights = open_weights(out)
    found = family_named(config["model_type"]).read(config, weights.keys(), {})
    embed, sentence = run.settings.embed, None
    if run.spec.answers == "vector":
        sentence = _sentence(out)
    if sentence is not None:
        found = sentence.applied(found)
        embed = replace(embed, normalise=sentence.normalise)
    model: Any = build_model(found.model).eval()
    load_weights(model, filled(to_ours(weights, found.pairs, found.ignored), found).weights)
    settings = replace(run.settings, model=found.model, embed=embed)
    again = run.with_model(model, settings)
    said = [read_again(again, reading.text, reading.target) for reading in readings]
    return [reading.scores for reading in said]
