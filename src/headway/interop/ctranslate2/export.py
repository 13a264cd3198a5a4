"""Export to CTranslate2 (`headway export --to ctranslate2`): write the folder, and prove that its
outputs equal those of the run.

Models are converted to CTranslate2 specifications with copies of the weights. Before that,
`exportable.py` raises an error for unsupported models.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.errors import DataError, Option, needs
from headway.interop.ctranslate2.engine import HEADS, Ctranslate2Engine
from headway.interop.ctranslate2.exportable import ACTIVATIONS, check_exportable, positions_of
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
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.output_heads import LMHead
from headway.models.parts.text import TextFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Attention
from headway.nn.block import Block
from headway.nn.feedforward import FeedForward
from headway.nn.norms import LayerNorm, RMSNorm
from headway.nn.positions import Learned, Relative, Sinusoidal, sinusoids
from headway.nn.stack import Stack
from headway.settings.folder import CONFIG
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    Seq2SeqSettings,
    StackSpec,
    TextSettings,
)
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.tokenizer import Tokenizer

SHOWN = 3
"""Maximum number of differing translations that the report of a proof shows."""


def write(run: LoadedRun, out: Path, *, int8: bool) -> None:
    """Write the exported folder, which both `--engine ctranslate2` and CTranslate2 itself can
    load."""
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
    """Return the tokens of a tokenizer in the order of their ids, spelled as in its file.

    Duplicate tokens raise an error, because CTranslate2 identifies tokens by their text.
    """
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
    """Return the proof of an export, which compares the run with the exported model in `--engine
    ctranslate2`."""
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
    """Return lines that report how many translations are equal with the run's decoding settings,
    followed by some that differ."""
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


ROPE_SCALING = {"linear": "Linear", "llama3": "Llama3"}
"""CTranslate2's names for the RoPE scaling methods. `ntk` is missing because it is exported as an
equivalent larger base."""


def spec_of(settings: ModelSettings, model: nn.Module) -> Any:
    """Return a CTranslate2 specification with all weights.

    The caller adds vocabularies and special tokens.
    """
    specs = needs("ctranslate2", "ctranslate2").specs
    if isinstance(settings, Seq2SeqSettings):
        assert isinstance(model, Seq2Seq)
        spec = specs.TransformerSpec(
            _encoder(settings, model.source_front, model.encoder),
            _decoder(settings, model.target_front, model.decoder, model.head.linear, cross=True),
        )
        if settings.scale_head:
            spec.decoder.scale_outputs = float(settings.d_model**-0.5)
    elif isinstance(settings, DecoderSettings):
        assert isinstance(model, Decoder)
        words = model.lm_head
        assert isinstance(words, LMHead)
        spec = specs.TransformerDecoderModelSpec(
            _decoder(settings, model.front, model.stack, words.linear, cross=False)
        )
    else:
        assert isinstance(model, Encoder)
        assert isinstance(settings, EncoderSettings)
        spec = specs.TransformerEncoderModelSpec(_encoder(settings, model.front, model.stack))
    spec.config.layer_norm_epsilon = settings.norm_eps
    return spec


def _common(settings: TextSettings, side: StackSpec) -> dict[str, Any]:
    """Return the arguments that are common to CTranslate2's specifications of encoders and
    decoders."""
    specs = needs("ctranslate2", "ctranslate2").specs
    told: dict[str, Any] = {
        "pre_norm": settings.block_layout != "post",
        "activation": specs.Activation[ACTIVATIONS[side.activation]],
        "ffn_glu": "glu" in side.activation,
        "rms_norm": settings.norm == "rms",
        "layernorm_embedding": settings.embedding_norm,
        "relative_attention_bias": settings.positions == "relative",
        "qk_norm": settings.qk_norm,
    }
    if side.kv_heads != side.n_heads:
        told["num_heads_kv"] = side.kv_heads
    if side.head_width * side.n_heads != settings.d_model:
        told["head_dim"] = side.head_width
    if settings.positions == "rotary":
        rope, width = settings.rope, side.head_width
        stretch = rope.factor ** (width / (width - 2)) if rope.scaling == "ntk" else 1.0
        told |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": rope.base * stretch}
        if rope.scaling in ROPE_SCALING:
            told["rotary_scaling_type"] = specs.RotaryScalingType[ROPE_SCALING[rope.scaling]]
            told["rotary_scaling_factor"] = rope.factor
    return told


def _encoder(settings: TextSettings, front: nn.Module, stack: nn.Module) -> Any:
    specs = needs("ctranslate2", "ctranslate2").specs
    assert isinstance(front, TextFront)
    assert isinstance(stack, Stack)
    n_tables = 1 if front.segments is None else 2
    side = next(iter(settings.stacks.values()))
    spec = specs.TransformerEncoderSpec(
        side.n_layers,
        side.n_heads,
        num_source_embeddings=n_tables,
        embeddings_merge=specs.EmbeddingsMerge.ADD,
        **_common(settings, side),
    )
    # With segment embeddings, CTranslate2 scales only the token embeddings, so the scale goes into
    # the weights.
    scales = front.segments is None
    tokens_VD = front.tokens.weight * (1.0 if scales else front.scale)
    spec.embeddings[0].weight = _array(tokens_VD)
    if front.segments is not None:
        spec.embeddings[1].weight = _array(front.segments.weight)
    spec.scale_embeddings = front.scale if scales and front.scale != 1.0 else False
    _fill(spec, settings, front, stack)
    return spec


def _decoder(
    settings: TextSettings, front: nn.Module, stack: nn.Module, words: nn.Linear, *, cross: bool
) -> Any:
    specs = needs("ctranslate2", "ctranslate2").specs
    assert isinstance(front, TextFront)
    assert isinstance(stack, Stack)
    side = [*settings.stacks.values()][-1]
    spec = specs.TransformerDecoderSpec(
        side.n_layers,
        side.n_heads,
        with_encoder_attention=cross,
        # The alignment layer is the same as in `decode.steps.alignment_layer`. Alignments are the
        # mean over its heads.
        alignment_layer=max(0, side.n_layers - 2),
        alignment_heads=side.n_heads,
        alibi=settings.positions == "alibi",
        parallel_residual=settings.block_layout == "parallel",
        shared_layer_norm=settings.block_layout == "parallel",
        **_common(settings, side),
    )
    spec.embeddings.weight = _array(front.tokens.weight)
    spec.scale_embeddings = front.scale if front.scale != 1.0 else False
    _linear(spec.projection, words.weight, words.bias)
    _fill(spec, settings, front, stack)
    return spec


def _fill(spec: Any, settings: TextSettings, front: TextFront, stack: Stack) -> None:
    table_PD = _positions(settings, front.positions)
    if table_PD is not None and hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _array(table_PD)
    if front.norm is not None:
        _norm(spec.layernorm_embedding, front.norm)
    if stack.final_norm is not None:
        _norm(spec.layer_norm, stack.final_norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block)
        _layer(layer, settings, block, stack.bias)


def _layer(layer: Any, settings: TextSettings, block: Block, bias: nn.Module | None) -> None:
    _attention(layer.self_attention, settings, block.attention)
    if isinstance(bias, Relative):
        layer.self_attention.relative_attention_bias = _array(bias.table.weight)
        layer.self_attention.relative_attention_max_distance = np.int32(bias.max_distance)
    _feed_forward(layer.ffn, block.feed_forward)
    if settings.block_layout == "parallel":
        _norm(layer.shared_layer_norm, block.norm_attention)
        return
    _norm(layer.self_attention.layer_norm, block.norm_attention)
    assert block.norm_feed_forward is not None
    _norm(layer.ffn.layer_norm, block.norm_feed_forward)
    if block.cross is not None and block.norm_cross is not None:
        _attention(layer.attention, settings, block.cross)
        _norm(layer.attention.layer_norm, block.norm_cross)


def _attention(spec: Any, settings: TextSettings, attention: Attention) -> None:
    """Copy the weights of an attention layer into the specification.

    Self-attention has one joint matrix for q, k and v, as in headway. Cross-attention has one
    matrix for q, and one for k and v.
    """
    weight_ED, bias_E = attention.to_qkv.weight, attention._qkv_bias()
    parts = [slice(None)]
    if len(spec.linear) == 3:
        n_q = attention.sizes[0]
        parts = [slice(n_q), slice(n_q, None)]
    for linear, rows in zip(spec.linear, parts, strict=False):
        _linear(linear, weight_ED[rows], None if bias_E is None else bias_E[rows])
    _linear(spec.linear[-1], attention.to_out.weight, attention.to_out.bias)
    if not settings.scale_attention:
        spec.queries_scale = 1.0
    rope = settings.rope
    if hasattr(spec, "rotary_base") and rope.scaling == "llama3":
        spec.rotary_low_freq_factor, spec.rotary_high_freq_factor = np.float32(1), np.float32(4)
        # The runtime reads these attributes, but the specification does not declare them.
        vars(spec)["rotary_scaling_factor"] = np.float32(rope.factor)
        vars(spec)["original_max_position_embeddings"] = np.int32(rope.trained_len)
    if attention.norm_q is not None and attention.norm_k is not None:
        _norm(spec.q_norm, attention.norm_q)
        _norm(spec.k_norm, attention.norm_k)


def _feed_forward(spec: Any, ours: FeedForward) -> None:
    weight, bias = ours.to_hidden.weight, ours.to_hidden.bias
    _linear(spec.linear_1, ours.to_out.weight, ours.to_out.bias)
    if not ours.is_gated:
        _linear(spec.linear_0, weight, bias)
        return
    gate, value = weight.chunk(2)
    gate_bias, value_bias = (None, None) if bias is None else bias.chunk(2)
    _linear(spec.linear_0, gate, gate_bias)
    _linear(spec.linear_0_noact, value, value_bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, LayerNorm | RMSNorm)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, LayerNorm):
        spec.beta = _array(norm.bias)


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _positions(settings: TextSettings, positions: nn.Module | None) -> Tensor | None:
    """Return the position embeddings (positions, width), or None if the positions need no table.

    A model without positions gets zeros, because CTranslate2 would add sinusoids.
    """
    if isinstance(positions, Learned):
        return positions.table.weight
    rows = positions_of(settings)
    if isinstance(positions, Sinusoidal):
        return sinusoids(rows or 0, settings.d_model, halves=positions.halves)
    return None if rows is None else torch.zeros(rows, settings.d_model)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """Return a float32 copy, because the conversion of int8 weights rescales the array in place."""
    return np.array(tensor.detach().float().cpu().numpy(), dtype=np.float32, copy=True)
