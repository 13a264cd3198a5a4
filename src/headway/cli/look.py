"""`headway look`: inspect a model in an HTML page, in the terminal or with a server."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.data_arguments import (
    RunArgument,
    SettingsArgument,
    only_decoding,
    print_note,
    settings_of,
)
from headway.cli.flags import DECODING, Flag, OptionValues, check_fits, in_sections
from headway.cli.head_names import head_given, number_given
from headway.errors import UserError, needs
from headway.progress import Progress
from headway.settings.renamed import key_of

if TYPE_CHECKING:
    from headway.inside.capture.interventions import Intervention
    from headway.inside.capture.media import MediaInput
    from headway.inside.capture.reading import GenerationOptions
    from headway.inside.page import look as pages
    from headway.run import Run
    from headway.specs.tasks import Spec
    from headway.tasks.loaded_run import LoadedRun

PORT = 8321
"""Default port of the page. It differs from that of `headway serve`, so that both can run."""


def _reads_text(spec: Spec) -> bool:
    return spec.is_text


def _reads_media(spec: Spec) -> bool:
    return not spec.is_text


def _writes(spec: Spec) -> bool:
    return spec.writes


def _any(spec: Spec) -> bool:
    return True


FLAGS = (
    Flag("text", "The input text.", "page", _reads_text, "TEXT"),
    Flag("file", "The input file: an image, video or audio file.", "page", _reads_media,
         "PATH", Path),
    Flag("output", "A fixed output to analyse, instead of the one that the model generates.",
         "page", _writes, "TEXT"),
    Flag("begin", "A prefix that the output is forced to start with.", "page", _writes, "TEXT"),
    Flag("new", "Number of tokens that a language model generates. [24]",
         "page", lambda spec: spec.continues,
         "N", int),
    Flag("hide", "Mask a token, so that no other token attends to it: 3, or target.2.",
         "page", _any, "TOKEN",
         several=True),
    Flag("off", "Switch off an attention head: cross.2.5.", "page", _any, "HEAD", several=True),
    Flag("against", "Another run to compare with.", "page", _any, "RUN"),
    Flag("against_text", "Another text to compare with.", "page", _reads_text, "TEXT"),
    Flag("against_file", "Another image, video or audio file to compare with.", "page",
         _reads_media, "PATH", Path),
    Flag("corpus", "Data like the training data, for head statistics and search.", "page",
         _any, "PATH"),
    Flag("factors", "A folder written by `headway factors`.", "page", _any, "FOLDER", Path),
    Flag("tuned", "A tuned lens (.safetensors), or a corpus to train one on.", "page", _any, "FILE",
         Path),
    Flag("truth", "A file written by `headway truth`. Default: the one in RUN.",
         "page", _any, "FILE", Path),
    Flag("walk", "Follow one token: kind.layer.head.row, as in cross.2.5.3.",
         "page", _any, "PLACE"),
    Flag("pin", "Show this row exactly in the reduced map of a long input.",
         "page", _any, "N", int, True),
    Flag("slow", "Also compute the slow maps.", "page", _any, type=bool),
    *(flag for flag in DECODING if flag.name != "precision"),  # pages are made in fp32
)  # fmt: skip


def look(
    run: RunArgument,
    words: SettingsArgument = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("look.html"),
    checkpoints: Annotated[
        bool | None,
        typer.Option(
            "--checkpoints/--no-checkpoints",
            help="Show how the model changed over its checkpoints.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Also write the numbers to this folder.")
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Print to the terminal instead of writing a page.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve an interactive page on 127.0.0.1.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port for --serve; 0 picks a free one.")] = PORT,
    *,
    named: OptionValues,
) -> None:
    """Look inside a model: one HTML page that works offline.

    The page shows what the model computes for one input.

    Layers, heads and tokens count from 1. RUN may also be a folder that --trace wrote.
    """
    decode, page = in_sections(named)
    _check_together(page, checkpoints, terminal=terminal, serve=serve, trace=trace is not None)
    _check_words(words or [])
    from headway.inside.capture import trace as traces
    from headway.inside.page import look as pages
    from headway.tasks.loaded_run import open_plain

    if (Path(run) / traces.FACTS).is_file():
        if serve or terminal:
            raise UserError(
                f"{run} is a trace, which contains no model. --serve and --terminal need a model: "
                "name a run instead."
            )
        _show_trace(Path(run), out, page)
        return
    held = None
    if serve:
        for module in ("starlette", "uvicorn", "python_multipart"):
            needs(module, "serve")
        from headway.run import Run

        held = Run([run], device="cpu", precision="fp32")
    loaded = open_plain(run) if held is None else held.opened
    text = _subject(loaded, page, serve=serve)
    check_fits(decode, DECODING, loaded.spec)
    ask = _ask(loaded, words or [], decode, page)
    change = _change(loaded, page.get("hide", []), page.get("off", []))
    plain = {name: page[name] for name in ("corpus", "factors", "truth", "slow") if name in page}
    extras = pages.LookOptions(
        **plain, checkpoints=checkpoints, tuned=_tuned(loaded, page.get("tuned"), out),
        walk=_place(page["walk"]) if "walk" in page else None,
        pins=tuple(row - 1 for row in page.get("pin", ())),
    )  # fmt: skip
    if held is not None:
        _serve(held, text, ask, change, extras, port)
        return
    assert text is not None
    if terminal:
        from headway.inside.page.terminal import format_trace

        print(format_trace(pages.prepare_look(loaded, text, ask, change, extras), sys.stdout))
        return
    other = None
    if {"against_text", "against_file"} & page.keys():
        other = _subject(loaded, page, "against_")
    with Progress().stage("computing the page"):
        found = pages.look(
            loaded, text, ask, change, against=page.get("against"), against_text=other, note=_note,
            **{one.name: getattr(extras, one.name) for one in fields(extras)},
        )  # fmt: skip
    found.save(out)
    if trace is not None:
        traces.trace(loaded, text, ask, change, gradients=True, beam=True).save(trace)
        _note(f"wrote the numbers to {trace}")
    _note(f"wrote {out} ({len(found.html.encode()) / 1e6:.2f} MB); open it in a browser")


def _serve(
    run: Run,
    text: str | MediaInput | None,
    ask: GenerationOptions,
    change: Intervention,
    extras: pages.LookOptions,
    port: int,
) -> None:
    """Serve the page on this machine only, until Ctrl-C. The server is that of `headway serve`,
    with the page at `/`."""
    from headway.serve import server
    from headway.serve.application import create_app
    from headway.serve.limits import Limits
    from headway.serve.look import LookService, live_page

    listening = server.bind(server.LOOPBACK[0], port)
    html, live = live_page(run, text, ask, change, extras)
    looks = LookService(Limits().looks, {run.name: live})
    app = create_app([run], hosts=server.LOOPBACK, home=html, looks=looks)
    url = server.url_of(server.LOOPBACK[0], listening)
    said = partial(_note, f"serving {run.name} at {url}/ (Ctrl-C to stop)")
    server.serve(app, listening, started=said)


def _check_words(words: list[str]) -> None:
    """Raise an error for words that are not `decode.*` settings, because the inputs of `look` are
    options, not arguments."""
    for word in words:
        if "=" not in word:
            raise UserError(
                f"{word!r} is not a setting. Give the input as --file PATH or --text TEXT."
            )
    only_decoding(words)


def _subject(
    run: LoadedRun, page: OptionValues, which: str = "", *, serve: bool = False
) -> str | MediaInput | None:
    """Return the input to look at: the given one, or the example that comes with the model.

    Return None for a server with a text model that has no example. Its page then starts with a
    greeting.
    """
    from headway.inside.capture.media import check_input_kind, example_input, open_media
    from headway.settings.run import media_settings

    text, file = page.get(f"{which}text"), page.get(f"{which}file")
    if text is None and file is None and not which:
        if (example := example_input(run)) is not None:
            _note(f"no input given: using the example of {run.folder.name}")
            return example
        if serve and media_settings(run.settings) is None:
            return None
    check_input_kind(run, text, file)
    return text if file is None else open_media(run, file)


def _show_trace(folder: Path, out: Path, page: OptionValues) -> None:
    from headway.inside.capture.trace import Trace
    from headway.inside.page.look import look as make_page

    for name in ("text", "file"):
        if name in page:
            raise UserError(
                f"{folder} is a trace, which already contains its input. Leave --{name} out."
            )
    make_page(Trace.load(folder)).save(out)
    _note(f"wrote {out} from the trace in {folder}")


def _ask(
    run: LoadedRun, words: list[str], decode: OptionValues, page: OptionValues
) -> GenerationOptions:
    from headway.inside.capture.reading import NEW_TOKENS, GenerationOptions, greedy_by_default

    new = page.get("new", NEW_TOKENS)
    if new < 0:
        raise UserError(f"--new must be 0 or more, not {new}.")
    found = settings_of(run.folder, words, decode).decode if words or decode else None
    if found is not None and run.spec.continues:
        named = {*decode, *(key_of(word).removeprefix("decode.") for word in words)}
        found = greedy_by_default(named, found)
    return GenerationOptions(
        output=page.get("output"), prefix=page.get("begin", ""), decode=found, max_new_tokens=new
    )


def _change(run: LoadedRun, hide: list[str], off: list[str]) -> Intervention:
    from headway.inside.capture.anatomy import Anatomy
    from headway.inside.capture.interventions import Intervention

    anatomy = Anatomy.of(run.model)
    hidden = set()
    for word in hide:
        stream, dot, place = word.rpartition(".")
        hidden.add((stream if dot else anatomy.stacks[0].stream, number_given(place, word) - 1))
    heads = set()
    for word in off:
        heads.add(head := head_given(word, "--off"))
        anatomy.head(*head)  # raises if there is no such head
    return Intervention(frozenset(hidden), frozenset(heads))


def _place(word: str) -> tuple[str, int, int, int]:
    kind, *numbers = word.split(".")
    if len(numbers) != 3:
        raise UserError(
            f"--walk {word!r} is not valid. Write kind.layer.head.row, for example cross.2.5.3."
        )
    layer, head, row = (number_given(number, word) - 1 for number in numbers)
    return kind, layer, head, row


def _tuned(run: LoadedRun, path: Path | None, out: Path) -> Path | None:
    """Return the file of a tuned lens. If a corpus is given, train the lens and save it next to the
    page."""
    if path is None or path.suffix == ".safetensors":
        return path
    from headway.inside.capture.corpus import Corpus
    from headway.inside.measure.lens import tune

    place = out.with_suffix(".lens.safetensors")
    with Progress().stage("training the tuned lens"):
        tune(run, Corpus.of(path, run)).save(place)
    _note(f"trained the lens on {path}, saved in {place}")
    return place


def _check_together(page: OptionValues, checkpoints: bool | None, **ways: bool) -> None:
    asked = [f"--{name}" for name, on in ways.items() if on]
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} cannot be combined. Give only one.")
    of_pages = [f"--{name.replace('_', '-')}" for name in page if name.startswith("against")]
    of_pages += ["--checkpoints"] if checkpoints is not None else []
    if (ways["serve"] or ways["terminal"]) and of_pages:
        raise UserError(
            f"{of_pages[0]} cannot be combined with {asked[0]}: {of_pages[0]} needs a page that is "
            "written to a file. Leave one of them out."
        )
    if not page.get("against_text", "x").strip():
        raise UserError("--against-text is empty. Give a text to compare with.")


_note = partial(print_note, "look")
