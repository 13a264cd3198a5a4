"""Texts to study a model on, read with the answers that are right where someone knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from headway.config.data import DataSettings
from headway.data.documents import SEPARATOR
from headway.data.example import Source, TextKind
from headway.data.pairs import read_pairs
from headway.errors import DataError, FolderError, UserError
from headway.inside.corpus import Corpus, Passage, passages
from headway.inside.media import media_settings, what_it_reads
from headway.inside.reading import Output, Reading, Stream, read
from headway.tasks.intake_text import texts_of
from headway.tasks.label_data import labelled_examples
from headway.tasks.opened import Opened
from headway.tasks.table import kind_of

N_EXAMPLES = 200
"""Texts that heads are judged by, unless asked."""

GAP_EVERY = 7
"""Tokens from one hidden token of a text to the next: about the 15 % of training."""


def examples(
    run: Opened,
    corpus: Corpus,
    n: int = N_EXAMPLES,
    labels: Sequence[int] | None = None,
) -> list[Reading]:
    """The first `n` texts, each with the outputs that its loss is made of.

    translate: the given targets, else the run's own; complete: the text itself; fill: hidden
    tokens; classify, tag, embed: the model's own answers, or the `labels` of the texts. What is
    too long for the model is left out there and cut elsewhere.
    """
    corpus = corpus.first(n)
    if SEPARATOR in corpus.lines:  # it parts documents and is no text
        kept = [line for line in corpus.lines if line != SEPARATOR]
        corpus = Corpus.of_lines(kept)
    if run.spec.in_words:
        cut = passages(run, corpus, 1 << 40)
        found = [_taught(run, passage) for passage in cut if passage.n_tokens > 2][:n]
    else:
        found = list(_answered(run, corpus, labels))
    found = [reading for reading in found if reading.outputs]
    if not found:
        raise DataError(f"no text of {corpus.name} is one that this model can read.")
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


def _answered(run: Opened, corpus: Corpus, labels: Sequence[int] | None) -> Iterator[Reading]:
    error: UserError | None = None
    n_read = 0
    for number, line in enumerate(corpus.lines):
        try:
            reading = read(run, line)
        except UserError as too_long:
            error = too_long
            continue
        n_read += 1
        if labels is not None and run.spec.answers == "label":
            label = labels[number]
            right = replace(reading.outputs[0], id=label, name=run.settings.labels[label])
            reading = replace(reading, outputs=(right,))
        yield reading
    if not n_read and error is not None:
        raise error


def from_files(run: Opened, files: DataSettings, n: int = N_EXAMPLES) -> list[Reading]:
    """Of test data in the form in which `headway evaluate` takes it."""
    if run.spec.reads == "pairs":
        pairs = list(read_pairs(files.source, files.target, files.pairs, files))
        if not pairs:
            raise DataError("the test set is empty.")
        sources, targets = zip(*pairs[:n], strict=True)
        return examples(run, Corpus("the test set", sources, targets), n)
    if run.spec.answers == "label":
        texts, labels = labelled_examples(run.settings, files)
        lines = ["\t".join(part for part in text if part) for text in texts[:n]]
        return examples(run, Corpus("the test set", tuple(lines)), n, labels[:n].tolist())
    if run.spec.answers == "tags":
        items = Source("tagged", replace(run.settings, data=files), files.text)
        return examples(run, Corpus.of_lines(item.text("text") for item in islice(items, n)), n)
    if files.pairs:
        pairs = list(islice(read_pairs((), (), files.pairs, files), n))
        return examples(run, Corpus.of_lines(first for first, _ in pairs), n)
    if run.spec.reads == "documents":
        kind: TextKind = "fields" if files.fields else "documents"
        items = Source(kind, replace(run.settings, data=files), files.text)
        documents = (
            " ".join(filter(None, map(item.text, items.columns))) for item in islice(items, n)
        )
        return examples(run, Corpus.of_lines(documents), n)
    return examples(run, Corpus.of(files.text, run), n)


def check_text(run: Opened) -> None:
    """Heads of runs that read pictures or recordings cannot be judged by texts."""
    if media_settings(run) is not None:
        raise UserError(
            f"{run.folder.name} reads {what_it_reads(run)}: heads are judged, and taken out, by "
            "texts only so far. `headway look` shows what they do in one file."
        )


def own_examples(run: Opened, n: int = N_EXAMPLES) -> list[Reading]:
    """Of the validation data that a run keeps in its folder."""
    if not (run.folder / "data").is_dir():
        give = "--source FILE --target FILE" if run.spec.reads == "pairs" else "--text FILE"
        raise FolderError(
            f"{run.folder.name} keeps no data of its own to judge heads by. Give some: {give}."
        )
    prepared = kind_of(run.settings).load_prepared(run.folder)
    if run.spec.reads == "pairs":
        sources, targets = zip(*prepared.valid_pairs[:n], strict=True)
        return examples(run, Corpus("its validation data", sources, targets), n)
    texts = texts_of(prepared.valid, prepared.tokenizer, n)
    lines = ["\t".join(part for part in text if part) for text in texts]
    kept = [number for number, line in enumerate(lines) if line.strip()]
    labels = prepared.valid["label"].tolist() if "label" in prepared.valid else None
    return examples(
        run,
        Corpus.of_lines(lines[number] for number in kept),
        n,
        None if labels is None else [labels[number] for number in kept],
    )
