"""Build a self-contained HTML file from the sources in this folder and packed data.

The page makes no network requests. Scripts are allowed by the hash of their text, so that no other
script can run in the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

COMMENT = re.compile(r"^[ \t]*(?://.*|/\*(?:[^*]|\*(?!/))*\*/)[ \t]*$", re.MULTILINE)
"""Comments on lines of their own. Pages omit them and the indentation, which makes pages a tenth
smaller.

No string in the sources spans several lines, so the pattern cannot match inside one.
"""


def page_data(
    title: str,
    looks: Sequence[Mapping[str, object]],
    shared: Mapping[str, object],
    run: Mapping[str, object],
    order: Collection[str],
) -> dict[str, object]:
    """Return the data of a page, which `pack` compresses or the server sends to a live page.

    Args:
        title: Title of the page.
        looks: Data of each look, as described in `README.md`.
        shared: Sections that all looks share.
        run: Facts about the model, for the page header.
        order: Names of the tabs, in their order.
    """
    return {
        "title": title,
        "run": dict(run),
        "order": list(order),
        "looks": [dict(look) for look in looks],
        "shared": dict(shared),
    }


def page_html(title: str, packed: str, panels: Collection[str], live: bool = False) -> str:
    """Return the HTML of a page.

    Args:
        title: Title of the page.
        packed: Data of the page, as returned by `pack`.
        panels: Names of the panels to include.
        live: Whether the page may connect to the server that it came from. It may never connect to
            another server.
    """
    texts = scripts(panels, live)
    style = [FOLDER / "style.css", *_files(panels, "css")]
    parts = {
        "policy": policy([text for _, text in texts], live),
        "title": html.escape(title),
        "style": "\n".join(map(_compact, style)),
        "scripts": "\n".join(_element(name, text) for name, text in texts),
        "data": packed,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read(FOLDER / "page.html"))


def scripts(panels: Collection[str], live: bool = False) -> list[tuple[str, str]]:
    """Return the name and text of each script: the core, the panels, then main.

    Each panel has its own script element, so a syntax error in one panel does not affect the
    others. The core and main have no name.
    """
    core = "\n".join(map(_compact, sorted(FOLDER.glob("core/*.js"))))
    found = [("", core)]
    found += [(path.stem, f"{{\n{_compact(path)}\n}}") for path in _files(panels, "js")]
    found += [("", _compact(FOLDER / name)) for name in ("live.js", "main.js")[not live :]]
    return [(name, f'"use strict";\n{text}') for name, text in found]


def _files(panels: Collection[str], kind: str) -> list[Path]:
    return [path for path in sorted(FOLDER.glob(f"panels/*.{kind}")) if path.stem in panels]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _compact(path: Path) -> str:
    return re.sub(r"\n\s+", "\n", COMMENT.sub("", _read(path))).strip()


def policy(sources: Sequence[str], live: bool = False) -> str:
    """Return the Content Security Policy of a page.

    The page may run exactly the scripts in `sources` and show embedded media. A `live` page may
    also connect to its own server.
    """
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
        raise ValueError(f"the script {name!r} contains the closing tag </script>")
    place = f' data-panel="{name}"' if name else ""
    return f"<script{place}>{text}</script>"
