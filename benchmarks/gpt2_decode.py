"""GPT-2 124M writing text beside Hugging Face `generate` with its cache: same weights, same tokens.

Weights are random and nothing ends a text early, so that both write the same number of tokens. What
greedy decoding writes is compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.machine import alternating, pick_device, save
from headway.decode.precision import compute_in_type
from headway.decode.search.hypothesis import Specials
from headway.decode.search.searcher import Searcher
from headway.models.decoder import Decoder
from headway.nn.linear import pack
from headway.settings.decode import DecodeSettings
from tests.references.convert import converted

NONE = -1
"""No token has this number: nothing begins, ends or is unknown."""

Work = Callable[[], list[list[int]]]


@dataclass(frozen=True)
class Case:
    batch: int
    sample: bool = False
    bits: int = 32

    @property
    def name(self) -> str:
        way = "sampling, top-k 50" if self.sample else "greedy"
        return f"{way}, batch {self.batch}, {'fp32' if self.bits == 32 else 'bf16'}"


CPU = [Case(1), Case(1, sample=True), Case(8)]
GPU = [
    Case(batch, sample, bits) for bits in (16, 32) for batch in (1, 64) for sample in (False, True)
]


def gpt2(layers: int, vocab_size: int = 50_257, width: int = 768) -> Any:
    """Hugging Face's model, its weights drawn anew: its own start writes one word for ever."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "vocab_size": vocab_size, "n_embd": width}
    config = GPT2Config(**sizes, attn_implementation="sdpa")
    model = GPT2LMHeadModel(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                width = weight.shape[0 if "c_" in name else 1]  # `Conv1D` holds (in, out)
                weight.copy_(torch.randn(weight.shape, generator=draw) * width**-0.5)
    return model


def same_weights(theirs: Any) -> Decoder:
    ours = converted(theirs)
    assert isinstance(ours, Decoder)
    return ours


def headway(model: Decoder, case: Case, prompts: list[list[int]], n_tokens: int) -> Work:
    settings = DecodeSettings(
        beam=1, max_len=n_tokens, unknown="keep", sample=case.sample, top_k=50 * case.sample
    )
    searcher = Searcher([model], settings, Specials(NONE, NONE, NONE))

    def work() -> list[list[int]]:
        return [found[0].tokens for found in searcher(prompts)]

    return work


def hugging_face(model: Any, case: Case, prompts: list[list[int]], n_tokens: int) -> Work:
    ids_BS = torch.tensor(prompts).to(model.device)
    ones_BS = torch.ones_like(ids_BS)

    @torch.inference_mode()
    def work() -> list[list[int]]:
        out_BT = model.generate(
            input_ids=ids_BS, attention_mask=ones_BS, max_new_tokens=n_tokens,
            do_sample=case.sample, top_k=50 if case.sample else None,
        )  # fmt: skip
        return out_BT[:, ids_BS.shape[1] :].tolist()

    return work


def measure(case: Case, ours: Decoder, theirs: Any, args: argparse.Namespace) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    size = (case.batch, args.prompt)
    prompts = torch.randint(0, theirs.config.vocab_size, size, generator=draw).tolist()
    works = {
        "headway": headway(ours, case, prompts, args.tokens),
        "HF generate": hugging_face(theirs, case, prompts, args.tokens),
    }
    if args.only:
        works = {args.only: works[args.only]}
    outputs = {name: work() for name, work in works.items()}
    assert all(len(out) == args.tokens for found in outputs.values() for out in found)
    device = next(ours.parameters()).device
    table: dict[str, Any] = {
        name: {"tokens_per_s": case.batch * args.tokens / time_s}
        for name, time_s in alternating(works, device, args.rounds).items()
    }
    first = next(iter(outputs.values()))
    print(case.name)
    for name, row in table.items():
        if not case.sample:
            row["same_as_headway"] = _agreement(outputs[name], first)
        ratio = row["tokens_per_s"] / table.get("HF generate", row)["tokens_per_s"]
        alike = "" if case.sample else f" ({row['same_as_headway']:.0%} of the tokens alike)"
        print(f"  {name:14s} {row['tokens_per_s']:10,.1f} tok/s {ratio:5.2f} ×{alike}", flush=True)
    return table


def _agreement(one: list[list[int]], other: list[list[int]]) -> float:
    """The share of tokens that are alike up to where two texts first differ."""
    alike = 0
    for a, b in zip(one, other, strict=True):
        alike += next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return alike / sum(map(len, one))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--tokens", type=int, help="that each text gets (32; on a GPU 256)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="this system alone, for a profile")
    parser.add_argument("--case", type=int, help="this case alone, from 0")
    args = parser.parse_args(words)
    device = torch.device(args.device) if args.device else pick_device()
    gpu = device.type == "cuda"
    args.tokens = args.tokens or (256 if gpu else 32)
    torch.set_num_threads(args.threads)
    theirs = gpt2(args.layers, args.vocab, args.width)
    ours = same_weights(theirs)
    cases = GPU if gpu else CPU
    results = {}
    for case in cases if args.case is None else [cases[args.case]]:
        a, b = (deepcopy(model).to(device) for model in (ours, theirs))
        if case.bits == 16:
            compute_in_type(a, torch.bfloat16)
            b = b.to(torch.bfloat16)
        pack(a)
        results[case.name] = measure(case, a, b, args)
        del a, b
    about = {"model": "gpt2", "prompt": args.prompt, "tokens": args.tokens}
    if args.case is None and not args.only:
        print(save("gpt2-decode", device, {"work": about, "cases": results}))


if __name__ == "__main__":
    main()
