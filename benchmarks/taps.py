"""What it costs that a model can be looked into: with taps, without any, and while recording.

`python -m benchmarks.taps`. Without taps they are taken out of the model, so that not even an empty
call is left. Recording hands out all attention weights, which only attention written out has.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence

import torch

from benchmarks.machine import alternating, pick_device, save
from headway.models.build import build_model
from headway.nn.layout import Layout
from headway.nn.tap import Tap, record
from headway.settings.presets import preset


def without_taps(model: torch.nn.Module) -> torch.nn.Module:
    # The same weights at the same places: where memory lies changes times by more than taps do.
    kept = [*model.parameters(), *model.buffers()]
    bare = copy.deepcopy(model, {id(tensor): tensor for tensor in kept})
    for module in bare.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, Tap):
                del module._modules[name]
                # Attention asks the tap of the weights whether someone is looking.
                object.__setattr__(module, name, _Nothing())
    return bare


class _Nothing:
    is_recording = False

    def __call__(self, x: object) -> object:
        return x


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--presets", nargs=2, default=["bert-base", "gpt2"], help="an encoder, a decoder"
    )
    given = parser.parse_args(words)
    device = pick_device()
    torch.manual_seed(0)
    encoder, decoder = given.presets
    cases = {
        f"{encoder}, 8 × 64 tokens": (encoder, 8, 64),
        f"{decoder}, 1 token": (decoder, 1, 1),
    }
    found = {}
    for case, (name, n_texts, length) in cases.items():
        settings = preset(name)
        model = build_model(settings, device=device).eval()
        bare = without_taps(model)
        layout = Layout.of([length] * n_texts, device)
        tokens_N = torch.randint(settings.vocab_size, (n_texts * length,), device=device)

        def plain(model: torch.nn.Module = model, n: int = 20 if length == 1 else 1) -> None:
            for _ in range(n):
                model(tokens_N, layout)  # noqa: B023 (called in this turn)

        def looking(model: torch.nn.Module = model, n: int = 20 if length == 1 else 1) -> None:
            with record(model, ".weights", ".v", ".stream", ".hidden"):
                plain(model, n)

        with torch.inference_mode():
            assert torch.equal(model(tokens_N, layout), bare(tokens_N, layout))
            # Apart: what recording leaves in the caches would be paid by whoever comes next.
            times = alternating(
                {"with taps": plain, "without taps": lambda bare=bare: plain(bare)},
                device, given.rounds,
            )  # fmt: skip
            times |= alternating({"recording": looking}, device, given.rounds)
        found[case] = {
            **{f"{name} s": seconds for name, seconds in times.items()},
            "with / without": times["with taps"] / times["without taps"],
            "recording / with": times["recording"] / times["with taps"],
        }
        print(case, found[case])
    print(save("taps", device, {"cases": found}))


if __name__ == "__main__":
    main()
