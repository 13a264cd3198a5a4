"""One forward pass, looked at from all sides: flat batches, the cache, a look inside."""

from __future__ import annotations

import torch

from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.tap import record
from headway.settings.presets import preset

torch.manual_seed(0)
model = build_model(preset("transformer-tiny")).eval()
assert isinstance(model, Seq2Seq)

# Three sentences of 5, 2 and 7 tokens, side by side. Nothing is padded.
sources = [torch.randint(10_000, (n,)) for n in (5, 2, 7)]
targets = [torch.randint(10_000, (n,)) for n in (4, 3, 6)]
source = Layout.of([len(x) for x in sources])
target = Layout.of([len(x) for x in targets])

with torch.inference_mode():
    memory = model.encode(torch.cat(sources), source)
    x_ND = model.decode(torch.cat(targets), target, memory)
    scores_NV = model.scores(x_ND)
    print(f"source rows {source.n_rows}, target rows {target.n_rows}, scores {(*scores_NV.shape,)}")

    alone = model(sources[1], Layout.of([2]), targets[1], Layout.of([3]))
    rows = target.split(x_ND)[1]
    print(f"the second sentence alone differs by {(rows - alone).abs().max():.1e}")

    cache = Cache(n_layers=4, n_rows=3, capacity=8)
    steps = []
    for t in range(3):
        tokens_N = torch.stack([x[t] for x in targets])
        steps.append(model.decode(tokens_N, cache.layout(1), memory, cache))
    first_three = torch.stack([row[:3] for row in target.split(x_ND)])
    print(f"token by token differs by {(torch.stack(steps, 1) - first_three).abs().max():.1e}")

    with record(model, "cross.weights") as seen:
        model.decode(torch.cat(targets), target, memory)
    name, calls = next(iter(seen.items()))
    weights_HTS = calls[0][1]
    print(f"{name} of the second sentence, head 0 (3 target tokens × 2 source tokens):")
    for row in weights_HTS[0].tolist():
        print("   " + "  ".join(f"{weight:.2f}" for weight in row))
