"""Small random models of `transformers`, saved as they save them, and the same models as ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from headway.interop.families import Architecture, family_named
from headway.interop.importing import check_shapes, with_zeros
from headway.interop.name_pairs import to_ours
from headway.interop.weights import open_weights
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.nn.layout import Layout

LENGTHS = [5, 9, 1, 7]
SOURCE_LENGTHS = [6, 2, 8, 3]
SIZE = 61

GPT2 = {"vocab_size": SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 1}
LLAMA = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 32}
NEOX = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
NEOX |= {"intermediate_size": 40, "max_position_embeddings": 32, "use_parallel_residual": False}
NEOX |= {"rotary_pct": 1.0, "bos_token_id": 1, "eos_token_id": 1}
MARIAN = {"vocab_size": SIZE, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
MARIAN |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
MARIAN |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 32}
MARIAN |= {"activation_function": "swish", "pad_token_id": 0, "eos_token_id": 1}
MARIAN |= {"decoder_start_token_id": 0, "forced_eos_token_id": None}
T5 = {"vocab_size": SIZE, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 40}
T5 |= {"decoder_start_token_id": 0}


def reference(name: str, sizes: dict[str, Any], seed: int = 0) -> Any:
    """A random model whose every weight matters: their own start has tiny weights, zero biases."""
    cls = getattr(transformers, name)
    torch.manual_seed(seed + len(str(sizes)))
    return shaken(cls(cls.config_class(**sizes)).eval())


def shaken(model: Any) -> Any:
    """The model with weights large enough that everything matters."""
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if weight.ndim > 1:
                table = isinstance(model.get_submodule(part.rpartition(".")[0]), nn.Embedding)
                weight.normal_(0.0, 0.5 if table else 1.2 * weight.shape[1] ** -0.5)
                if part.endswith("Attention.q.weight"):  # T5 does not divide its scores by √K
                    weight.mul_(model.config.d_kv**-0.5)
            else:
                weight.normal_(float(part.endswith("weight")), 0.3)
        for part, buffer in model.named_buffers():
            if part == "final_logits_bias":
                buffer.normal_(0.0, 0.3)
        for part in model.modules():
            if "SinusoidalPositionalEmbedding" in type(part).__name__:
                part.weight.copy_(part.create_weight())
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def architecture(folder: Path, **changes: Any) -> Architecture:
    """What the folder says, with other values of its configuration (None: without the key)."""
    config = config_of(folder) | changes
    config = {key: value for key, value in config.items() if value is not None}
    generation: dict[str, Any] = {}
    if (folder / "generation_config.json").is_file():
        generation = json.loads((folder / "generation_config.json").read_text())
    names = open_weights(folder).keys()
    return family_named(config["model_type"]).read(config, names, generation)


def ours(folder: Path, **changes: Any) -> Any:
    """Our model with the weights of a folder: all of them, and none of ours left out."""
    found, weights = architecture(folder, **changes), open_weights(folder)
    check_shapes(found, weights)
    model = build_model(found.model)
    load_weights(model, with_zeros(to_ours(weights, found.pairs, found.ignored), found).weights)
    return model.eval()


def tokens(lengths: list[int], size: int = SIZE, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(2, size, (length,), generator=draw) for length in lengths]


def padded(sequences: list[Tensor]) -> dict[str, Tensor]:
    real = [torch.ones_like(sequence) for sequence in sequences]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(sequences, batch_first=True),
        "attention_mask": nn.utils.rnn.pad_sequence(real, batch_first=True),
    }


def flat(sequences: list[Tensor]) -> tuple[Tensor, Layout]:
    return torch.cat(sequences), Layout.of([len(sequence) for sequence in sequences])


def check(ours_NV: Tensor, theirs_NV: Tensor, tolerance: float = 2e-5) -> None:
    assert ours_NV.shape == theirs_NV.shape
    assert theirs_NV.std() > 0.3, "the scores are too alike to compare"
    largest = (ours_NV - theirs_NV).abs().max().item()
    assert largest <= tolerance, f"the scores differ by {largest:.1e}"


def real(theirs_BTV: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return theirs_BTV[batch["attention_mask"].bool()]
