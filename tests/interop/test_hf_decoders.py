"""Language models of `transformers`, imported: the same scores, classes, tags and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.errors import UserError
from headway.settings.decode import DecodeSettings

from ..facts import missing
from .theirs import (
    GPT2,
    LENGTHS,
    LLAMA,
    NEOX,
    architecture,
    check,
    flat,
    ours,
    padded,
    real,
    reference,
    saved,
    tokens,
)

LINEAR = {"rope_theta": 500.0, "rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 15}
ODD = {"hidden_size": 45, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 6}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2, odd sizes": ("GPT2LMHeadModel", {**GPT2, "n_embd": 33, "n_head": 3, "n_inner": 41}),
    "gpt2, untied": ("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False, "n_layer": 1}),
    "gpt2, relu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "relu", "n_head": 1}),
    "gpt2, erf gelu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "gelu"}),
    "gpt2, another eps": ("GPT2LMHeadModel", {**GPT2, "layer_norm_epsilon": 0.1}),
    "gpt2, unscaled": ("GPT2LMHeadModel", {**GPT2, "scale_attn_weights": False}),
    "gpt2, alone": ("GPT2Model", GPT2),
    "gpt": ("OpenAIGPTLMHeadModel", GPT2),
    "gpt, odd sizes": ("OpenAIGPTLMHeadModel", {**GPT2, "n_embd": 35, "n_head": 5, "n_layer": 3}),
    "gpt, untied": ("OpenAIGPTLMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "gpt, relu": ("OpenAIGPTLMHeadModel", {**GPT2, "afn": "relu"}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama, tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "llama, one key head": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 1}),
    "llama, as many key heads": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4}),
    "llama, odd sizes": ("LlamaForCausalLM", {**LLAMA, **ODD, "intermediate_size": 51}),
    "llama, biases": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "llama, geglu": ("LlamaForCausalLM", {**LLAMA, "hidden_act": "gelu", "rms_norm_eps": 0.1}),
    "llama, tanh geglu": ("LlamaForCausalLM", {**LLAMA, "hidden_act": "gelu_pytorch_tanh"}),
    "llama, linear scaling": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LINEAR}),
    "llama, llama3 scaling": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral, a window": ("MistralForCausalLM", {**LLAMA, "sliding_window": 3}),
    "mistral, no window": ("MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "qwen2, biases on q, k and v": ("Qwen2ForCausalLM", LLAMA),
    "qwen3, norms on q and k": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 10}),
    "neox": ("GPTNeoXForCausalLM", NEOX),
    "neox, tied, no biases, tanh gelu": (
        "GPTNeoXForCausalLM",
        {**NEOX, "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "gelu_new"},
    ),
    "neox, odd sizes": (
        "GPTNeoXForCausalLM",
        {**NEOX, "hidden_size": 42, "num_attention_heads": 3, "rotary_emb_base": 500},
    ),
}


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_the_scores_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = reference(*DECODERS[name])
    mine = ours(saved(theirs, tmp_path))
    sequences = tokens(LENGTHS)
    batch = padded(sequences)
    if name == "gpt2, alone":
        expected = theirs(**batch).last_hidden_state @ theirs.wte.weight.T
    else:
        expected = theirs(**batch).logits
    check(mine.scores(mine(*flat(sequences))), real(expected, batch))


LABELS = {"num_labels": 3, "id2label": {0: "no", 1: "yes", 2: "maybe"}, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("cls", "sizes"), [("GPT2", GPT2), ("Llama", LLAMA), ("GPTNeoX", NEOX), ("Mistral", LLAMA)]
)
@torch.no_grad()
def test_classes_and_tags_are_those_of_the_reference(
    cls: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    sequences = tokens(LENGTHS)
    batch, (tokens_N, layout) = padded(sequences), flat(sequences)
    theirs = reference(f"{cls}ForSequenceClassification", {**sizes, **LABELS})
    mine = ours(saved(theirs, tmp_path / "classes"))
    assert mine.heads["classes"].linear.bias.abs().max() == 0  # they have none
    check(mine.classes(mine(tokens_N, layout), layout), theirs(**batch).logits)
    theirs = reference(f"{cls}ForTokenClassification", {**sizes, **LABELS})
    mine = ours(saved(theirs, tmp_path / "tags"))
    check(mine.tags(mine(tokens_N, layout)), real(theirs(**batch).logits, batch))
    assert architecture(tmp_path / "tags").labels == ("no", "yes", "maybe")


@torch.no_grad()
def test_published_gpt2_files_have_no_prefix_and_carry_masks(tmp_path: Path) -> None:
    theirs = reference("GPT2LMHeadModel", GPT2)
    saved(theirs, tmp_path)
    tensors = {
        name.removeprefix("transformer."): tensor.clone()
        for name, tensor in theirs.state_dict().items()
        if name != "lm_head.weight"
    }
    for n in range(2):
        tensors[f"h.{n}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        tensors[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    mine = ours(tmp_path)
    sequences = tokens(LENGTHS)
    batch = padded(sequences)
    check(mine.scores(mine(*flat(sequences))), real(theirs(**batch).logits, batch))


def written(model: Any, prompts: list[list[int]], settings: DecodeSettings) -> list[list[int]]:
    """By us. No token is special but the end."""
    search = Searcher([model], settings, SpecialTokens(EOS, EOS, EOS), context=32)
    return [found.tokens for [found] in search(prompts)]


def generated(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """By them, a prompt at a time."""
    found = []
    for prompt in prompts:
        ids_1T = torch.tensor([prompt])
        out = model.generate(
            ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, eos_token_id=EOS,
            bos_token_id=EOS, pad_token_id=EOS, **options,
        )[0].tolist()[len(prompt):]  # fmt: skip
        found.append(out[: out.index(EOS)] if EOS in out else out)
    return found


EOS = 7
WRITERS = {
    "gpt2": ("GPT2LMHeadModel", {**GPT2, "n_positions": 32}),
    "gpt": ("OpenAIGPTLMHeadModel", {**GPT2, "n_positions": 32}),
    "llama, llama3 scaling": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral, a window": ("MistralForCausalLM", {**LLAMA, "sliding_window": 3}),
    "neox": ("GPTNeoXForCausalLM", NEOX),
}


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_greedy_and_beam_search_write_what_generate_writes(name: str, tmp_path: Path) -> None:
    """A beam of forced length: there both keep the k best of all continuations. Where hypotheses
    end by themselves `generate` counts only those among the first k, and we do not."""
    cls, sizes = WRITERS[name]
    # A tied model repeats one token for ever: what it reads is nearest to itself.
    theirs = reference(cls, {**sizes, "tie_word_embeddings": False})
    mine = ours(saved(theirs, tmp_path))
    prompts = [sequence.tolist() for sequence in tokens([4, 1, 7, 2, 5], seed=3)]
    greedy = written(mine, prompts, DecodeSettings(beam=1, max_len=14, unknown="keep"))
    assert greedy == generated(theirs, prompts, num_beams=1, max_new_tokens=14)
    assert len({token for text in greedy for token in text}) > 3
    for beam in (2, 5):
        settings = DecodeSettings(beam=beam, max_len=9, min_len=9, unknown="keep")
        expected = generated(theirs, prompts, num_beams=beam, max_new_tokens=9, min_new_tokens=9)
        assert written(mine, prompts, settings) == expected


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(reference("LlamaForCausalLM", LLAMA), tmp_path_factory.mktemp("llama"))


class TestRotaryPositions:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ({"rope_theta": 500.0}, {"rope_type": "default", "rope_theta": 500.0}),
            (
                {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
                LINEAR,
            ),
            (
                {"rope_theta": 500.0, "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 15}},
                LLAMA3,
            ),
            ({"rope_scaling": None}, {"rope_type": "default", "rope_theta": 10_000.0}),
        ],
    )  # fmt: skip
    def test_both_spellings_mean_the_same(
        self, llama: Path, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        before = architecture(llama, rope_parameters=None, **old)
        assert before.model == architecture(llama, rope_parameters=new).model

    @pytest.mark.parametrize(
        "rope",
        [
            {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "yarn", "factor": 2.0},
            {**LLAMA3, "low_freq_factor": 2.0},
            {**LLAMA3, "high_freq_factor": 3.0},
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            {"rope_type": "linear", "factor": 0.5},
            {"rope_type": "linear"},
        ],
    )
    def test_others_are_an_error(self, llama: Path, rope: dict[str, Any]) -> None:
        with pytest.raises(UserError, match="rope_parameters"):
            architecture(llama, rope_parameters=rope)


REFUSED = [
    ("GPT2LMHeadModel", GPT2, {"scale_attn_by_inverse_layer_idx": True}),
    ("GPT2LMHeadModel", GPT2, {"reorder_and_upcast_attn": True}),
    ("GPT2LMHeadModel", GPT2, {"add_cross_attention": True}),
    ("GPT2LMHeadModel", GPT2, {"activation_function": "mish"}),
    ("GPT2LMHeadModel", GPT2, {"architectures": ["GPT2ForQuestionAnswering"]}),
    ("GPT2LMHeadModel", GPT2, {"n_layer": 10_000_000}),
    ("GPT2LMHeadModel", GPT2, {"n_embd": "32"}),
    ("GPT2ForSequenceClassification", {**GPT2, **LABELS}, {"problem_type": "regression"}),
    ("LlamaForCausalLM", LLAMA, {"hidden_act": "relu"}),
    ("LlamaForCausalLM", LLAMA, {"num_key_value_heads": 3}),
    ("Qwen2ForCausalLM", LLAMA, {"use_sliding_window": True}),
    ("GPTNeoXForCausalLM", NEOX, {"use_parallel_residual": True}),
]


@pytest.mark.parametrize(("cls", "sizes", "change"), REFUSED)
def test_unsupported_keys_are_an_error_with_their_name(
    cls: str, sizes: dict[str, Any], change: dict[str, Any], tmp_path: Path
) -> None:
    saved(reference(cls, sizes), tmp_path)
    architecture(tmp_path)
    [key] = change
    with pytest.raises(UserError, match=key.replace("num_key_value_heads", "n_kv_heads")):
        architecture(tmp_path, **change)


def test_partial_rotary_positions_are_an_error(tmp_path: Path) -> None:
    """As in Pythia, whose other half has no positions."""
    saved(reference("GPTNeoXForCausalLM", {**NEOX, "rotary_pct": 0.25}), tmp_path)
    with pytest.raises(UserError, match=r"\bpartial_rotary_factor\b.*\b0\.25\b"):
        architecture(tmp_path)
    with pytest.raises(UserError, match=r"\brotary_pct\b.*\b0\.25\b"):
        architecture(tmp_path, rope_parameters=None, rotary_pct=0.25)


def test_how_to_decode_comes_from_the_generation_config(tmp_path: Path) -> None:
    theirs = reference("GPT2LMHeadModel", GPT2)
    theirs.generation_config.update(
        do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=40, min_new_tokens=3
    )
    found = architecture(saved(theirs, tmp_path))
    assert found.decode == {
        "beam": 1, "sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 50, "max_len": 40,
        "min_len": 3, "unknown": "keep",
    }  # fmt: skip
    [note] = architecture(tmp_path, suppress_tokens=[3]).notes
    assert not missing(note, "suppress_tokens", "[3]")
