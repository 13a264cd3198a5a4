"""`headway serve`: serve runs of any task over HTTP, with a page to try them."""

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
    DeviceOption,
    EngineOption,
    check_engine,
    print_note,
    print_to_stderr,
    settings_of,
    split_words,
)
from headway.errors import ConfigError, Edge, UserError, called_by, needs
from headway.settings.folder import run_folder

if TYPE_CHECKING:
    from headway.run import Run
    from headway.serve.limits import Limits

PORT = 8080
"""Default port: the customary port of web services that do not run as root."""

_print_note = partial(print_note, "serve")


def serve(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|KEY=VALUE",
            help="Run folders or shipped models; serve.* and decode.* settings.",
            autocompletion=completion.runs,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on. Other machines need --key-file.")]
    = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = PORT,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a key from this file (see --new-key)."),
    ] = None,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add a key to --key-file, print it and exit."),
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN=de-en", help="Source and target language of a translation run."),
    ] = None,
    engine: EngineOption = "torch",
    int8: Annotated[
        bool, typer.Option("--int8", help="8-bit weights: faster on a CPU, almost the same output.")
    ] = False,
    device: DeviceOption = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log requests.")] = False,
) -> None:  # fmt: skip
    """Serve models over HTTP by name, with a page at `/` to try them.

    OpenAI and LibreTranslate clients work unchanged. `/v1/predict` works for every model. On
    SIGTERM, accepted requests are finished.
    """
    if new_key is not None:
        _make_key(key_file, new_key)
        return
    words = runs or []
    names, changes = split_words(words)
    if not names:
        raise UserError("no run given. Name a run: headway serve RUN. `headway models` lists runs.")
    check_engine(engine, device, int8=int8)
    for module in ("starlette", "uvicorn", "python_multipart"):
        needs(module, "serve")
    from headway.serve import server
    from headway.serve.application import create_app, service_of
    from headway.serve.keys import Keys
    from headway.serve.memory import share_arenas

    if key_file is None and not server.is_loopback(host):
        raise UserError(
            f"--host {host} without --key-file would accept requests from anyone. Create a key "
            "(headway serve --key-file keys.txt --new-key me) and add --key-file keys.txt, or use "
            "--host 127.0.0.1."
        )
    keys = None if key_file is None else Keys.read(key_file)
    limits = _limits([word for word in changes if word.startswith("serve.")])
    decode = [word for word in changes if not word.startswith("serve.")]
    opened = [_opened(name, decode, engine, device, int8=int8) for name in names]
    known = _languages(languages or [], [run.name for run in opened])
    app = create_app(
        opened, keys, limits, languages=known,
        hosts=server.loopback_hosts(host) if keys is None else None,
    )  # fmt: skip
    share_arenas()
    listening = server.bind(host, port)
    url = server.url_of(host, listening)
    if not quiet:
        server.log_to_stderr()
    with called_by(Edge.HTTP):
        server.serve(
            app, listening, started=partial(_started, app, url),
            ready=partial(_ready, app, url, keys is not None),
        )  # fmt: skip
    _print_note("stopped.")
    if not service_of(app).join(0.1):
        # Computations of cancelled requests may still be running in threads. A normal exit would
        # abort in them.
        os._exit(0)


def _make_key(path: Path | None, name: str) -> None:
    if path is None:
        raise UserError("--new-key needs a file that stores the key. Add --key-file keys.txt.")
    from headway.serve.keys import new_key

    print(new_key(path, name))
    _print_note(f"added the key for {name}. It is shown only once: {path} stores only its hash.")


def _limits(words: Sequence[str]) -> Limits:
    from headway.serve.limits import Limits
    from headway.settings.load import from_dict
    from headway.settings.overrides import parse_override

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
                f"--languages {word!r} is not valid. Write RUN=de-en, where RUN is one of: "
                f"{', '.join(names)}."
            )
        found[name] = (codes[0].lower(), codes[1].lower())
    return found


def _started(app: Any, url: str) -> None:
    """Print the models and the address as soon as the server accepts connections."""
    from headway.serve.application import service_of

    workers = service_of(app).workers.values()
    _print_note(f"serving {', '.join(f'{one.name} ({one.run.task})' for one in workers)} at {url}")


def _ready(app: Any, url: str, needs_key: bool) -> None:
    """Print memory use and an example request as soon as all models are loaded."""
    from headway.serve.application import service_of
    from headway.serve.memory import resident_bytes

    workers = service_of(app).workers.values()
    held = ", ".join(f"{one.name} {one.n_bytes / 1e6:,.0f}" for one in workers if one.n_bytes)
    if held:
        _print_note(f"memory in MB: weights of {held}; whole process {resident_bytes() / 1e6:,.0f}")
    first = next(iter(workers))
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    if first.spec.is_text:
        body = json.dumps({"model": first.name, "input": _example(first.run)})
        send = f"-H 'Content-Type: application/json' -d '{body}'"
    else:
        send = f"-F model={first.name} -F file=@FILE"
    print_to_stderr(f"  curl {url}/v1/predict{key} {send}")
    print_to_stderr(f"  try it in a browser: {url}/")


def _example(run: Run) -> Any:
    if fields := run.settings.data.fields:
        return {fields[0]: "A text."}
    if run.settings.data.other_field:
        return {"text": "A text.", "other": "Another."}
    return "Once upon a time" if run.settings.decode.sample else "Guten Morgen."
