"""What each shortcut of the library gains: with it, and as torch does it, on a CPU or a GPU.

`python -m benchmarks.shortcuts`. Each stands on something that torch does not promise, or is a
second way to do a thing, and so has to earn its lines: the file of each says its gain and has a
fall-back that a test runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.machine import alternating, pick_device, save
from benchmarks.train_step import EAGER, GRAPHED, SIZES, headway_round
from benchmarks.train_step import Work as Sentences
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.interop.graphs import record
from headway.interop.graphs.graphs import graphs_of
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.models.seq2seq import Seq2Seq
from headway.nn import dropout, embedding, linear, loss, norms
from headway.nn.attention import attend
from headway.nn.layout import Layout
from headway.nn.linear import pack, unpack
from headway.nn.loss import LabelSmoothing
from headway.settings.data import TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.presets import preset
from headway.settings.run import RunSettings
from headway.tokens.trainer import train_on_texts
from headway.training import tensor_lists

Work = Callable[[], object]


def training_step(name: str, tokens: int) -> Work:
    """Forward and backward of an encoder-decoder, embeddings and word scores tied."""
    settings = preset(name)
    model = build_model(settings, seed=0)
    assert isinstance(model, Seq2Seq)
    layout = Layout.of([20] * (tokens // 20))
    source_N, target_N, said_N = torch.randint(settings.vocab_size, (3, layout.n_rows))

    def step() -> None:
        x_ND = model(source_N, layout, target_N, layout)
        model.head.loss(x_ND, said_N, LabelSmoothing(1.0, 0.0), None)[0].backward()
        model.zero_grad(set_to_none=True)

    return step


def joined_gradients(name: str, tokens: int) -> tuple[Work, Work]:
    step = training_step(name, tokens)

    def plainly() -> None:
        with patch.object(embedding, "CAN_DEFER", False):
            step()

    return step, plainly


def shared_draws(name: str, tokens: int) -> tuple[Work, Work]:
    step = training_step(name, tokens)

    def plainly() -> None:
        with patch.object(dropout, "_is_torchs", lambda x: True):
            step()

    return step, plainly


def packed_weights(name: str, tokens: int) -> tuple[Work, Work]:
    """Four rows through the layers of an encoder, as in beam search."""
    settings = preset(name)
    quick, plain = (build_model(settings, seed=0).eval() for _ in range(2))
    pack(quick)
    unpack(plain)
    layout = Layout.of([1] * 4)
    x_ND = torch.randn(4, settings.d_model)

    def through(model: nn.Module) -> Work:
        assert isinstance(model, Seq2Seq)
        return torch.inference_mode()(lambda: model.encoder(x_ND, layout))

    return through(quick), through(plain)


def known_words(name: str, tokens: int) -> tuple[Work, Work]:
    """Lines of a corpus, whose words come again and again."""
    words = [f"{a}{b}" for a in ("ba", "de", "fi", "go", "ku") for b in ("lam", "nor", "rit")]
    lines = [" ".join(words[(i * j) % len(words)] for j in range(1, 16)) for i in range(tokens)]
    tokenizer = train_on_texts(lines, TokenizerSettings(vocab_size=60), sum(map(len, lines)))
    return lambda: tokenizer.encode_flat(lines), lambda: tokenizer._encoder.encode(lines)


def recorded_graphs(name: str, tokens: int) -> tuple[Work, Work]:
    """The two graphs of a translator, as exports record them."""
    settings = preset(name)
    graphs = graphs_of(build_model(settings, seed=0), RunSettings(task="translate", model=settings))

    def quickly() -> None:
        for graph in graphs:
            record.export_program(graph)

    def plainly() -> None:
        with patch.object(record, "quickly", nullcontext):
            quickly()

    return quickly, plainly


def changed_lists(name: str, tokens: int) -> tuple[Work, Work]:
    """What a step does to all gradients of a model at once."""
    device = pick_device()
    gradients = [torch.zeros_like(p) for p in build_model(preset(name), device=device).parameters()]
    sums, factor = [torch.zeros_like(x) for x in gradients], torch.ones((), device=device)

    def at_once() -> None:
        tensor_lists.add_(sums, gradients)
        tensor_lists.scale_(sums, factor)
        tensor_lists.zero_(sums)

    def one_by_one() -> None:
        with patch.object(tensor_lists, "AT_ONCE", False):
            at_once()

    return at_once, one_by_one


def beam_steps(name: str, tokens: int) -> tuple[Work, Work]:
    """Beam search for 32 sources in bf16, recorded with each."""
    settings, device = preset(name), pick_device()
    sources = torch.randint(3, settings.vocab_size, (32, 20)).tolist()

    def search(back_ends: dict[str, attend.BackEnd]) -> Work:
        model = build_model(settings, seed=0, device=device).eval()
        set_compute_dtype(model, torch.bfloat16)
        asked = DecodeSettings(beam=4, max_len=tokens)
        searcher = Searcher([model], asked, SpecialTokens(bos=1, eos=2, unk=0))

        def work() -> None:
            with patch.object(attend, "BACK_ENDS", back_ends):
                searcher(sources)

        return work

    others = {name: one for name, one in attend.BACK_ENDS.items() if name != "step"}
    return search(attend.BACK_ENDS), search(others)


WITHOUT: dict[str, tuple[ModuleType, str, object]] = {
    "nn/linear.py": (linear, "FUSES_RELU", False),
    "nn/kernels/short_attention.py": (attend, "HAS_TRITON", False),
    "nn/kernels/add_norm.py": (norms, "HAS_TRITON", False),
    "nn/kernels/loss.py": (loss, "HAS_TRITON", False),
}
"""How a training step on a GPU does without each."""


def gpu_steps(names: Sequence[str], rounds: int, size: str, tokens: int) -> dict[str, float]:
    """Seconds of a pass over six batches, recorded on a GPU, with all and without each."""
    device = pick_device()
    way = GRAPHED if device.type == "cuda" else EAGER
    sentences = Sentences.make(SIZES[size].vocab_size, device, tokens, 6)

    @contextmanager
    def without(name: str) -> Iterator[None]:
        with patch.object(*WITHOUT[name]) if name in WITHOUT else nullcontext():
            yield

    systems: dict[str, Work] = {}
    for name in ("all", *names):
        torch.compiler.reset()
        with without(name):
            systems[name] = headway_round(SIZES[size], sentences, device, way)
            systems[name] = without(name)(systems[name])
            systems[name]()
    return alternating(systems, device, rounds)


CASES = {
    "nn/embedding.py": (joined_gradients, "transformer-base", 600),
    "nn/dropout.py": (shared_draws, "transformer-base", 600),
    "nn/cpu_packed.py": (packed_weights, "transformer-base", 4),
    "tokens/word_cache.py": (known_words, "", 20_000),
    "interop/graphs/record.py": (recorded_graphs, "transformer-test", 20),
    "training/tensor_lists.py": (changed_lists, "transformer-base", 0),
    "nn/kernels/decode_attention.py": (beam_steps, "transformer-base", 60),
}
"""What is measured by itself, of which model, with how many tokens."""

ON_GPU = (*WITHOUT, "training/tensor_lists.py", "nn/kernels/decode_attention.py")
ON_CPU = tuple(name for name in CASES if name != "nn/kernels/decode_attention.py")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    parser.add_argument("--only", nargs="*", choices=[*CASES, *WITHOUT], help="as the device has")
    given = parser.parse_args(words)
    device = pick_device()
    names = given.only or (ON_GPU if device.type == "cuda" else ON_CPU)
    torch.manual_seed(0)
    found = {}
    for name in names:
        if name not in CASES:
            continue
        make, model, tokens = CASES[name]
        if given.tiny:
            model, tokens = model and "transformer-test", 20
        quick, plain = make(model, tokens)
        found[name] = alternating({"with": quick, "without": plain}, device, given.rounds)
    if steps := [name for name in names if name in WITHOUT]:
        size, tokens = ("toy", 110) if given.tiny else ("base", 25_088)
        times = gpu_steps(steps, given.rounds, size, tokens)
        found |= {name: {"with": times["all"], "without": times[name]} for name in steps}
    for name, seconds in found.items():
        seconds["gain"] = seconds["without"] / seconds["with"]
        print(f"{name}: {seconds['gain']:.2f} times as fast", flush=True)
    print(save("shortcuts", device, {"cases": found}))


if __name__ == "__main__":
    main()
