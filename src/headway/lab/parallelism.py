"""E13: how much faster does a Transformer train than a recurrent network, and why?

A recurrent network must process tokens one after another, while attention processes all of them in
parallel. The experiment times training steps of equally many tokens at increasing sequence lengths.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean
from headway.lab.figures import Figure, LineChart, TableFigure
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, all_of, decide, rounded
from headway.lab.workspace import Workspace
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.summary import count_parameters, meta_model
from headway.nn.devices import pick_device
from headway.nn.layout import Layout
from headway.settings.body import with_body
from headway.settings.effects import ignored_by
from headway.settings.model import DecoderSettings

VOCAB = 64
"""Vocabulary size of the timed models. It is small, so that most of the time is spent in the layers
and not in the softmax."""

NAMED = {"transformer": "Transformer", "lstm": "LSTM", "gru": "GRU", "convolution": "convolution",
         "again": "Transformer, timed twice"}  # fmt: skip


class ParallelismExperiment(Experiment):
    hypothesis = (
        "On long sequences, a Transformer trains faster than an LSTM with the same number of "
        "parameters. Its advantage grows with the length of the sequences, because the LSTM must "
        "process the tokens one after another."
    )
    method = (
        "Four architectures with about the same number of parameters are timed on training steps "
        "of 2,048 tokens (16,384 in full runs). Some steps have many short sequences, others "
        "fewer and longer sequences of up to 1,024 tokens (8,192 in full runs). The "
        "architectures take turns, and the median of several rounds is reported. On a CPU, the "
        "CPU time of one core is measured; on a GPU, wall-clock time.",
    )
    control = (
        "The same Transformer is timed twice, as if it were two models; the two times must be "
        "nearly equal. Every model must learn from its training steps."
    )
    literature = (
        Citation("Vaswani et al. 2017", "Attention needs a constant number of sequential steps, "
                 "a recurrent network needs one step per token.", "context"),
        Citation("Gu, Dao 2023", "Recurrent networks that can be computed in parallel train as "
                 "fast as attention, and faster on long sequences.", "differs"),
    )  # fmt: skip
    pieces = (1, 1)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        device = pick_device(bench.device)
        lengths = bench.choose((16, 64, 256, 1024), (16, 64, 256, 1024, 4096, 8192))
        n_tokens = bench.choose(2048, 16384)
        width, rounds = bench.choose((64, 9), (256, 9))
        found: SeedMeasurements = bench.cached(
            "speed", lambda: speeds(lengths, n_tokens, width, rounds, device, bench.seed)
        )
        return found

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        lengths = sorted(found[0]["seconds"]["lstm"], key=int)
        short, long = lengths[0], lengths[-1]
        lead = Effect.over(
            [leads(one, "lstm")[long] for one in found],
            f"speed of the Transformer relative to the LSTM, {long} tokens", "×",
        )  # fmt: skip
        growth = Effect.over(
            [leads(one, "lstm")[long] / leads(one, "lstm")[short] for one in found],
            f"relative speed at {long} tokens divided by relative speed at {short} tokens", "×",
        )  # fmt: skip
        twice = [leads(one, "again")[length] for one in found for length in lengths]
        off = max(max(ratio, 1 / ratio) for ratio in twice)
        learned = min(one["learned"][body] for one in found for body in one["learned"])
        controls = [
            Control(name="the same model takes the same time", passed=off < 1.35,
                    said=f"the same model timed twice differs by at most a factor of {off:.2f}."),
            Control(name="every architecture learns", passed=learned > 0.2,
                    said="20 training steps on one batch reduce the loss of every model by at "
                         f"least {rounded(learned)} nats."),
        ]  # fmt: skip
        more = [
            growth,
            *(Effect.over([leads(one, body)[length] for one in found],
                          f"speed of the Transformer relative to the {NAMED[body]}, {length} "
                          "tokens", "×")
              for body in ("lstm", "gru", "convolution") for length in (long, short)
              if (body, length) != ("lstm", long)),
        ]  # fmt: skip
        cross, where = crossing(found, lengths), found[0]["device"]
        ahead = f" It is faster from {cross} tokens on." if cross else ""
        early = Effect.over(
            [leads(one, "lstm")[short] for one in found], f"relative speed at {short}", "×"
        )
        answers = OutcomeSentences(
            supported=f"On {where} it trains faster than an LSTM on long sequences, and its lead "
            "grows with their length.",
            refuted=f"On {where} a Transformer is not faster: on long sequences it trains more "
            "slowly than an LSTM of the same size."
            if lead.above(1.0) == "refuted"
            else f"On {where} its lead over an LSTM does not grow with the length of sequences.",
            undecided=f"On {where} the measured times vary too much for an answer.",
            numbers=f"At {short} tokens: {rounded(early.value)}×.{ahead}",
            changes="The answer may differ on parallel hardware, because a recurrent network "
            "leaves most of a GPU idle. It also depends on the implementations: in these runs "
            "torch has a fused kernel for the LSTM, but not for the GRU.",
        )
        word = all_of(lead.above(1.0), growth.above(1.0))
        return decide(word, lead, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        bodies = [body for body in found[0]["seconds"] if body != "again"]
        lengths = sorted(found[0]["seconds"]["lstm"], key=int)
        n_tokens = found[0]["n_tokens"]
        layers = found[0]["layers"]
        waits = {"lstm": True, "gru": True}
        return [
            LineChart(
                title="Training time per token", x="tokens per sequence",
                y="microseconds per token", log_x=True, log_y=True,
                hint=f"Forward and backward, {n_tokens:,} tokens per step; lower is better. "
                "Equal parameters.",
                series=[(NAMED[body], [(float(n), 1e6 * mean(found, "seconds", body, n) / n_tokens)
                                       for n in lengths]) for body in bodies],
            ),
            LineChart(
                title="Relative speed of the Transformer", x="tokens per sequence",
                y="relative speed", log_x=True, log_y=True,
                hint="Above 1 the Transformer is faster.",
                series=[(f"compared with {NAMED[body]}",
                         [(float(n), sum(leads(one, body)[n] for one in found) / len(found))
                          for n in lengths]) for body in bodies if body != "transformer"],
                levels=[("equally fast", 1.0)],
            ),
            TableFigure(
                title="Sequential steps", columns=["model", "parameters", *(f"{n} tokens"
                                                                          for n in lengths)],
                hint="Sequential steps in one forward pass, by sequence length.",
                rows=[[NAMED[body], mean(found, "parameters", body),
                       *(layers * (int(n) if waits.get(body) else 1) for n in lengths)]
                      for body in bodies],
            ),
        ]  # fmt: skip


EXPERIMENT = ParallelismExperiment()


def leads(one: SeedMeasurements, body: str) -> dict[str, float]:
    """Return the speed of the Transformer relative to another architecture, by sequence length."""
    own = one["seconds"]["transformer"]
    return {length: one["seconds"][body][length] / own[length] for length in own}


def crossing(found: Sequence[SeedMeasurements], lengths: Sequence[str]) -> str | None:
    """Return the shortest measured sequence length from which on the Transformer is always faster
    than the LSTM."""
    first = None
    for length in reversed(lengths):
        if sum(leads(one, "lstm")[length] for one in found) / len(found) <= 1:
            break
        first = length
    return first


def shape(
    body: str, width: int, n_layers: int = 2, vocab: int = VOCAB, **more: Any
) -> DecoderSettings:
    """Return the settings of a language model with this architecture, without dropout. `more`:
    further model settings."""
    usual = DecoderSettings(
        vocab_size=vocab, d_model=64, n_heads=4, d_ff=256, n_layers=n_layers, max_len=8192,
        block_layout="pre", positions="sinusoidal", init="paper", dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    made = with_body(usual, body, more.get("single_head", "every"))
    wide: dict[str, Any] = {} if "d_ff" in ignored_by({"body": body}) else {"d_ff": 4 * width}
    return replace(made, d_model=width, **wide, **more)


def width_of(
    body: str, n_parameters: int, n_layers: int = 2, vocab: int = VOCAB, by: int = 4, **more: Any
) -> int:
    """Return the width, a multiple of `by`, at which an architecture has about this number of
    parameters."""

    def extra(width: int) -> int:
        return (
            count_parameters(meta_model(shape(body, width, n_layers, vocab, **more))) - n_parameters
        )

    low, high = 2, 4  # in multiples
    while extra(by * high) < 0:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if extra(by * middle) < 0 else (low, middle)
    return by * min((low, high), key=lambda multiple: abs(extra(by * multiple)))


def speeds(
    lengths: Sequence[int], n_tokens: int, width: int, rounds: int, device: torch.device, seed: int
) -> dict[str, Any]:
    """Return the seconds per training step by architecture and sequence length, as medians over
    alternating rounds."""
    n = count_parameters(meta_model(shape("transformer", width)))
    models: dict[str, Decoder] = {}
    for body in ("transformer", "again", "lstm", "gru", "convolution"):
        kind = "transformer" if body == "again" else body
        made = build_model(shape(kind, width_of(kind, n)), seed=seed).to(device).train()
        assert isinstance(made, Decoder)
        models[body] = made
    learned = {body: learns(model, device, seed) for body, model in models.items()}
    seconds: dict[str, dict[str, float]] = {body: {} for body in models}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for length in lengths:
            steps = {body: step_of(model, length, n_tokens, device, seed)
                     for body, model in models.items()}  # fmt: skip
            taken = in_turns(steps, rounds, device)
            for body, values in taken.items():
                seconds[body][str(length)] = statistics.median(values)
    finally:
        torch.set_num_threads(threads)
    return {
        "device": hardware(device), "seconds": seconds, "learned": learned, "n_tokens": n_tokens,
        "layers": 2,
        "parameters": {body: count_parameters(model) for body, model in models.items()},
    }  # fmt: skip


def step_of(
    model: Decoder, length: int, n_tokens: int, device: torch.device, seed: int, vocab: int = VOCAB
) -> Callable[[], None]:
    """Return a function that computes the forward and backward pass of one training step."""
    random = torch.Generator().manual_seed(seed)
    tokens_N = torch.randint(vocab, (n_tokens,), generator=random).to(device)
    layout = Layout.of([length] * (n_tokens // length), device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model, tokens_N, layout).backward()

    return step


def loss_of(model: Decoder, tokens_N: Tensor, layout: Layout) -> Tensor:
    scores_NV = model.scores(model(tokens_N, layout))
    return F.cross_entropy(scores_NV, tokens_N.roll(-1))


def in_turns(
    steps: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the measured seconds of each step function, in alternating rounds after one warm-up
    round."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(rounds + 1):
        for name, step in steps.items():
            begun = now(device)
            step()
            if round_:
                found[name].append(now(device) - begun)
    return found


def now(device: torch.device) -> float:
    """Return a timestamp in seconds: CPU time of this process on a CPU, otherwise wall-clock
    time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def hardware(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "one core"


def learns(model: Decoder, device: torch.device, seed: int, steps: int = 20) -> float:
    """Return by how many nats a few training steps on one batch reduce the loss, as a check that
    the model learns."""
    random = torch.Generator().manual_seed(seed)
    tokens_N = torch.randint(VOCAB, (256,), generator=random).to(device)
    layout = Layout.of([32] * 8, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps + 1):
        loss = loss_of(model, tokens_N, layout)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses[0] - losses[-1]
