"""`headway look`: one page, one terminal view or one server that shows what a model does inside."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import completion
from headway.cli.flags import DECODING, Flag, Named, check_fits, in_sections
from headway.cli.given import only_decoding, settings_of, tell
from headway.cli.head_names import head_given, number_given
from headway.errors import UserError
from headway.progress import Progress

if TYPE_CHECKING:
    from headway.inside.capture.interventions import Change
    from headway.inside.capture.media import Media
    from headway.inside.capture.reading import Ask
    from headway.tasks.opened import Opened
    from headway.tasks.specs import Spec

PORT = 8321


def _reads_text(spec: Spec) -> bool:
    return spec.modality == "text"


def _reads_media(spec: Spec) -> bool:
    return not _reads_text(spec)


def _writes(spec: Spec) -> bool:
    return spec.writes


FLAGS = (
    Flag("text", "What the model shall read.", "page", _reads_text, "TEXT"),
    Flag("file", "What it shall read: a picture, a video or a recording.", "page", _reads_media,
         "PATH"),
    Flag("against_text", "Another text to compare with.", "page", _reads_text, "TEXT"),
    Flag("against_file", "Another picture, video or recording to compare with.", "page",
         _reads_media, "PATH"),
    Flag("output", "What the model shall have written; it only reads it.", "page", _writes, "TEXT"),
    Flag("begin", "What its output has to begin with.", "page", _writes, "TEXT"),
    Flag("new", "Tokens that a language model adds. [24]", "page", lambda spec: spec.continues,
         "N", int),
    *DECODING,
)  # fmt: skip


def look(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder or a shipped model.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="decode.* settings.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="What the model shall read.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="The same: a picture, a video or a recording.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("look.html"),
    hide: Annotated[
        list[str] | None, typer.Option(help="A token that no other sees: 3, or target.2.")
    ] = None,
    off: Annotated[
        list[str] | None, typer.Option(help="A head that is switched off: cross.2.5.")
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(help="A file or folder like the training data: head studies and search."),
    ] = None,
    factors: Annotated[
        Path | None, typer.Option(help="A folder that `headway factors` made.")
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="A tuned lens (.safetensors), or a corpus to tune one on."),
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="A file of `headway truth`; else the one in RUN.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Another run to compare with.", autocompletion=completion.runs),
    ] = None,
    walk: Annotated[
        str | None, typer.Option(help="The token that is followed: cross.2.5.3, row last.")
    ] = None,
    pin: Annotated[
        list[int] | None, typer.Option(help="A row kept exactly in a map of a long text.")
    ] = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="Also make the maps that take long.")
    ] = False,
    checkpoints: Annotated[
        bool | None, typer.Option("--checkpoints/--no-checkpoints", help="Show the training.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="A folder for the numbers themselves.")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Print it; write no page.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it on 127.0.0.1 and answer to changes.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of --serve; 0 is any that is free.")] = PORT,
    *,
    named: Named,
) -> None:
    """Look inside a model while it reads: one HTML file that needs no network.

    Layers, heads and tokens count from 1. RUN may also be a folder that --trace wrote.
    """
    decode, page = in_sections(named)
    text, file = page.get("text"), _path(page.get("file"))
    against_text, against_file = page.get("against_text"), _path(page.get("against_file"))
    _check_together(terminal=terminal, serve=serve, trace=trace is not None)
    alone = "--serve" if serve else "--terminal" if terminal else None
    if alone is not None:
        others = {"against_text": against_text, "against_file": against_file}
        _check_alone(alone, against=against, **others, checkpoints=checkpoints)
    if against_text is not None and not against_text.strip():
        raise UserError("--against-text is empty. Give another text to compare with.")
    from headway.inside.capture.trace import FACTS
    from headway.inside.page.look import Extras
    from headway.tasks.opened import open_plain

    if (Path(run) / FACTS).is_file():
        if alone is not None:
            raise UserError(f"{run} is a trace, without a model: it is shown as a page only.")
        _show_trace(Path(run), out, text, file)
        return
    loaded = open_plain(run)
    subject = _subject(loaded, text, file, serve=serve)
    check_fits(decode, DECODING, loaded.spec)
    given = _ask(loaded, words or [], decode, page)
    changed = _change(loaded, hide or [], off or [])
    extras = Extras(
        corpus=corpus,
        factors=factors,
        tuned=_tuned(loaded, tuned, out),
        truth=truth,
        walk=None if walk is None else _place(walk),
        pins=tuple(row - 1 for row in pin or ()),
        slow=slow,
        checkpoints=checkpoints,
    )
    if serve:
        from headway.inside.page.server import serve as start

        start(loaded, subject, given, changed, extras=extras, port=port, note=_note)
        return
    assert subject is not None
    if terminal:
        _print(loaded, subject, given, changed, extras)
        return
    other = _other(loaded, against_text, against_file)
    _write(loaded, subject, given, changed, extras, out, trace, against, other)


def _subject(
    run: Opened, text: str | None, file: Path | None, *, serve: bool
) -> str | Media | None:
    """What the model shall read; nothing for a server of texts, which has one to begin with."""
    from headway.inside.capture.media import check_given, media_settings, open_media

    if serve and text is None and file is None and media_settings(run) is None:
        return None
    check_given(run, text, file)
    return text if file is None else open_media(run, file)


def _other(run: Opened, text: str | None, file: Path | None) -> str | Media | None:
    if text is None and file is None:
        return None
    return _subject(run, text, file, serve=False)


def _write(
    run: Opened, text: str | Media, ask: Ask, change: Change, extras: Any, out: Path,
    trace: Path | None, against: str | None, against_text: str | Media | None,
) -> None:  # fmt: skip
    from dataclasses import fields

    from headway.inside.capture.trace import trace as traced
    from headway.inside.page.look import look as make

    more = {field.name: getattr(extras, field.name) for field in fields(extras)}
    with Progress().stage("looking"):
        page = make(
            run, text, ask, change, against=against, against_text=against_text, note=_note, **more
        )
    page.save(out)
    if trace is not None:
        traced(run, text, ask, change, gradients=True, beam=True).save(trace)
        _note(f"numbers in {trace}")
    _note(f"{len(page.html.encode()) / 1e6:.2f} MB in {out}, open it in a browser")


def _print(run: Opened, text: str | Media, ask: Ask, change: Change, extras: Any) -> None:
    from headway.inside.page.look import looked_at
    from headway.inside.page.terminal import show

    print(show(looked_at(run, text, ask, change, extras), sys.stdout))


def _show_trace(folder: Path, out: Path, text: str | None, file: Path | None) -> None:
    from headway.inside.capture.trace import Trace
    from headway.inside.page.look import look as make

    if text is not None or file is not None:
        option = "--text" if file is None else "--file"
        raise UserError(f"{folder} is a trace, which has its text already. Leave {option} out.")
    make(Trace.load(folder)).save(out)
    _note(f"the trace in {folder} is shown by {out}")


def _ask(run: Opened, words: list[str], decode: Named, page: Named) -> Ask:
    from headway.inside.capture.reading import Ask

    only_decoding(words)
    new = page.get("new", 24)
    if new < 0:
        raise UserError(f"--new {new} must be 0 or more.")
    found = settings_of(run.folder, words, decode).decode if words or decode else None
    if found is not None and run.spec.continues:
        named = {*decode, *(word.partition("=")[0].removeprefix("decode.") for word in words)}
        if not named & {"beam", "sample"}:
            found = replace(found, sample=False, beam=1)
    return Ask(output=page.get("output"), begin=page.get("begin", ""), decode=found, new=new)


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _change(run: Opened, hide: list[str], off: list[str]) -> Change:
    from headway.inside.capture.anatomy import Anatomy
    from headway.inside.capture.interventions import Change

    anatomy = Anatomy.of(run.model)
    hidden = set()
    for word in hide:
        stream, dot, place = word.rpartition(".")
        hidden.add((stream if dot else anatomy.stacks[0].stream, number_given(place, word) - 1))
    heads = set()
    for word in off:
        kind, layer, head = head_given(word, "--off")
        anatomy.head(kind, layer, head)
        heads.add((kind, layer, head))
    return Change(frozenset(hidden), frozenset(heads))


def _place(word: str) -> tuple[str, int, int, int]:
    kind, *numbers = word.split(".")
    if len(numbers) != 3:
        raise UserError(f"--walk {word!r}: write kind.layer.head.row, as in cross.2.5.3.")
    layer, head, row = (number_given(number, word) - 1 for number in numbers)
    return kind, layer, head, row


def _tuned(run: Opened, path: Path | None, out: Path) -> Path | None:
    """A file of a tuned lens; tuned now, beside the page, if a corpus is given instead."""
    if path is None or path.suffix == ".safetensors":
        return path
    from headway.inside.capture.corpus import Corpus
    from headway.inside.measure.lens import tune

    place = out.with_suffix(".lens.safetensors")
    with Progress().stage("tuning the lens"):
        tune(run, Corpus.of(path, run)).save(place)
    _note(f"lens tuned on {path}, kept in {place}")
    return place


def _check_together(**given: bool) -> None:
    asked = [f"--{name}" for name, on in given.items() if on]
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} do not go together. Choose one.")


def _check_alone(name: str, **given: object) -> None:
    for option, value in given.items():
        if value is not None:
            raise UserError(
                f"--{option.replace('_', '-')} has no effect with {name}, only on a page. Leave "
                "one of them out."
            )


_note = partial(tell, "look")
