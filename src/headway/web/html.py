"""Make a self-contained HTML file from the sources in this folder and packed data.

The page makes no network requests. Scripts are allowed by the hash of their text, so that nothing
else can run in the page.
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
"""Comments on lines of their own.

They and indentation are removed from pages, which makes them a tenth smaller. No string of the
sources spans several lines, so none can match.
"""


def page_data(
    title: str,
    looks: Sequence[Mapping[str, object]],
    shared: Mapping[str, object],
    run: Mapping[str, object],
    order: Collection[str],
) -> dict[str, object]:
    """Assemble the data of a page, which is then packed with `pack` or sent to a live page.

    `README.md` describes the data of a look. `shared` has the sections that all looks share, `run`
    the facts about the model in the header, `order` the names of the tabs.
    """
    return {
        "title": title,
        "run": dict(run),
        "order": list(order),
        "looks": [dict(look) for look in looks],
        "shared": dict(shared),
    }


def page_html(title: str, packed: str, panels: Collection[str], live: bool = False) -> str:
    """Make the HTML of a page from the names of its panels and the packed data.

    A `live` page may connect to the server that it came from, and to no other.
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
    """Name and text of each script: the core, each panel in its own block, then main.

    A syntax error in a panel therefore affects only that panel.
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
    """Content Security Policy: the page may run exactly these scripts and show embedded media,
    nothing else."""
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
