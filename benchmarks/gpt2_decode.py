"""GPT-2 124M writing text beside Hugging Face `generate` with its cache: same weights, same tokens.

Weights are random and nothing ends a text early, so that all write the same number of tokens. What
greedy decoding writes is compared, on a GPU also in fp32, where no rounding decides between near
ties.

On a GPU headway replays CUDA graphs. The peer that does likewise is `generate` with a static cache,
which compiles the model with CUDA graphs by itself; plain `generate` is measured too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.machine import add_out, alternating, pick_device, save
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.models.decoder import Decoder
from headway.nn.linear import pack
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import compute_in_type
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
GPU = [Case(batch, sample, bits=16) for batch in (1, 64) for sample in (False, True)]
HEADWAY, STATIC, PLAIN = "headway", "HF generate, static cache, compiled", "HF generate"


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
    searcher = Searcher([model], settings, SpecialTokens(NONE, NONE, NONE))

    def work() -> list[list[int]]:
        return [found[0].tokens for found in searcher(prompts)]

    return work


def hugging_face(
    model: Any, case: Case, prompts: list[list[int]], n_tokens: int, *, static: bool = False
) -> Work:
    """`static`: with a cache of fixed size, for which `generate` compiles the model on a GPU."""
    ids_BS = torch.tensor(prompts).to(model.device)
    ones_BS = torch.ones_like(ids_BS)
    cache = {"cache_implementation": "static"} if static else {}

    # A compiled model with CUDA graphs does not take tensors of inference mode.
    @(torch.no_grad() if static else torch.inference_mode())
    def work() -> list[list[int]]:
        out_BT = model.generate(
            input_ids=ids_BS, attention_mask=ones_BS, max_new_tokens=n_tokens,
            do_sample=case.sample, top_k=50 if case.sample else None, **cache,
        )  # fmt: skip
        return out_BT[:, ids_BS.shape[1] :].tolist()

    return work


def drawn_prompts(case: Case, args: argparse.Namespace) -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    size = (case.batch, args.prompt)
    prompts: list[list[int]] = torch.randint(0, args.vocab, size, generator=draw).tolist()
    return prompts


def measure(
    case: Case, ours: Decoder, theirs: Any, args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, str]]:
    """Tokens per second of each system, and why others did not run."""
    prompts, device = drawn_prompts(case, args), next(ours.parameters()).device
    works = {
        HEADWAY: headway(ours, case, prompts, args.tokens),
        STATIC: hugging_face(theirs, case, prompts, args.tokens, static=True),
        PLAIN: hugging_face(theirs, case, prompts, args.tokens),
    }
    if device.type != "cuda":  # where neither side compiles
        del works[STATIC]
    if args.only:
        works = {args.only: works[args.only]}
    outputs, failed = {}, {}
    for name, work in works.items():
        start = time.perf_counter()
        try:
            outputs[name] = work()
        except Exception as error:  # a peer that does not compile is reported, not hidden
            failed[f"{name}, {case.name}"] = f"{type(error).__name__}: {str(error)[:300]}"
            print(f"{name}: failed: {failed[f'{name}, {case.name}']}", flush=True)
            continue
        print(f"  {name}: ready after {time.perf_counter() - start:.1f} s", flush=True)
    works = {name: works[name] for name in outputs}
    assert all(len(out) == args.tokens for found in outputs.values() for out in found)
    table: dict[str, Any] = {
        name: {"tokens_per_s": case.batch * args.tokens / time_s}
        for name, time_s in alternating(works, device, args.rounds).items()
    }
    first = next(iter(outputs.values()))
    print(case.name)
    for name, row in table.items():
        if not case.sample:
            row["same_as_headway"] = _agreement(outputs[name], first)
        ratio = row["tokens_per_s"] / table.get(PLAIN, row)["tokens_per_s"]
        alike = "" if case.sample else f" ({row['same_as_headway']:.0%} of the tokens alike)"
        print(f"  {name:36s} {row['tokens_per_s']:10,.1f} tok/s {ratio:5.2f} ×{alike}", flush=True)
    return table, failed


def alike_in_fp32(ours: Decoder, theirs: Any, args: argparse.Namespace) -> dict[str, float]:
    """The share of greedy tokens that are the same as those of `generate`, per size of a batch."""
    found = {}
    a, b = (deepcopy(model).to(pick_device()) for model in (ours, theirs))
    for case in (Case(1), Case(64)):
        prompts = drawn_prompts(case, args)
        mine, other = (make(model, case, prompts, args.tokens)() for make, model in (
            (headway, a), (hugging_face, b),
        ))  # fmt: skip
        found[case.name] = _agreement(other, mine)
        print(f"{case.name}: {found[case.name]:.0%} of the tokens alike", flush=True)
    return found


def _agreement(one: list[list[int]], other: list[list[int]]) -> float:
    """The share of tokens that are alike up to where two texts first differ."""
    alike = 0
    for a, b in zip(one, other, strict=True):
        alike += next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return alike / sum(map(len, one))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--tokens", type=int, help="that each text gets (32; on a GPU 128)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="this system alone, for a profile")
    parser.add_argument("--case", type=int, help="this case alone, from 0")
    add_out(parser)
    args = parser.parse_args(words)
    device = torch.device(args.device) if args.device else pick_device()
    gpu = device.type == "cuda"
    args.tokens = args.tokens or (128 if gpu else 32)
    torch.set_num_threads(args.threads)
    theirs = gpt2(args.layers, args.vocab, args.width)
    ours = same_weights(theirs)
    cases = GPU if gpu else CPU
    results, failed, batch = {}, {}, 0
    for case in cases if args.case is None else [cases[args.case]]:
        if case.batch != batch:  # compile for each shape, not once for varying sizes
            torch.compiler.reset()
            a, b = (deepcopy(model).to(device) for model in (ours, theirs))
            if case.bits == 16:
                compute_in_type(a, torch.bfloat16)
                b = b.to(torch.bfloat16)
            pack(a)
            batch = case.batch
        results[case.name], reasons = measure(case, a, b, args)
        failed |= reasons
    about = {"model": "gpt2", "prompt": args.prompt, "tokens": args.tokens, "rounds": args.rounds}
    if args.case is None and not args.only:
        result: dict[str, Any] = {"work": about, "cases": results}
        if gpu:
            result["alike_in_fp32"] = alike_in_fp32(ours, theirs, args)
        result |= {"failed": failed} if failed else {}
        print(save("gpt2-decode", device, result, args.out))


if __name__ == "__main__":
    main()
