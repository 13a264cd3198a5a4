"""Prove an export by comparing the outputs of `transformers` with those of the run.

Texts are tokenized with the exported tokenizer as well. Images and audio are preprocessed by
`transformers` where possible.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.interop.families import family_named
from headway.interop.folder_files import read_table
from headway.interop.hf.preprocessing import PREPROCESSOR_JSON, with_preprocessing
from headway.interop.hf.sentence_transformers import MODULES, SentenceFolder
from headway.interop.hf.tokenizer import around
from headway.interop.importing import convert_tensors, with_zeros
from headway.interop.proof import Proof, compared
from headway.interop.proof_inputs import (
    Float32Array,
    ProofCase,
    ProofMedia,
    compute_case,
    compute_cases,
    output_name,
    proof_items,
    unit_names,
)
from headway.interop.weights import open_weights
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.models.parts.vision import ImageFront
from headway.nn.layout import Layout
from headway.settings.audio import AudioSeq2SeqSettings
from headway.settings.folder import TOKENIZER
from headway.settings.model import TextSettings, family_of
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.text_items import TextItem
from headway.tokens.vocabtxt import is_smiles

CLASSES = {
    "seq2seq": "AutoModelForSeq2SeqLM",
    "text": "AutoModelForCausalLM",
    "gaps": "AutoModelForMaskedLM",
    "label": "AutoModelForSequenceClassification",
    "labels": "AutoModelForSequenceClassification",
    "number": "AutoModelForSequenceClassification",
    "tags": "AutoModelForTokenClassification",
    "vector": "AutoModel",
}
"""Auto class of `transformers` for each kind of output or model family."""

ModelArguments = dict[str, Any]
"""Keyword arguments of a call of a `transformers` model."""


def prove(run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool = False) -> Proof:
    """Prove an export with `transformers`. If it is not installed, import the folder again and
    compare that model."""
    ours = compute_cases(run, proof_items(run, sentences))
    config, same = read_table(out / "config.json"), 1.0
    notes = _notes(run, config)
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        by, theirs = "headway", _by_us(run, out, config, ours)
        notes.append("transformers is not installed: the folder was imported again instead")
    else:
        by = f"transformers {transformers.__version__}"
        with quiet(transformers), torch.no_grad():
            theirs, said = _by_transformers(transformers, run, out, config, ours)
            notes += said
            if run.spec.is_text:
                same, about = _same_ids(transformers, run, out, sentences)
                notes.append(about)
    theirs = [_standardised(run, scores) for scores in theirs]
    proof = compared("hf", ours, theirs, what=output_name(run), by=by, notes=notes)
    items, units = unit_names(run)
    return replace(proof, equal_outputs=proof.equal_outputs * same, items=items, units=units)


def _standardised(run: LoadedRun, scores: Float32Array) -> Float32Array:
    """Return regression outputs in the standardized units of the run's head. Other outputs are
    unchanged."""
    if not run.spec.is_regression:
        return scores
    own = run.settings.classify
    return (scores - (own.mean or 0.0)) / (own.std or 1.0)


@contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Suppress progress bars and log messages of `transformers` within the context."""
    log = transformers.utils.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()


def _notes(run: LoadedRun, config: dict[str, Any]) -> list[str]:
    """Return notes on numerical differences that the format causes."""
    if not run.spec.is_text:
        return []
    assert isinstance(run.shape, TextSettings)
    said = family_named(config["model_type"]).read(config, _many(run.shape), {})
    here, there = run.shape.norm_eps, said.model.norm_eps
    if here == there:
        return []
    return [f"norms have an epsilon of {here:g} in headway but always {there:g} in this format"]


def _many(shape: TextSettings) -> list[str]:
    return [str(number) for number in range(2 * shape.n_layers + 64)]


def _by_transformers(
    transformers: ModuleType,
    run: LoadedRun,
    out: Path,
    config: dict[str, Any],
    readings: Sequence[ProofCase],
) -> tuple[list[Float32Array], list[str]]:
    name = named = (config.get("architectures") or [""])[0]
    embeds, notes = run.spec.is_embedding, []
    prepare: Callable[[Any], ModelArguments] = _text
    if run.spec.is_text:
        bare = named.endswith("Model") and not named.endswith(("LMHeadModel", "MTModel"))
        name = named if hasattr(transformers, named) and bare == embeds else _auto_class(run)
    else:
        prepare, note = _preparation(transformers, run, out)
        notes.append(note)
    model, loading = getattr(transformers, name).from_pretrained(
        out, output_loading_info=True, dtype=torch.float32, local_files_only=True
    )
    model.eval()
    if "classes" in run.spec.heads:
        model.config.pad_token_id = None  # one text at a time, without padding
    strange = [
        f"{name} found {kind.replace('_', ' ')}: {', '.join(sorted(map(str, loading[kind])))}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if loading.get(kind) and (name == named or not embeds)  # unused heads may be in a file
    ]
    sentence = _sentence(out) if embeds else None
    found = []
    for reading in readings:
        given = {key: torch.as_tensor(value) for key, value in prepare(reading.item).items()}
        if getattr(run.shape, "n_segments", 0) <= 1:
            given.pop("token_type_ids", None)
        if reading.target:
            given["decoder_input_ids"] = torch.tensor([reading.target])
        found.append(_scores(run, model(**given), reading, sentence).float().numpy())
    return found, [*strange, *notes]


def _auto_class(run: LoadedRun) -> str:
    return CLASSES.get(family_of(run.shape)) or CLASSES[run.spec.answers]


def _sentence(out: Path) -> SentenceFolder | None:
    """Return the modules of a sentence-transformers folder, or None if the folder has none."""
    return SentenceFolder(out) if (out / MODULES).is_file() else None


def _text(item: TextItem) -> ModelArguments:
    segments = item.segments or [0] * len(item.ids)
    return {"input_ids": [item.ids], "token_type_ids": [segments]}


def _preparation(
    transformers: Any, run: LoadedRun, out: Path
) -> tuple[Callable[[ProofMedia], ModelArguments], str]:
    """Return a function from pixels or samples to model inputs, and a note on which program
    preprocesses them.

    It is `transformers` where possible, otherwise headway.
    """
    said = read_table(out / PREPROCESSOR_JSON) if (out / PREPROCESSOR_JSON).is_file() else {}
    if isinstance(run.shape, AudioSeq2SeqSettings):
        hear = transformers.WhisperFeatureExtractor.from_pretrained(out, local_files_only=True)
        rate = run.shape.audio.rate

        def audio(item: ProofMedia) -> ModelArguments:
            samples_S = item.astype(np.float32) / 32768.0
            found = hear(samples_S, sampling_rate=rate, return_tensors="np")
            return {"input_features": found["input_features"]}

        return audio, "samples were processed by its feature extractor"
    front = run.model.source_front if run.spec.writes else run.model.front
    assert isinstance(front, ImageFront)
    size = (front.shape.channels, front.shape.height, front.shape.width)
    kind = getattr(transformers, f"{said.get('image_processor_type', '')}Pil", None)
    see = None if kind is None else kind.from_pretrained(out, local_files_only=True)

    def prepared(item: ProofMedia) -> Any:
        return see(item[0], return_tensors="np")["pixel_values"] if see is not None else None

    probe = np.zeros((1, *size), np.uint8)
    if see is None or size[0] != 3 or prepared(probe)[0].shape != size:

        def pixels(item: ProofMedia) -> ModelArguments:
            return {"pixel_values": front.pixels(torch.from_numpy(item))}

        return pixels, "pixels were preprocessed by headway"
    return lambda item: {"pixel_values": prepared(item)}, (
        "pixels were processed by its image processor"
    )


def _scores(
    run: LoadedRun, said: Any, reading: ProofCase, sentence: SentenceFolder | None
) -> Tensor:
    """Return the output of the `transformers` model for one item, as in `ProofCase.scores`."""
    if run.spec.is_embedding and run.spec.is_text:
        return _vector(run, said, len(reading.tokens), sentence)
    if "prediction_logits" in said:
        return said.prediction_logits[0]
    logits = said.logits if "logits" in said else said.pooler_output
    return logits if len(logits.shape) == 2 else logits[0]


def _vector(run: LoadedRun, said: Any, length: int, sentence: SentenceFolder | None) -> Tensor:
    if sentence is None:  # only outputs of BERT's pooler have no such files
        found: Tensor = said.pooler_output
        normalise = run.settings.embed.normalise
    else:
        found = Layout.of([length]).pooled(said.last_hidden_state[0], sentence.pooling)
        normalise = sentence.normalise
    return F.normalize(found, dim=-1) if normalise else found


def _same_ids(
    transformers: ModuleType, run: LoadedRun, out: Path, sentences: Sequence[str]
) -> tuple[float, str]:
    """Return the fraction of sentences for which the exported tokenizer gives the same ids as
    headway, and a note with the result for the report.

    Special tokens are compared, too.
    """
    excuse = _excuse(run, out)
    if excuse is not None:
        return 1.0, f"its tokenizer was not compared: {excuse}"
    before, behind = around(run)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
        theirs = [tokenizer(text)["input_ids"] for text in sentences]
    except Exception as error:  # any kind of error: foreign code reads the user's file
        return 0.0, f"transformers cannot read the tokenizer: {error}"
    mine = [[*before, *ids, *behind] for ids in run.vocab.source.encode_batch(list(sentences))]
    same = sum(list(a) == b for a, b in zip(theirs, mine, strict=True))
    return same / len(mine), f"its tokenizer returns our ids for {same} of {len(mine)} sentences"


def _excuse(run: LoadedRun, out: Path) -> str | None:
    """Return the reason why `transformers` cannot tokenize like headway, or None if it should."""
    if (out / TOKENIZER).is_file():
        return None
    if (out / "vocab.txt").is_file():
        pieces = (out / "vocab.txt").read_text(encoding="utf-8").split("\n")
        if is_smiles({piece: i for i, piece in enumerate(pieces) if piece}):
            return (
                "vocab.txt has pieces of chemical formulas, and transformers has no tokenizer "
                "for these"
            )
    spm = any(out.glob("*.model")) or any(out.glob("*.spm"))
    if spm and importlib.util.find_spec("sentencepiece") is None:
        return "transformers can read it only if sentencepiece is installed"
    return None


def _by_us(
    run: LoadedRun, out: Path, config: dict[str, Any], readings: Sequence[ProofCase]
) -> list[Float32Array]:
    weights = open_weights(out)
    found = family_named(config["model_type"]).read(config, weights.keys(), {})
    if (out / PREPROCESSOR_JSON).is_file():
        found = with_preprocessing(found, read_table(out / PREPROCESSOR_JSON))
    embed, sentence = run.settings.embed, None
    if run.spec.is_embedding:
        sentence = _sentence(out)
    if sentence is not None:
        found = sentence.applied(found)
        embed = replace(embed, normalise=sentence.normalise)
    model: Any = build_model(found.model).eval()
    load_weights(model, with_zeros(convert_tensors(found, weights), found).weights)
    again = run.with_model(model, replace(run.settings, model=found.model, embed=embed))
    return [compute_case(again, reading.item, reading.target).scores for reading in readings]
