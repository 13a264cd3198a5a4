"""Export a run to a folder that `transformers` loads with `from_pretrained`.

An imported run gets its original tensor names, types and values. Other runs are written as the
first architecture that can represent them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headway.decode.logits_processors import SpecialTokens, always_banned
from headway.errors import FolderError, Option, UserError
from headway.interop.convertible import in_answer_units, widened
from headway.interop.families import FAMILIES, Architecture, family_named
from headway.interop.first_token import can_be_read_at_first, read_at_first
from headway.interop.hf import esm as hf_esm
from headway.interop.hf import proof as hf_proof
from headway.interop.hf import vision_encoder_decoder as hf_captioner
from headway.interop.hf.bart import pegasus_tables
from headway.interop.hf.generation import generation_config, whisper_generation
from headway.interop.hf.preprocessing import PREPROCESSOR_JSON, preprocessor_config
from headway.interop.hf.sentence_transformers import give_back_modules, write_modules
from headway.interop.hf.tokenizer import give_back_tokenizer, special_ids, write_tokenizer
from headway.interop.name_pairs import to_theirs
from headway.interop.proof import Proof
from headway.settings.folder import IMPORTED, WEIGHTS
from headway.settings.kept_heads import ALL_HEADS
from headway.settings.model import EncoderSettings, family_of
from headway.storage import replace_text
from headway.tasks.history import named_scores, read_history
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.scores import NEURAL

__all__ = ["prove", "write"]

CANDIDATES = {
    "decoder": ("gpt2", "openai-gpt", "llama", "mistral", "qwen2", "qwen3", "gpt_neox"),
    "encoder": ("bert", "distilbert", "albert", "esm"),
    "seq2seq": ("marian", "pegasus", "bart", "t5"),
    "image-encoder": ("vit", "deit"),
    "image-seq2seq": ("vision-encoder-decoder",),
    "audio-seq2seq": ("whisper",),
}
"""Architectures to try, in this order, for a run that was not imported.

RoBERTa is not listed because BERT can represent the same models, and BERT's positions do not depend
on the id of the padding token.
"""

EXTRA: dict[str, Callable[[Mapping[str, Any]], dict[str, Tensor]]] = {
    "esm": hf_esm.unused,
    "pegasus": pegasus_tables,
    "vision-encoder-decoder": hf_captioner.unused,
}
"""Functions that return additional tensors, which classes of `transformers` expect in a file."""

WAY_OUT = {
    "decoder": "Decoders with rotary positions, LayerNorm and no gate, and those with RMSNorm and "
    "swiglu, can be exported.",
    "encoder": "Encoders with rotary positions, LayerNorm and no gate, and those of a preset or "
    "fine-tuned from an imported model or base-en, can be exported.",
    "seq2seq": "Translation models with sinusoidal positions, LayerNorm and no gate can be "
    "exported.",
    "image-encoder": "Image classifiers with patches that do not overlap, a class token and "
    "learned positions can be exported.",
    "image-seq2seq": "Image captioning models with patches that do not overlap, a class token, "
    "learned positions and unscaled embeddings, such as imported ones, can be exported.",
    "audio-seq2seq": "Transcription models without CTC, with learned positions and windows of a "
    "fixed length (model.audio.positions=learned, model.audio.pad_s=30), can be exported.",
}


def _others() -> str:
    """Return the end of an error message, which recommends other export targets."""
    return (
        f"To export this run unchanged, use {Option('to', 'onnx')} or {Option('to', 'torch')}, "
        "which support every run."
    )


def prove(run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool = False) -> Proof:
    """Compare the exported folder with the run without its n-gram model, which is not exported."""
    proof = hf_proof.prove(without_ngrams(run), out, sentences, int8=int8)
    return replace(proof, notes=[*proof.notes, *_ngram_notes(run)])


def _ngram_notes(run: LoadedRun) -> list[str]:
    """Return a note that the n-gram model was left out, with the validation scores with and without
    it."""
    if not getattr(run.shape, "ngrams", 0):
        return []
    history, score = read_history(run.folder), run.spec.headline
    alone = named_scores(history.last.get("members")).get(NEURAL, {})
    line = "the n-gram part of the model is not exported"
    if score.name in history.kept_scores and score.name in alone:
        line += (
            f": {score.name} on validation {history.kept_scores[score.name]:.2f} with it, "
            f"{alone[score.name]:.2f} without"
        )
    return [line]


def write(run: LoadedRun, out: Path, *, int8: bool = False) -> None:
    """Write `config.json`, `model.safetensors`, the tokenizer and the decoding settings."""
    assert not int8, "refused before"
    if run.shape.kept_heads != ALL_HEADS:
        raise UserError(
            "a model with pruned attention heads cannot be exported to transformers, where all "
            f"layers have the same number of heads. Use {Option('to', 'onnx')} or "
            f"{Option('to', 'torch')}, or export the run before pruning."
        )
    run = without_ngrams(run)
    if run.shape.parts is not None:
        raise UserError(
            f"a model with custom parts ({run.shape.parts}) cannot be exported to transformers, "
            f"which does not have these parts. Use {Option('to', 'onnx')}."
        )
    if _is_from_transformers(run):
        _write_back(run, out)
    else:
        _write_ours(run, out)


def without_ngrams(run: LoadedRun) -> LoadedRun:
    """Return the run without its n-gram model, which `transformers` does not support."""
    if not getattr(run.shape, "ngrams", 0):
        return run
    model: Any = run.model
    assert isinstance(run.shape, EncoderSettings)
    shape = replace(run.shape, ngrams=0)
    return run.with_model(model.neural, replace(run.settings, model=shape))


def _with_first_token(run: LoadedRun) -> LoadedRun:
    """Return a run whose classifier uses the first token and a pooler, if it can be converted.
    Other runs are returned unchanged."""
    if not can_be_read_at_first(run.settings):
        return run
    assert isinstance(run.shape, EncoderSettings)
    model: Any = run.model
    made, shape = read_at_first(model, run.shape)
    return run.with_model(made, replace(run.settings, model=shape))


def _is_from_transformers(run: LoadedRun) -> bool:
    return run.imported is not None and run.imported["model_type"] in FAMILIES


def _write_back(run: LoadedRun, out: Path) -> None:
    """Write an imported run with its original tensor names, types and files."""
    facts = run.imported
    assert facts is not None
    found = family_named(facts["model_type"]).read(
        facts["config"], facts["tensors"], facts["generation"]
    )
    pairs = [pair for pair in found.pairs if pair.theirs not in facts["ignored"]]
    theirs = to_theirs(run.model.state_dict(), pairs, _kept(run.folder))
    save_tensors(out, _in_their_types(theirs, facts["tensors"], run.folder))
    write_json(out / "config.json", facts["config"])
    if facts["generation"]:
        write_json(out / "generation_config.json", facts["generation"])
    if facts.get("preprocessor"):
        write_json(out / PREPROCESSOR_JSON, facts["preprocessor"])
    if run.words is not None:
        give_back_tokenizer(run, out)
    if run.spec.is_embedding and not give_back_modules(run, out):
        write_modules(run.settings, out)


def _in_their_types(
    theirs: Mapping[str, Tensor], kinds: Mapping[str, str], folder: Path
) -> dict[str, Tensor]:
    """Return the tensors of the original file, in its order and with its types."""
    dtypes = {name: getattr(torch, str(kind), None) for name, kind in kinds.items()}
    known = {name for name, dtype in dtypes.items() if isinstance(dtype, torch.dtype)}
    wrong = [name for name in dtypes if name not in theirs or name not in known]
    if wrong:
        raise FolderError(
            f"{folder / IMPORTED} lists tensors that are missing from this run or have an unknown "
            f"type: {', '.join(wrong[:5])}. Import the model again. Or delete the file to export "
            "the model like one that was not imported."
        )
    return {name: theirs[name].to(dtype) for name, dtype in dtypes.items()}


def _kept(folder: Path) -> dict[str, Tensor]:
    path = folder / "ignored.safetensors"
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FolderError(
            f"{path} is damaged ({error}). Import the model again, or delete {IMPORTED} in the "
            "same folder to export the model like one that was not imported."
        ) from error


def _write_ours(run: LoadedRun, out: Path) -> None:
    run = _with_first_token(run)
    config, found = describe_run(run)
    weights = in_answer_units(widened(run.model, found.model), run.settings)
    _check_zeros(weights, found)
    pairs = [pair for pair in found.pairs if not pair.tied]
    theirs = to_theirs(weights, pairs)
    extra = EXTRA[config["model_type"]](config) if config["model_type"] in EXTRA else {}
    save_tensors(out, theirs | extra | _second_bias(config["model_type"], theirs))
    preprocessor = preprocessor_config(run.shape, config["model_type"])
    if preprocessor:
        write_json(out / PREPROCESSOR_JSON, preprocessor)
    if run.words is None:
        write_json(out / "config.json", {**config, "dtype": "float32"})
        return
    ids = special_ids(run)
    write_json(out / "config.json", {**config, **ids, "dtype": "float32"})
    write_tokenizer(run, out)
    if run.spec.writes and run.spec.is_audio:
        write_json(out / "generation_config.json", whisper_generation(run.vocab.target, run.shape))
    if run.spec.writes and not run.spec.is_audio:
        decode, target = run.settings.decode, run.vocab.target
        banned = always_banned(decode, SpecialTokens.of(target))
        facts = generation_config(decode, ids, longest=run.shape.max_len, never=banned)
        write_json(out / "generation_config.json", facts)
    if run.spec.is_embedding:
        write_modules(run.settings, out)


def _second_bias(model_type: str, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the output bias of masked language models under two names.

    If the embeddings are not tied, `transformers` may look for either name.
    """
    heads = {"bert": "cls.predictions", "albert": "predictions"}
    head = heads.get(model_type)
    if head is None or f"{head}.decoder.weight" not in theirs:
        return {}
    names = (f"{head}.bias", f"{head}.decoder.bias")
    bias = next(theirs[name] for name in names if name in theirs)
    return dict.fromkeys(names, bias)


def describe_run(run: LoadedRun) -> tuple[dict[str, Any], Architecture]:
    """Return the `config.json` and the first architecture that can represent a run. Raise an error
    with all reasons if none can."""
    kind = family_of(run.shape)
    if kind not in CANDIDATES:
        raise UserError(
            f"transformers has no architecture for the model family {kind}. Supported families: "
            f"{', '.join(CANDIDATES)}. {_others()}"
        )
    _check_pooling(run)
    _check_shapes(run)
    reasons = []
    for name in CANDIDATES[kind]:
        try:
            return family_named(name).write(run.settings)
        except UserError as error:
            reasons.append(f"  {name}: {error}")
    raise UserError(
        f"transformers has no architecture for this {kind}.\n" + "\n".join(reasons) + "\n"
        f"{WAY_OUT[kind]} {_others()}"
    )


def _check_pooling(run: LoadedRun) -> None:
    shape = run.shape
    wanted = {"encoder": "first", "decoder": "last"}.get(family_of(shape))
    if wanted and "classes" in run.spec.heads and getattr(shape, "pooling", wanted) != wanted:
        raise UserError(
            f"transformers classifies from the {wanted} token, but this run has "
            f"model.pooling={shape.pooling}. Use "  # type: ignore[union-attr]
            f"{Option('to', 'onnx')} or {Option('to', 'torch')}, or train again with "
            f"model.pooling={wanted}."
        )


def _check_shapes(run: LoadedRun) -> None:
    if run.spec.is_tagging and getattr(run.shape, "reads_shapes", False):
        raise UserError(
            "this model needs the shape of each word (capitals, digits), which the tokenizers of "
            f"transformers do not provide. Use {Option('to', 'onnx')}, {Option('to', 'torch')} or "
            f"{Option('to', 'ctranslate2')}. Or train without word shapes: with "
            f"model.n_segments=2 if you start from base-en, or with "
            "model.n_segments=0 from scratch."
        )


def _check_zeros(weights: Mapping[str, Tensor], found: Architecture) -> None:
    """Raise an error if the architecture omits one of the run's tensors that is not zero."""
    written = {weights[pair.ours].data_ptr() for pair in found.pairs}  # tied ones count once
    lost = [n for n, tensor in weights.items() if tensor.data_ptr() not in written and tensor.any()]
    if lost:
        raise UserError(
            f"the transformers class does not have these weights: {', '.join(lost)}. Train the "
            "head without them (bias of a classifier, transitions of a tagger), or use "
            f"{Option('to', 'onnx')}."
        )


def save_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, folder / WEIGHTS, {"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # the library makes it readable only for the owner


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
