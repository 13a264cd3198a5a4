"""BERT-base over ragged sentences: headway's flat batches beside Hugging Face, same weights.

The sentences come in no order. Hugging Face pads them as they come, or sorted by length first. On a
GPU all run eagerly and compiled: headway's blocks on batches of the fixed-size form, which has a
dummy tail, and Hugging Face's model with dynamic shapes, because its batches differ in width.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import add_out, alternating, peak_of_child, peaks, pick_device, save
from benchmarks.sentences import pair_lengths
from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings
from headway.settings.presets import preset

BATCH = {"cpu": 32, "cuda": 512}
"""Sentences at a time."""


def same_weights(ours: Encoder, settings: EncoderSettings) -> torch.nn.Module:
    """Hugging Face's BERT with our weights."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.d_model,
        num_hidden_layers=settings.n_layers,
        num_attention_heads=settings.n_heads,
        intermediate_size=settings.d_ff,
        max_position_embeddings=settings.max_len,
        attn_implementation="sdpa",
    )
    theirs = BertModel(config, add_pooling_layer=False).eval()
    front = ours.front
    weights = {
        "embeddings.word_embeddings.weight": front.tokens.weight,
        "embeddings.position_embeddings.weight": front.positions.table.weight,
        "embeddings.token_type_embeddings.weight": front.segments.weight,
        "embeddings.LayerNorm.weight": front.norm.weight,
        "embeddings.LayerNorm.bias": front.norm.bias,
    }
    for i, block in enumerate(ours.stack.blocks):
        at, layer = block.attention, f"encoder.layer.{i}"
        for kind in ("weight", "bias"):
            parts = getattr(at.to_qkv, kind).chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                weights[f"{layer}.attention.self.{name}.{kind}"] = part
            for name, module in {
                "attention.output.dense": at.to_out,
                "attention.output.LayerNorm": block.norm_attention,
                "intermediate.dense": block.feed_forward.to_hidden,
                "output.dense": block.feed_forward.to_out,
                "output.LayerNorm": block.norm_feed_forward,
            }.items():
                weights[f"{layer}.{name}.{kind}"] = getattr(module, kind)
    theirs.load_state_dict(weights)
    return theirs


def flat_pass(
    model: Encoder, texts: list[Tensor], device: torch.device, *, compiled: bool = False
) -> Callable[[], Tensor]:
    size = BATCH[device.type]
    batches = [texts[i : i + size] for i in range(0, len(texts), size)]
    longest = max(len(text) for text in texts)
    most = max(sum(len(text) for text in batch) for batch in batches)
    room = {"n_rows": most, "n_sequences": 2 * size, "longest": longest}
    if compiled:
        model.stack.compile_blocks()

    @(torch.no_grad() if compiled else torch.inference_mode())
    def work() -> Tensor:
        outs = []
        for batch in batches:
            ids_N, lengths = torch.cat(batch), [len(text) for text in batch]
            if compiled:
                layout = Layout.fixed(lengths, **room, device=device)
                ids_N = torch.nn.functional.pad(ids_N, (0, most - len(ids_N)))
            else:
                layout = Layout.of(lengths, device)
            outs.append(model(ids_N.to(device), layout)[: sum(lengths)])
        return torch.cat(outs)

    return work


def padded_pass(
    model: torch.nn.Module,
    texts: list[Tensor],
    device: torch.device,
    order: list[int],
    *,
    compiled: bool = False,
) -> Callable[[], Tensor]:
    """The real rows, in the order of the sentences, whatever the order they are worked on."""
    size = BATCH[device.type]
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    call: Any = torch.compile(model, dynamic=True) if compiled else model

    @(torch.no_grad() if compiled else torch.inference_mode())
    def work() -> Tensor:
        outs: dict[int, Tensor] = {}
        for numbers in batches:
            batch = [texts[i] for i in numbers]
            ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True).to(device)
            lengths = torch.tensor([len(text) for text in batch])
            real = (torch.arange(ids.shape[1]) < lengths[:, None]).to(device)
            states = call(input_ids=ids, attention_mask=real).last_hidden_state
            outs |= {i: states[row, : len(texts[i])] for row, i in enumerate(numbers)}
        return torch.cat([outs[i] for i in range(len(texts))])

    return work


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="bert-base")
    parser.add_argument("--sentences", type=int, help="256, on a GPU 8,192")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="run this system once and stop, to measure its memory")
    add_out(parser)
    args = parser.parse_args(words)
    device = pick_device()
    settings = preset(args.preset)
    assert isinstance(settings, EncoderSettings)
    model = build_model(settings, device=device).eval()
    assert isinstance(model, Encoder)
    peer = same_weights(model, settings).to(device)
    if device.type == "cuda":
        model, peer = model.bfloat16(), peer.bfloat16()
    n_sentences = args.sentences or (8192 if device.type == "cuda" else 256)
    lengths = [source for source, _ in pair_lengths(n_sentences)]
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(settings.vocab_size, (n,), generator=draw) for n in lengths]
    as_given = list(range(len(texts)))
    by_length = sorted(as_given, key=lambda i: lengths[i])
    works: dict[str, Callable[[], Tensor]] = {
        "headway": flat_pass(model, texts, device),
        "HF sorted": padded_pass(peer, texts, device, by_length),
        "HF unsorted": padded_pass(peer, texts, device, as_given),
    }
    if device.type == "cuda":
        works["headway compiled"] = flat_pass(deepcopy(model), texts, device, compiled=True)
        works["HF sorted compiled"] = padded_pass(peer, texts, device, by_length, compiled=True)
    if args.only:
        works[args.only]()
        return
    reference, errors, failed = works["HF sorted"](), {}, {}
    for name, work in works.items():
        start = time.perf_counter()
        try:
            error = (work() - reference).norm() / reference.norm()
        except Exception as problem:  # what does not compile is reported, not hidden
            failed[name] = f"{type(problem).__name__}: {str(problem)[:300]}"
            print(f"{name}: failed: {failed[name]}", flush=True)
            continue
        errors[name] = float(error)
        took = time.perf_counter() - start
        print(f"{name}: outputs differ by {error:.1e} (relative), {took:.1f} s", flush=True)
    works = {name: works[name] for name in errors}

    ceiling = peaks(device)
    n_tokens = sum(lengths)
    flops = (
        2.0 * settings.n_layers * (4 * settings.d_model**2 + 2 * settings.d_model * settings.d_ff)
    )
    table = {}
    for name, time_s in alternating(works, device, args.rounds).items():
        share = flops * n_tokens / time_s / ceiling["tflops"] / 1e12
        table[name] = {"tokens_per_s": n_tokens / time_s, "share_of_matmul_peak": share}
        if device.type == "cpu":
            asked = ["--preset", args.preset, "--sentences", str(n_sentences), "--only", name]
            table[name]["peak_memory_bytes"] = peak_of_child("benchmarks.encode", asked)
        print(f"{name:18s} {n_tokens / time_s:10,.0f} tok/s {share:6.1%} of peak")
    about = {
        "preset": args.preset,
        "sentences": n_sentences,
        "batch": BATCH[device.type],
        "tokens": n_tokens,
    }
    results = {"work": about, "difference": errors["headway"], "peaks": ceiling, "systems": table}
    results |= {"failed": failed} if failed else {}
    print(save(f"encode-{args.preset}", device, results, args.out))


if __name__ == "__main__":
    main()
