"""Examples to study a model on as it reads them, with the answers that are right where someone
knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headway.data.readers.lines import SEPARATOR
from headway.errors import DataError, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.hidden_rows import some_hidden
from headway.inside.capture.media import Media, exceeds
from headway.inside.capture.passages import Passage, passages
from headway.inside.capture.reading import Ask, Output, Reading, Stream, align_by_ctc, read
from headway.tasks.opened import Opened

N_EXAMPLES = 200
"""Examples that heads are judged by, unless asked."""

GAP_EVERY = 7
"""Tokens from one hidden token of a text to the next: about the 15 % of training."""


def examples(run: Opened, corpus: Corpus, n: int = N_EXAMPLES) -> list[Reading]:
    """The first `n` examples, each with the outputs that its loss is made of.

    Where the model writes: the given targets, else its own; where it continues: the text itself;
    where it fills gaps: hidden tokens, patches or moments; else the given labels, or the model's
    own answers. What is too long for the model is left out there and cut elsewhere.
    """
    corpus = corpus.first(n)
    if not corpus.lines:
        found = list(_seen(run, corpus))
    elif run.spec.in_words:
        if SEPARATOR in corpus.lines:  # it parts documents and is no text
            kept = [line for line in corpus.lines if line != SEPARATOR]
            corpus = Corpus.of_lines(kept)
        cut = passages(run, corpus, 1 << 40)
        found = [_taught(run, passage) for passage in cut if passage.n_tokens > 2][:n]
    else:
        found = list(_answered(run, corpus))
    found = [reading for reading in found if reading.outputs]
    if not found:
        raise DataError(f"no example of {corpus.name} is one that this model can read.")
    return found


def _taught(run: Opened, passage: Passage) -> Reading:
    """The outputs are what the text says."""
    spec = run.spec
    source, target = run.vocab.source, run.vocab.target
    ids = {name: list(tokens) for name, tokens in passage.ids.items()}
    pairs = spec.reads == "pairs"
    last = "target" if pairs else "text"
    if pairs:
        said = [*ids[last][1:], target.eos]
        rows = list(range(len(said)))
    elif spec.continues:
        said = ids[last][1:]
        rows = list(range(len(said)))
    else:
        assert target.mask is not None
        rows = list(range(min(3, len(ids[last]) - 2), len(ids[last]) - 1, GAP_EVERY))
        said = [ids[last][row] for row in rows]
        for row in rows:
            ids[last][row] = target.mask
    names = target.tokens(said)
    return Reading(
        text=source.decode(passage.ids["source" if pairs else "text"]),
        task=spec.name,
        streams={
            name: Stream.of(name, tokens, source if name == "source" else target)
            for name, tokens in ids.items()
        },
        outputs=tuple(Output(*one) for one in zip(rows, said, names, strict=True)),
        segments=(0,) * len(ids[last]) if spec.answers == "gaps" else (),
    )


def _answered(run: Opened, corpus: Corpus) -> Iterator[Reading]:
    error: UserError | None = None
    n_read = 0
    for number, example in enumerate(corpus.examples):
        try:
            reading = read(run, example)
        except UserError as too_long:
            error = too_long
            continue
        n_read += 1
        yield _right(run, reading, corpus, number)
    if not n_read and error is not None:
        raise error


def _right(run: Opened, reading: Reading, corpus: Corpus, number: int) -> Reading:
    """With the label that is right, where it is known, in the place of the model's own."""
    if corpus.labels is None or run.spec.answers != "label" or reading.direction:
        return reading
    label = corpus.labels[number]
    right = replace(reading.outputs[0], id=label, name=run.settings.labels[label])
    return replace(reading, outputs=(right,))


def _seen(run: Opened, corpus: Corpus) -> Iterator[Reading]:
    """Pictures, videos or recordings."""
    for number, media in enumerate(corpus.examples):
        assert isinstance(media, Media)
        if exceeds(run, media):
            continue
        if run.spec.answers == "gaps":
            yield with_hidden_rows(run, media, number)
        elif run.spec.labelled or corpus.targets is None:
            yield _right(run, read(run, media, _plainly(run)), corpus, number)
        elif len(Anatomy.of(run.model).stacks) > 1:
            yield read(run, media, Ask(output=corpus.targets[number]))
        else:
            tokens = run.vocab.target.encode(corpus.targets[number])
            yield align_by_ctc(run, media, tokens)


def _plainly(run: Opened) -> Ask:
    """Without a beam, which takes long and changes little."""
    return Ask(decode=replace(run.settings.decode, beam=1, n_best=1))


def with_hidden_rows(run: Opened, media: Media, number: int) -> Reading:
    """The outputs are what is hidden."""
    name = Anatomy.of(run.model).stacks[0].stream
    rows_R = some_hidden(run, [media], np.zeros(1, np.int64), number).rows_R
    assert rows_R is not None
    stream = media.stream(name)
    return Reading(
        text=media.name,
        task=run.settings.task,
        streams={name: stream},
        outputs=tuple(Output(row, -1, stream.pieces[row]) for row in rows_R.tolist()),
        media=media,
        hides=number,
    )
