"""Our families with converted weights give the scores of Hugging Face's models.

Each reference is small and random, with every weight large enough to matter. It runs padded with a
mask; ours runs flat. Where both sides compute the same way the scores agree in fp64 to 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.positions import Rotary
from headway.settings.model import ModelSettings
from headway.settings.presets import preset
from tests.interop.theirs import shaken

from .convert import converted, settings_of

LENGTHS = [5, 9, 1, 7]
SOURCE_LENGTHS = [6, 2, 8, 3]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}

GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 |= {"bos_token_id": None, "eos_token_id": None}
BERT = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"intermediate_size": 40, "max_position_embeddings": 16}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTILBERT = {"vocab_size": 61, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
DISTILBERT |= {"max_position_embeddings": 16, "dropout": 0.0, "attention_dropout": 0.0}
MARIAN = {"vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
MARIAN |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
MARIAN |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 16}
MARIAN |= {"dropout": 0.0, "activation_function": "swish", "scale_embedding": True}
MARIAN |= {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
T5 = {"vocab_size": 61, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 40}
T5 |= {"dropout_rate": 0.0, "feed_forward_proj": "relu"}
LLAMA = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 16}
LLAMA |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ROPE = {"rope_theta": 10_000.0, "rope_type": "default"}
LINEAR = {"rope_theta": 10_000.0, "rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 15}
BLOOM = {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}
BLOOM |= {"bos_token_id": None, "eos_token_id": None}
FALCON = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON |= {"parallel_attn": True, "new_decoder_architecture": False, "alibi": False}
FALCON |= {"bos_token_id": None, "eos_token_id": None, "ffn_hidden_size": 40}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHead", GPT2),
    "gpt2, odd sizes": ("GPT2LMHead", {**GPT2, "n_embd": 33, "n_head": 3, "n_inner": 41}),
    "gpt2, untied": ("GPT2LMHead", {**GPT2, "tie_word_embeddings": False, "n_layer": 1}),
    "gpt2, relu": ("GPT2LMHead", {**GPT2, "activation_function": "relu", "n_head": 1}),
    "gpt2, another eps": ("GPT2LMHead", {**GPT2, "layer_norm_epsilon": 0.1}),
    "gpt": ("OpenAIGPTLMHead", GPT2),
    "gpt, odd sizes": ("OpenAIGPTLMHead", {**GPT2, "n_embd": 35, "n_head": 5, "n_layer": 3}),
    "gpt, untied": ("OpenAIGPTLMHead", {**GPT2, "tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": ROPE}),
    "llama, tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "llama, one key head": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 1}),
    "llama, as many key heads": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4}),
    "llama, odd sizes": (
        "LlamaForCausalLM",
        {**LLAMA, "hidden_size": 45, "num_attention_heads": 9, "num_key_value_heads": 3}
        | {"head_dim": 6, "intermediate_size": 51},
    ),
    "llama, biases": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "llama, geglu": ("LlamaForCausalLM", {**LLAMA, "hidden_act": "gelu", "rms_norm_eps": 0.1}),
    "llama, linear scaling": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LINEAR}),
    "llama, llama3 scaling": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral, a window": ("MistralForCausalLM", {**LLAMA, "sliding_window": 3}),
    "qwen2, biases on q, k and v": ("Qwen2ForCausalLM", LLAMA),
    "qwen3, norms on q and k": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 10}),
    "bloom, alibi": ("BloomForCausalLM", BLOOM),
    "bloom, six heads": ("BloomForCausalLM", {**BLOOM, "hidden_size": 36, "n_head": 6}),
    "falcon, side by side": ("FalconForCausalLM", {**FALCON, "bias": False}),
    "falcon, biases": ("FalconForCausalLM", {**FALCON, "bias": True}),
}

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "bert, odd sizes": (
        "BertForMaskedLM",
        {**BERT, "hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 41},
    ),
    "bert, three segments": ("BertForMaskedLM", {**BERT, "type_vocab_size": 3}),
    "bert, untied": ("BertForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "bert, tanh gelu": ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new"}),
    "bert, another eps": ("BertForMaskedLM", {**BERT, "layer_norm_eps": 0.1}),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "distilbert, odd sizes": (
        "DistilBertForMaskedLM",
        {**DISTILBERT, "dim": 35, "n_heads": 5, "n_layers": 3, "activation": "relu"},
    ),
    "distilbert, untied": ("DistilBertForMaskedLM", {**DISTILBERT, "tie_word_embeddings": False}),
}

PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", MARIAN),
    "marian, unscaled gelu": (
        "MarianMTModel",
        {**MARIAN, "scale_embedding": False, "activation_function": "gelu"},
    ),
    "marian, one decoder layer, odd heads": (
        "MarianMTModel",
        {**MARIAN, "d_model": 42, "encoder_layers": 3, "decoder_layers": 1}
        | {"encoder_attention_heads": 3, "decoder_attention_heads": 3},
    ),
    "marian, two vocabularies": (
        "MarianMTModel",
        {**MARIAN, "decoder_vocab_size": 53, "share_encoder_decoder_embeddings": False},
    ),
    "marian, nothing tied": (
        "MarianMTModel",
        {**MARIAN, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
        | {"scale_embedding": False},
    ),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5, few buckets": (
        "T5ForConditionalGeneration",
        {**T5, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
        | {"d_kv": 6, "num_decoder_layers": 1, "tie_word_embeddings": False},
    ),
}


def reference(name: str, sizes: dict[str, Any], attention: str = "eager") -> Any:
    """A random model whose every weight matters: their own start has tiny weights, zero biases."""
    cls = getattr(transformers, name if name.endswith(("LM", "Model", "tion")) else f"{name}Model")
    config = cls.config_class(**sizes)
    config.architectures = [cls.__name__]
    torch.manual_seed(len(str(sizes)))
    model = cls._from_config(config, attn_implementation=attention).eval()
    shaken(model)
    with torch.no_grad():
        for part in model.modules():
            if type(part).__name__ == "BertLMPredictionHead":
                part.bias.copy_(part.decoder.bias)  # where it is not tied it is not used
    return model


def tokens(lengths: list[int], vocab_size: int, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(2, vocab_size, (length,), generator=random) for length in lengths]


def padded(sequences: list[Tensor], device: torch.device) -> dict[str, Tensor]:
    ids_BT = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=3)
    real_BT = nn.utils.rnn.pad_sequence([torch.ones_like(s) for s in sequences], batch_first=True)
    return {"input_ids": ids_BT.to(device), "attention_mask": real_BT.to(device)}


def flat(sequences: list[Tensor], device: torch.device) -> tuple[Tensor, Layout]:
    return torch.cat(sequences).to(device), Layout.of([len(s) for s in sequences], device)


def check(ours_NV: Tensor, theirs_BTV: Tensor, real_BT: Tensor, dtype: torch.dtype) -> None:
    theirs_NV = theirs_BTV[real_BT.bool()]
    assert ours_NV.shape == theirs_NV.shape
    assert theirs_NV.std() > 0.3, "the scores are too alike to compare"
    largest = (ours_NV - theirs_NV).abs().max().item()
    assert largest <= TOLERANCE[dtype], f"the scores differ by {largest:.1e}"


def in_fp64(theirs: Any, ours: nn.Module) -> None:
    """Replace what computes in fp32 whatever it is given: their rotary table and their RMS norm.

    That ours agree with those is what the comparison in fp32 shows.
    """
    theirs.double()
    rotary = next((part for part in ours.modules() if isinstance(part, Rotary)), None)
    for name, part in list(theirs.named_modules()):
        if type(part).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(part.weight.shape, part.variance_epsilon, dtype=torch.float64)
            norm.weight = part.weight
            theirs.set_submodule(name, norm)
        if name.endswith("rotary_emb") and rotary is not None:
            theirs.set_submodule(name, RotaryTable(rotary))


class RotaryTable(nn.Module):
    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos_BTI, sin_BTI = self.rotary.cos_PI[position_ids], self.rotary.sin_PI[position_ids]
        return torch.cat([cos_BTI, cos_BTI], -1).to(x), torch.cat([sin_BTI, sin_BTI], -1).to(x)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_a_decoder_gives_the_scores_of_its_reference(name: str, device: torch.device) -> None:
    theirs = reference(*DECODERS[name]).to(device)
    ours = converted(theirs).to(device)
    sequences = tokens(LENGTHS, theirs.config.vocab_size)
    batch = padded(sequences, device)
    scores_NV = ours.scores(ours(*flat(sequences, device)))
    check(scores_NV, theirs(**batch).logits, batch["attention_mask"], torch.float32)


@pytest.mark.parametrize("name", [name for name in DECODERS if "bloom" not in name])
@torch.no_grad()
def test_in_fp64_a_decoder_gives_the_scores_of_its_reference_to_twelve_digits(
    name: str, device: torch.device
) -> None:
    """Not BLOOM: its gelu has a constant of eight digits."""
    # Their written-out attention has its softmax in fp32.
    attention = "eager" if name.startswith("gpt,") or name == "gpt" else "sdpa"
    theirs = reference(*DECODERS[name], attention).to(device)
    ours = converted(theirs).to(device).double()
    in_fp64(theirs, ours)
    sequences = tokens(LENGTHS, theirs.config.vocab_size)
    batch = padded(sequences, device)
    scores_NV = ours.scores(ours(*flat(sequences, device)))
    check(scores_NV, theirs(**batch).logits, batch["attention_mask"], torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_gives_the_masked_word_scores_of_its_reference(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    theirs = reference(*ENCODERS[name]).to(device, dtype)
    ours = converted(theirs).to(device, dtype)
    sequences = tokens(LENGTHS, theirs.config.vocab_size)
    batch, inputs = padded(sequences, device), flat(sequences, device)
    if theirs.config.model_type == "bert":
        segments_N = torch.arange(len(inputs[0]), device=device) % theirs.config.type_vocab_size
        segments_BT = torch.zeros_like(batch["input_ids"])
        segments_BT[batch["attention_mask"].bool()] = segments_N
        inputs, batch = (*inputs, segments_N), {**batch, "token_type_ids": segments_BT}
    check(ours.scores(ours(*inputs)), theirs(**batch).logits, batch["attention_mask"], dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in PAIRS]
    # T5's softmax is in fp32 whatever it is given.
    + [(name, torch.float64) for name in PAIRS if "t5" not in name],
    ids=str,
)
@torch.no_grad()
def test_an_encoder_decoder_gives_the_scores_of_its_reference(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    theirs = reference(*PAIRS[name]).to(device, dtype)
    ours = converted(theirs).to(device, dtype)
    sources = tokens(SOURCE_LENGTHS, theirs.config.vocab_size)
    targets = tokens(LENGTHS, ours.head.linear.out_features, seed=1)
    source, target = padded(sources, device), padded(targets, device)
    theirs_BTV = theirs(**source, decoder_input_ids=target["input_ids"], use_cache=False).logits
    scores_NV = ours.scores(ours(*flat(sources, device), *flat(targets, device)))
    check(scores_NV, theirs_BTV, target["attention_mask"], dtype)


@pytest.mark.parametrize(
    ("name", "sizes"), [DECODERS["gpt2"], DECODERS["llama"], ENCODERS["bert"], PAIRS["marian"]]
)
@torch.no_grad()
def test_their_fused_attention_gives_the_same_as_their_written_out_one(
    name: str, sizes: dict[str, Any]
) -> None:
    """So that the choice of "eager" above is no choice of the numbers."""
    batch = padded(tokens(LENGTHS, 61), torch.device("cpu"))
    if "Marian" in name:
        batch["decoder_input_ids"] = batch["input_ids"]
    eager, fused = (reference(name, sizes, kind)(**batch).logits for kind in ("eager", "sdpa"))
    real_BT = batch["attention_mask"].bool()
    torch.testing.assert_close(fused[real_BT], eager[real_BT], atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", ["pooled", "classes", "tags"])
@torch.no_grad()
def test_bert_reads_out_a_vector_classes_or_tags_as_its_reference_does(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    cls = {
        "pooled": "BertModel",
        "classes": "BertForSequenceClassification",
        "tags": "BertForTokenClassification",
    }[name]
    theirs = reference(cls, {**BERT, "num_labels": 5}).to(device, dtype)
    ours = converted(theirs).to(device, dtype)
    sequences = tokens(LENGTHS, 61)
    batch, (tokens_N, layout) = padded(sequences, device), flat(sequences, device)
    x_ND = ours(tokens_N, layout)
    every_B = torch.ones(len(LENGTHS), dtype=torch.bool, device=device)
    if name == "pooled":
        check(ours.pooled(x_ND, layout), theirs(**batch).pooler_output, every_B, dtype)
    elif name == "classes":
        check(ours.classes(x_ND, layout), theirs(**batch).logits, every_B, dtype)
    else:
        check(ours.tags(x_ND), theirs(**batch).logits, batch["attention_mask"], dtype)


@torch.no_grad()
def test_minilm_gives_the_mean_of_its_vectors(device: torch.device) -> None:
    """As all-MiniLM-L6-v2 is used: it has a pooler among its weights, and leaves it out."""
    theirs = reference("BertModel", BERT).to(device)
    ours = converted(theirs).to(device)
    ours.pooling = ours.heads["pooled"].pooling = preset("minilm-l6").pooling
    sequences = tokens(LENGTHS, 61)
    batch, (tokens_N, layout) = padded(sequences, device), flat(sequences, device)
    real_BT1 = batch["attention_mask"][:, :, None]
    mean_BD = (theirs(**batch).last_hidden_state * real_BT1).sum(1) / real_BT1.sum(1)
    pooled_BD = ours.pooled(ours(tokens_N, layout), layout)
    torch.testing.assert_close(pooled_BD, mean_BD, rtol=0, atol=2e-5)


def written(step: Callable[[Tensor], Tensor], new_N: Tensor, n_tokens: int) -> list[list[int]]:
    """The best token again and again: `step` takes new tokens and scores the next of each row."""
    columns = []
    for _ in range(n_tokens):
        new_N = step(new_N).argmax(-1)
        columns.append(new_N)
    return torch.stack(columns, 1).tolist()


GREEDY = {"max_new_tokens": 12, "do_sample": False, "num_beams": 1}


@pytest.mark.parametrize("name", ["gpt2", "gpt", "llama", "mistral, a window", "bloom, alibi"])
@torch.no_grad()
def test_a_decoder_writes_the_tokens_that_its_reference_writes(
    name: str, device: torch.device
) -> None:
    cls, sizes = DECODERS[name]
    # A tied model repeats one token for ever: what it reads is nearest to itself.
    theirs = reference(cls, {**sizes, "tie_word_embeddings": False}).to(device)
    ours, cache = converted(theirs).to(device), Cache(2, n_rows=3, capacity=4)

    def step(new_N: Tensor) -> Tensor:
        layout = cache.layout(len(new_N) // 3, device)
        return ours.scores(ours(new_N, layout, cache)[layout.last_N()])

    prompts_BT = torch.stack(tokens([4, 4, 4], theirs.config.vocab_size)).to(device)
    expected_BT = theirs.generate(prompts_BT, **GREEDY)[:, 4:]
    assert len(expected_BT.unique()) > 3  # they write different things
    assert written(step, prompts_BT.flatten(), 12) == expected_BT.tolist()


@torch.no_grad()
def test_an_encoder_decoder_writes_the_tokens_that_its_reference_writes(
    device: torch.device,
) -> None:
    theirs = reference(*PAIRS["marian, nothing tied"]).to(device)
    theirs.generation_config.update(forced_eos_token_id=None, eos_token_id=None)
    ours, cache = converted(theirs).to(device), Cache(2, n_rows=4, capacity=4)
    sources = tokens(SOURCE_LENGTHS, 61)
    memory = ours.encode(*flat(sources, device))

    def step(new_N: Tensor) -> Tensor:
        return ours.scores(ours.decode(new_N, cache.layout(1, device), memory, cache))

    expected_BT = theirs.generate(**padded(sources, device), **GREEDY)[:, 1:]
    assert len(expected_BT.unique()) > 3
    start_N = torch.full((4,), theirs.config.decoder_start_token_id, device=device)
    assert written(step, start_N, 12) == expected_BT.tolist()


@pytest.mark.parametrize("name", ["gpt2", "gpt", "llama, biases", "bert", "marian", "t5"])
@torch.no_grad()
def test_every_weight_matters_to_this_comparison(name: str) -> None:
    ours = converted(reference(*(DECODERS | ENCODERS | PAIRS)[name]))
    inputs = flat(tokens(LENGTHS, 61), torch.device("cpu"))
    if name in PAIRS:
        inputs = (*flat(tokens(SOURCE_LENGTHS, 61, seed=1), torch.device("cpu")), *inputs)
    before_NV = ours.scores(ours(*inputs))
    for part, weight in ours.named_parameters():
        kept = weight.clone()
        weight.add_(torch.randn_like(weight), alpha=0.02)
        largest = (ours.scores(ours(*inputs)) - before_NV).abs().max()
        assert largest > 10 * TOLERANCE[torch.float32], part
        weight.copy_(kept)


def written_out(settings: ModelSettings) -> dict[str, Any]:
    """With the values that `None` stands for."""
    derived = {"n_kv_heads": settings.kv_heads, "d_head": settings.head_width}
    return vars(settings) | derived


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
XL = {"n_embd": 1600, "n_layer": 48, "n_head": 25}
STORIES = {"hidden_size": 288, "num_hidden_layers": 6, "num_attention_heads": 6}
STORIES |= {"intermediate_size": 768, "max_position_embeddings": 256, "rms_norm_eps": 1e-5}
STORIES |= {"tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("name", "published", "cls"),
    [
        ("gpt", transformers.OpenAIGPTConfig(), "OpenAIGPTLMHeadModel"),
        ("gpt2", transformers.GPT2Config(), "GPT2LMHeadModel"),
        ("gpt2-xl", transformers.GPT2Config(**XL), "GPT2LMHeadModel"),
        ("bert-base", transformers.BertConfig(), "BertForPreTraining"),
        (
            "bert-large",
            transformers.BertConfig(**LARGE, intermediate_size=4096),
            "BertForPreTraining",
        ),
        ("minilm-l6", transformers.BertConfig(**MINILM), "BertModel"),
        ("distilbert", transformers.DistilBertConfig(), "DistilBertForMaskedLM"),
        ("stories15M", transformers.LlamaConfig(**STORIES), "LlamaForCausalLM"),
    ],
)
def test_a_preset_is_its_published_configuration(name: str, published: Any, cls: str) -> None:
    """Every setting that decides a score or a dropout, not only the sizes."""
    published.architectures = [cls]
    theirs = settings_of(published, ["pooler.dense.weight"])
    # How training starts, and what a caller does with the vectors, is in no configuration.
    ours = written_out(preset(name))
    free = {key: ours[key] for key in ("init", "pooling") if key in ours}
    assert written_out(theirs) | free == ours
