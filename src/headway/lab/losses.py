"""Loss and accuracy of a model on given targets with teacher forcing: each word is predicted from
the correct words before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from headway.inside.measure.truth import AlignedPair
from headway.nn.eval_mode import evaluating
from headway.nn.layout import Layout
from headway.run import Run


class TeacherForcedScore(NamedTuple):
    nats: float
    """Loss in nats per target token, including the end token."""

    accuracy: float
    """Fraction of tokens for which the most likely prediction is correct.

    End tokens are excluded, because a model that has learned only the lengths predicts them.
    """


@torch.no_grad()
def score_pairs(run: Run, pairs: Sequence[AlignedPair]) -> TeacherForcedScore:
    """Return the loss and accuracy of a translator on given translations."""
    words: Any = run.opened.words
    model: Any = run.model
    sources = [words.source.as_source(words.source.encode(pair.source)) for pair in pairs]
    targets = [words.target.encode(pair.target) for pair in pairs]
    given_N = torch.tensor([token for one in targets for token in (words.target.bos, *one)])
    right_N = torch.tensor([token for one in targets for token in (*one, words.target.eos)])
    with evaluating([model]):
        source_M, layout = model.source_front.collate(sources, run.device)
        lengths = Layout.of([len(one) + 1 for one in targets], run.device)
        x_ND = model(source_M, layout, given_N.to(run.device), lengths)
        logs_NV = model.scores(x_ND).float().log_softmax(-1).cpu()
    nats_N = -logs_NV.gather(1, right_N[:, None])
    hits_N = (logs_NV.argmax(-1) == right_N).float()
    return TeacherForcedScore(
        float(nats_N.mean()), float(hits_N[right_N != words.target.eos].mean())
    )


@torch.no_grad()
def score_continuations(run: Run, texts: Sequence[tuple[str, str]]) -> TeacherForcedScore:
    """Return the loss and accuracy of a language model on the second part of each text, given the
    first part."""
    words, model = run.tokenizer, run.model
    firsts = [words.as_text(words.encode(first))[:-1] for first, _ in texts]
    wholes = [
        [*first, *words.encode(second), words.eos]
        for first, (_, second) in zip(firsts, texts, strict=True)
    ]
    given_N = torch.tensor([token for one in wholes for token in one[:-1]])
    right_N = torch.tensor([token for one in wholes for token in one[1:]])
    counts_N = torch.tensor([place >= len(first) - 1 for first, one in zip(firsts, wholes,
                             strict=True) for place in range(len(one) - 1)])  # fmt: skip
    with evaluating([model]):
        layout = Layout.of([len(one) - 1 for one in wholes], run.device)
        scores: Any = model.scores
        logs_NV = scores(model(given_N.to(run.device), layout)).float().log_softmax(-1).cpu()
    nats_N = -logs_NV.gather(1, right_N[:, None]).squeeze(1)
    hits_N = (logs_NV.argmax(-1) == right_N).float()
    words_N = counts_N & (right_N != words.eos)
    return TeacherForcedScore(float(nats_N[counts_N].mean()), float(hits_N[words_N].mean()))
