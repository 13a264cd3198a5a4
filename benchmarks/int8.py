"""Weights of eight bits on a CPU: headway beside CTranslate2's and beside fp32, same weights.

Three works: GPT-2 124M writes a text, BERT-base reads ragged sentences, a Transformer of base size
translates. `python -m benchmarks.int8_quality` measures what rounding costs in quality.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import decode, encode, gpt2_decode, machine
from benchmarks.machine import alternating, save
from benchmarks.sentences import pair_lengths
from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.models.folder import load_model, save_model
from headway.nn.linear import pack
from headway.settings.model import EncoderSettings
from headway.settings.presets import preset
from headway.tasks.loaded_run import cast_weights

CPU = torch.device("cpu")
PROMPT = 32
THEIR_TYPES = {"fp32": "float32", "int8": "int8"}
"""What CTranslate2 calls them."""

Works = dict[str, Callable[[], Any]]


def held(model: Any, precision: str) -> Any:
    """A copy as `headway predict` holds it."""
    copy: nn.Module = deepcopy(model)
    cast_weights(copy, precision)
    pack(copy)
    return copy


def writing(args: argparse.Namespace, folder: Path) -> tuple[Works, int]:
    """GPT-2, greedy, one text."""
    case, theirs = gpt2_decode.Case(1), _gpt2(args)
    ours, prompts = gpt2_decode.same_weights(theirs), _prompts(theirs.config.vocab_size)
    save_gpt2(theirs, folder)
    works: Works = {"HF fp32": gpt2_decode.hugging_face(theirs, case, prompts, args.tokens)}
    for precision in ("fp32", "int8"):
        works[f"headway {precision}"] = gpt2_decode.headway(
            held(ours, precision), case, prompts, args.tokens
        )
        works[f"CTranslate2 {precision}"] = generator(folder, precision, prompts, args)
    return works, args.tokens


def _gpt2(args: argparse.Namespace) -> Any:
    return gpt2_decode.gpt2(args.layers or 12, args.vocab or 50_257, args.width or 768)


def _prompts(vocab_size: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    found: list[list[int]] = torch.randint(vocab_size, (1, PROMPT), generator=draw).tolist()
    return found


def save_gpt2(model: Any, folder: Path) -> None:
    from ctranslate2.converters.transformers import GPT2Loader

    spec = GPT2Loader().get_model_spec(model)
    spec.register_vocabulary([str(token) for token in range(model.config.vocab_size)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.validate()
    spec.save(str(folder))


def generator(
    folder: Path, precision: str, prompts: list[list[int]], args: argparse.Namespace
) -> Callable[[], list[list[int]]]:
    import ctranslate2

    model = ctranslate2.Generator(str(folder), **_options(precision, args))
    words = [[str(token) for token in prompt] for prompt in prompts]

    def work() -> list[list[int]]:
        found = model.generate_batch(
            words,
            max_length=args.tokens,
            min_length=args.tokens,
            include_prompt_in_result=False,
        )
        return [list(result.sequences_ids[0]) for result in found]

    return work


def _options(precision: str, args: argparse.Namespace) -> dict[str, Any]:
    kind = THEIR_TYPES[precision]
    return {"device": "cpu", "intra_threads": args.threads, "compute_type": kind}


def reading(args: argparse.Namespace, folder: Path) -> tuple[Works, int]:
    """BERT-base, ragged sentences; peers get them in order of length."""
    settings = preset("bert-base")
    assert isinstance(settings, EncoderSettings)
    settings = replace(
        settings,
        n_layers=args.layers or settings.n_layers,
        vocab_size=args.vocab or settings.vocab_size,
        d_model=args.width or settings.d_model,
        d_ff=4 * args.width if args.width else settings.d_ff,
    )
    ours = build_model(settings).eval()
    assert isinstance(ours, Encoder)
    theirs = encode.same_weights(ours, settings)
    save_bert(theirs, folder)
    lengths = [source for source, _ in pair_lengths(args.sentences)]
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(settings.vocab_size, (n,), generator=draw) for n in lengths]
    by_length = sorted(range(len(texts)), key=lambda i: lengths[i])
    works: Works = {"HF fp32": encode.padded_pass(theirs, texts, CPU, by_length)}
    for precision in ("fp32", "int8"):
        works[f"headway {precision}"] = encode.flat_pass(held(ours, precision), texts, CPU)
        works[f"CTranslate2 {precision}"] = encoder(folder, precision, texts, by_length, args)
    return works, sum(lengths)


def save_bert(model: Any, folder: Path) -> None:
    from ctranslate2.converters.transformers import BertLoader
    from transformers.models.bert.modeling_bert import BertPooler

    model.pooler = BertPooler(model.config)  # their converter expects one, and a word that is gone
    model.config.position_embedding_type = "absolute"
    spec = BertLoader().get_model_spec(model)
    model.pooler = None
    spec.register_vocabulary([str(token) for token in range(model.config.vocab_size)])
    spec.config.unk_token = "0"
    spec.validate()
    spec.save(str(folder))


def encoder(
    folder: Path, precision: str, texts: list[Tensor], order: list[int], args: argparse.Namespace
) -> Callable[[], Tensor]:
    """The real rows, in the order of the sentences."""
    import ctranslate2
    import numpy as np

    model = ctranslate2.Encoder(str(folder), **_options(precision, args))
    size = encode.BATCH["cpu"]
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    ids = [text.tolist() for text in texts]

    def work() -> Tensor:
        outs: dict[int, Tensor] = {}
        for numbers in batches:
            found = model.forward_batch([ids[i] for i in numbers])
            states = torch.from_numpy(np.array(found.last_hidden_state))
            outs |= {i: states[row, : len(ids[i])] for row, i in enumerate(numbers)}
        return torch.cat([outs[i] for i in range(len(ids))])

    return work


def translating(args: argparse.Namespace, folder: Path) -> tuple[Works, int]:
    """Transformer-base, beam 4, 32 sentences."""
    case, vocab_size = decode.Case(4, 32), args.vocab or 32_000
    theirs = decode.marian(vocab_size, args.layers or 6, args.width or 512)
    ours, batch = decode.same_weights(theirs), decode.sources(case, vocab_size)
    works: Works = {"HF fp32": decode.hugging_face(theirs, batch, case, args.tokens, CPU)}
    for precision, their_type in THEIR_TYPES.items():
        model = held(ours, precision)
        works[f"headway {precision}"] = decode.headway(model, batch, case, args.tokens)
        other = decode.ctranslate2(theirs, str(folder), args.threads, their_type)
        works[f"CTranslate2 {precision}"] = decode.ctranslate2_work(other, batch, case, args.tokens)
    return works, case.batch * args.tokens


CASES = {
    "GPT-2 124M, greedy, batch 1": writing,
    "BERT-base, ragged sentences": reading,
    "Transformer-base, beam 4, batch 32": translating,
}


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        works, n_tokens = CASES[name](args, Path(folder))
        outputs = {system: work() for system, work in works.items()}
        times = alternating(works, CPU, args.rounds)
    order = ["headway int8", "HF fp32", "headway fp32", "CTranslate2 fp32", "CTranslate2 int8"]
    print(name)
    table = {}
    for system in order:
        rate, base = n_tokens / times[system], n_tokens / times["HF fp32"]
        table[system] = {
            "tokens_per_s": rate, **_compared(outputs[system], outputs["HF fp32"])
        }  # fmt: skip
        print(f"  {system:17s} {rate:9,.1f} tok/s {rate / base:5.2f} × {table[system]}", flush=True)
    return table


def _compared(one: Any, other: Any) -> dict[str, float]:
    """With HF's outputs: the share of tokens alike at the same places, or the relative difference
    of vectors."""
    if isinstance(one, Tensor):
        return {"difference": float((one - other).norm() / other.norm())}
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True)]
    return {"tokens_alike": sum(a == b for a, b in pairs) / len(pairs)}


def memory(args: argparse.Namespace) -> dict[str, int]:
    """Bytes that GPT-2 takes in a fresh process once it is loaded and has written a text."""
    theirs = _gpt2(args)
    ours = gpt2_decode.same_weights(theirs)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        names = {"HF": "hf", "headway": "headway", "CTranslate2": "ctranslate2"}
        places = {system: Path(folder) / name for system, name in names.items()}
        theirs.save_pretrained(places["HF"])
        width = theirs.config.n_embd
        sizes = {"n_layers": theirs.config.n_layer, "vocab_size": theirs.config.vocab_size}
        settings = replace(preset("gpt2"), **sizes, d_model=width, d_ff=4 * width)
        save_model(places["headway"], ours, settings)
        places["CTranslate2"].mkdir()
        save_gpt2(theirs, places["CTranslate2"])
        for system, precision in (
            ("headway", "int8"), ("HF", "fp32"), ("headway", "fp32"),
            ("CTranslate2", "fp32"), ("CTranslate2", "int8"),
        ):  # fmt: skip
            vocab_size = str(theirs.config.vocab_size)
            words = [system, precision, str(places[system]), str(args.threads), vocab_size]
            printed = machine.python("-m", "benchmarks.int8", "--memory", *words)
            found[f"{system} {precision}"] = int(printed.split()[-1])
            print(f"  {system} {precision}: {found[f'{system} {precision}'] / 1e6:,.0f} MB")
    return found


def memory_of(system: str, precision: str, folder: str, threads: str, vocab_size: str) -> int:
    args = argparse.Namespace(tokens=4, threads=int(threads))
    case, prompts = gpt2_decode.Case(1), _prompts(int(vocab_size))
    torch.set_num_threads(args.threads)
    if system == "CTranslate2":
        import ctranslate2  # noqa: F401
    else:
        from transformers import GPT2LMHeadModel
    before = _resident()
    if system == "HF":
        theirs = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        gpt2_decode.hugging_face(theirs, case, prompts, args.tokens)()
    elif system == "headway":
        ours: Any = load_model(Path(folder)).eval()
        cast_weights(ours, precision)
        pack(ours)
        gpt2_decode.headway(ours, case, prompts, args.tokens)()
    else:
        kept = generator(Path(folder), precision, prompts, args)
        kept()
    gc.collect()
    return _resident() - before


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32, help="that each output has")
    parser.add_argument("--sentences", type=int, default=256, help="that BERT reads")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, help="fewer, for a quick look")
    parser.add_argument("--width", type=int, help="narrower, for a quick look")
    parser.add_argument("--vocab", type=int, help="smaller, for a quick look")
    parser.add_argument("--case", type=int, help="this case alone, from 0")
    parser.add_argument("--memory", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.memory:
        print(memory_of(*args.memory))
        return
    torch.set_num_threads(args.threads)
    names = list(CASES) if args.case is None else [list(CASES)[args.case]]
    cases = {name: measure(name, args) for name in names}
    if args.case is None:
        about = {"tokens": args.tokens, "sentences": args.sentences, "rounds": args.rounds}
        results = {"work": about, "cases": cases, "memory_of_gpt2_bytes": memory(args)}
        print(save("int8", CPU, results))


if __name__ == "__main__":
    main()
