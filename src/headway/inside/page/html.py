"""One HTML file from the sources in `web/` and the data: no request to anywhere, ever.

Scripts are allowed by the hash of their text, so that nothing else can run in the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.inside.page.pack import pack
from headway.inside.page.sections import OF_MEDIA, OF_SEVERAL, SECTIONS
from headway.inside.page.shortening import shorter, shorter_style


def web() -> Path:
    """The folder of the page's sources."""
    return Path(__file__).resolve().parents[2] / "web"


def page(
    title: str,
    looks: Sequence[Mapping[str, Any]],
    shared: Mapping[str, Any] | None = None,
    *,
    run: Mapping[str, Any] | None = None,
    live: bool = False,
    compress: bool = True,
) -> str:
    """The page that shows these looks (see `web/README.md` for what a look holds).

    `shared` has the sections that do not depend on the look; `run` what the header says about the
    model. A `live` page may speak to the server that it came from, and to nobody else.
    """
    packed = pack(data(title, looks, shared, run=run), compress=compress)
    return inline(title, packed, panels_of(looks, shared or {}, live), live, compress)


def panels_of(
    looks: Sequence[Mapping[str, Any]], shared: Mapping[str, Any], live: bool = False
) -> list[str]:
    """The panels that a page needs: those of its sections. A served page may be sent others, too,
    which a later answer has: of a text all but those of several looks, of a picture or a recording
    the search."""
    found = {name for part in (shared, *(look["sections"] for look in looks)) for name in part}
    if live:
        media = found.intersection(OF_MEDIA)
        found |= {"beam"} if media else set(SECTIONS).difference(OF_MEDIA, OF_SEVERAL)
    return sorted(found)


def data(
    title: str,
    looks: Sequence[Mapping[str, Any]],
    shared: Mapping[str, Any] | None = None,
    *,
    run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a page holds; packed, it is also what a live page is sent."""
    return {
        "title": title,
        "run": dict(run or {}),
        "order": list(SECTIONS),
        "looks": [dict(look) for look in looks],
        "shared": dict(shared or {}),
    }


def inline(
    title: str, packed: str, panels: Collection[str], live: bool = False, compress: bool = True
) -> str:
    """The sources, with these panels alone, and the packed data in one file."""
    folder = web()
    texts = scripts(folder, panels, live)
    parts = {
        "policy": policy([text for _, text in texts], live),
        "title": html.escape(title),
        "style": shorter_style(_style(folder, panels)),
        "packed": "deflate" if compress else "plain",
        "scripts": "\n".join(_element(name, text) for name, text in texts),
        "data": packed,
    }
    frame = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], frame)


def _style(folder: Path, panels: Collection[str]) -> str:
    files = [folder / "style.css", *_files(folder, panels, "css")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def _files(folder: Path, panels: Collection[str], kind: str) -> list[Path]:
    return [path for path in sorted(folder.glob(f"panels/*.{kind}")) if path.stem in panels]


def scripts(folder: Path, panels: Collection[str], live: bool = False) -> list[tuple[str, str]]:
    """Name and text of each script: the core, then each of the panels in a block of its own, then
    main.

    A panel that does not parse then takes only itself down.
    """
    core = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("core/*.js")))
    found = [("", f'"use strict";\n{core}')]
    for path in _files(folder, panels, "js"):
        found.append((path.stem, f'"use strict";\n{{\n{path.read_text(encoding="utf-8")}\n}}'))
    last = [folder / "live.js"] if live else []
    for path in [*last, folder / "main.js"]:
        found.append(("", f'"use strict";\n{path.read_text(encoding="utf-8")}'))
    return [(name, shorter(text)) for name, text in found]


def policy(sources: Sequence[str], live: bool = False) -> str:
    """What the browser lets the page do: run these scripts, show its own pictures, nothing else."""
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in sources)
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; media-src data:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _element(name: str, text: str) -> str:
    if "</script" in text.lower():
        raise ValueError(f"the script {name!r} holds the end of a script element")
    place = f' data-panel="{name}"' if name else ""
    return f"<script{place}>{text}</script>"
