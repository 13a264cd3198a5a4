"""What each shortcut of the library gains on a CPU: with it, and as torch does it.

`python -m benchmarks.shortcuts`. Each stands on something that torch does not promise, or is a
second way to do a thing, and so has to earn its lines: the file of each says its gain and has a
fall-back that a test runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.machine import alternating, save
from headway.decode import lean_step
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.nn import dropout, embedding
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.linear import pack, unpack
from headway.nn.loss import Smoothing
from headway.settings.data import TokenizerSettings
from headway.settings.presets import preset
from headway.tokens.trainer import train_on_texts

CPU = torch.device("cpu")
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
        model.head.loss(x_ND, said_N, Smoothing(1.0, 0.0), None)[0].backward()
        model.zero_grad(set_to_none=True)

    return step


def joined_gradients(name: str, tokens: int) -> tuple[Work, Work]:
    step = training_step(name, tokens)

    def plainly() -> None:
        with patch.object(embedding, "CAN_WAIT", False):
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


def lean_steps(name: str, tokens: int) -> tuple[Work, Work]:
    """Tokens of one text, one after another."""
    settings = preset(name)
    model = build_model(settings, seed=0).eval()
    assert isinstance(model, Decoder)
    pack(model)
    token_1, layout = torch.zeros(1, dtype=torch.long), Layout.of([1])
    step = lean_step.lean_step(model)
    assert step is not None

    def written(call: Callable[..., object]) -> Work:
        def work() -> None:
            cache = Cache(settings.n_layers, n_rows=1, capacity=tokens)
            for at in range(tokens):
                call(token_1, layout.shifted([at]), cache)

        return torch.inference_mode()(work)

    return written(step), written(model)


def known_words(name: str, tokens: int) -> tuple[Work, Work]:
    """Lines of a corpus, whose words come again and again."""
    words = [f"{a}{b}" for a in ("ba", "de", "fi", "go", "ku") for b in ("lam", "nor", "rit")]
    lines = [" ".join(words[(i * j) % len(words)] for j in range(1, 16)) for i in range(tokens)]
    tokenizer = train_on_texts(lines, TokenizerSettings(vocab_size=60), sum(map(len, lines)))
    return lambda: tokenizer.encode_flat(lines), lambda: tokenizer._encoder.encode(lines)


CASES = {
    "nn/embedding.py": (joined_gradients, "transformer-base", 600),
    "nn/dropout.py": (shared_draws, "transformer-base", 600),
    "nn/cpu_packed.py": (packed_weights, "transformer-base", 4),
    "decode/lean_step.py": (lean_steps, "gpt2", 20),
    "tokens/word_cache.py": (known_words, "", 20_000),
}
"""What is measured, of which model, with how many tokens."""

TINY = {"gpt2": "decoder-test"}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    given = parser.parse_args(words)
    torch.manual_seed(0)
    found = {}
    for name in given.only:
        make, model, tokens = CASES[name]
        if given.tiny:
            model, tokens = model and TINY.get(model, "transformer-test"), 20
        quick, plain = make(model, tokens)
        times = alternating({"with": quick, "without": plain}, CPU, given.rounds)
        found[name] = {**times, "gain": times["without"] / times["with"]}
        print(f"{name}: {found[name]['gain']:.2f} times as fast", flush=True)
    print(save("shortcuts", CPU, {"cases": found}))


if __name__ == "__main__":
    main()
