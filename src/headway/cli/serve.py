"""`headway serve`: runs of any task as an HTTP service, with a page to try them on."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    Device,
    Engine,
    check_engine,
    say,
    settings_of,
    split_words,
    tell,
)
from headway.errors import ConfigError, UserError, needs
from headway.settings.folder import run_folder

if TYPE_CHECKING:
    from headway.run import Run
    from headway.serve.limits import Limits

PORT = 8080
_tell = partial(tell, "serve")


def serve(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN... [KEY=VALUE]...",
            help="Run folders or shipped models; serve.* limits and decode.* settings.",
            autocompletion=completion.runs,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; others than this machine need keys.")]
    = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 is any that is free.")] = PORT,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may ask: keys that --new-key made.")
    ] = None,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add a key to --key-file, print it, serve nothing."),
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN=de-en", help="Between which languages a translator translates."),
    ] = None,
    engine: Engine = "torch",
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights in 8 bits, on a CPU: quicker, nearly the same.")
    ] = False,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No line a request.")] = False,
) -> None:  # fmt: skip
    """Serve models over HTTP, each under its name: `/` is a page to try them on.

    OpenAI's and LibreTranslate's clients work unchanged; `/v1/predict` asks any of them. SIGTERM
    lets accepted requests finish.
    """
    if new_key is not None:
        _make_key(key_file, new_key)
        return
    words = runs or []
    names, changes = split_words(words)
    if not names:
        raise UserError("say what to serve: headway serve RUN. `headway models` lists runs.")
    check_engine(engine, device)
    if int8 and engine != "torch":
        raise UserError(f"--int8 has no effect with --engine {engine}, which runs what it holds.")
    for module in ("starlette", "uvicorn", "python_multipart"):
        needs(module, "serve")
    from headway.serve import server
    from headway.serve.application import make, service_of
    from headway.serve.keys import Keys
    from headway.serve.memory import share_arenas

    if key_file is None and not server.is_loopback(host):
        raise UserError(
            f"--host {host} would let everybody in. Make a key (headway serve --key-file keys.txt "
            "--new-key me) and serve with --key-file keys.txt, or stay on 127.0.0.1."
        )
    keys = None if key_file is None else Keys.read(key_file)
    limits = _limits([word for word in changes if word.startswith("serve.")])
    decode = [word for word in changes if not word.startswith("serve.")]
    opened = [_opened(name, decode, engine, device, int8=int8) for name in names]
    known = _languages(languages or [], [run.name for run in opened])
    app = make(
        opened, keys, limits, languages=known,
        hosts=server.own_names(host) if keys is None else None,
    )  # fmt: skip
    share_arenas()
    listening = server.bind(host, port)
    url = server.url_of(host, listening)
    if not quiet:
        server.log_to_stderr()
    server.serve(
        app, listening, started=partial(_started, app, url),
        ready=partial(_ready, app, url, keys is not None),
    )  # fmt: skip
    _tell("stopped.")
    if not service_of(app).ends_within(0.1):
        # A computation that nobody waits for any more; Python would abort in the middle of it.
        os._exit(0)


def _make_key(path: Path | None, name: str) -> None:
    if path is None:
        raise UserError("say where the key goes: --key-file keys.txt.")
    from headway.serve.keys import new_key

    print(new_key(path, name))
    _tell(f"this key of {name} is shown once; {path} has only its hash.")


def _limits(words: Sequence[str]) -> Limits:
    from headway.serve.limits import Limits
    from headway.settings.load import from_dict, parse_override

    values: dict[str, Any] = {}
    for word in words:
        [_, *names], value = parse_override(word)
        values[".".join(names)] = value
    return from_dict(Limits, values, "serve.")


def _opened(name: str, words: Sequence[str], engine: str, device: str, *, int8: bool) -> Run:
    from headway.run import Run

    folder = run_folder(name)
    settings = settings_of(folder, words, {"precision": "int8"} if int8 else {})
    return Run([name], device=device, engine=engine, settings=settings)


def _languages(words: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, str]]:
    found = {}
    for word in words:
        name, _, pair = word.rpartition("=")
        codes = pair.split("-")
        if name not in names or len(codes) != 2 or not all(codes):
            raise ConfigError(
                f"--languages {word!r}: write RUN=de-en with one of {', '.join(names)}."
            )
        found[name] = (codes[0].lower(), codes[1].lower())
    return found


def _started(app: Any, url: str) -> None:
    """When connections are answered: where, and what."""
    from headway.serve.application import service_of

    workers = service_of(app).workers.values()
    _tell(f"{', '.join(f'{one.name} ({one.run.task})' for one in workers)} at {url}")


def _ready(app: Any, url: str, needs_key: bool) -> None:
    """When the models are read: a line that works."""
    from headway.serve.application import service_of
    from headway.serve.memory import resident_bytes

    workers = service_of(app).workers.values()
    held = ", ".join(f"{one.name} {one.n_bytes / 1e6:,.0f}" for one in workers if one.n_bytes)
    if held:
        _tell(f"MB of weights: {held}; of the process: {resident_bytes() / 1e6:,.0f}")
    first = next(iter(workers))
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    if first.spec.modality == "text":
        body = json.dumps({"model": first.name, "input": _example(first.run)})
        send = f"-H 'Content-Type: application/json' -d '{body}'"
    else:
        send = f"-F model={first.name} -F file=@FILE"
    say(f"  curl {url}/v1/predict{key} {send}")
    say(f"  a page to try it on: {url}/")


def _example(run: Run) -> Any:
    if fields := run.settings.data.fields:
        return {fields[0]: "A text."}
    if run.settings.data.other_field:
        return {"text": "A text.", "other": "Another."}
    return "Once upon a time" if run.settings.decode.sample else "Guten Morgen."
