"""Pictures in `report.html`: what is taken for what, what is surely wrong, and one of each class.

As the other figures they come out of `metrics.jsonl`: what is damaged is left out, and only PNGs
that stand in the file itself are shown.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from headway.training.history import number

SEPARATOR = " │ "
"""Between several captions of one picture."""

PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


def gallery(found: Any) -> str:
    """The most frequent mistakes, each with examples; single answers, wrong and right ones."""
    if not isinstance(found, dict):
        return ""
    confused = [card for one in _entries(found, "confused") if (card := _pair(one))]
    parts = []
    if confused:
        parts.append(f'<h3>Most often confused</h3><div class="pairs">{"".join(confused)}</div>')
    for name, title in (("wrong", "Surely wrong"), ("right", "Surely right")):
        shown = [card for one in _entries(found, name) if (card := _single(one, name))]
        if shown:
            parts.append(f'<h3>{title}</h3><div class="strip">{"".join(shown)}</div>')
    return f'<div class="gallery card">{"".join(parts)}</div>' if parts else ""


def captions(found: Any) -> str:
    """Pictures with what was written about them, by the model and by people."""
    listed = _entries({"described": found}, "described")
    shown = [card for one in listed if (card := _described(one))]
    title = "<h3>Captions of validation pictures</h3>"
    strip = f'{title}<div class="strip wide">{"".join(shown)}</div>'
    return f'<div class="gallery card">{strip}</div>' if shown else ""


def _described(one: dict[str, Any]) -> str:
    said, wanted = str(one.get("output")), str(one.get("target"))
    image = _image(one, wanted)
    if not image:
        return ""
    is_right = said in wanted.split(SEPARATOR)
    mark, more = ("", "") if is_right else (' class="said"', f"<br>people: {escape(wanted)}")
    under = f'<b{mark} dir="auto">{escape(said)}</b>{more}'
    return f"<figure>{image}<figcaption>{under}</figcaption></figure>"


def icons(found: Any) -> dict[str, str]:
    """A picture for each class that has one, as HTML."""
    if not isinstance(found, dict):
        return {}
    shown: dict[str, str] = {}
    for one in _entries(found, "classes"):
        label, picture = one.get("true"), _image(one, "")
        if isinstance(label, str) and picture:
            shown.setdefault(label, picture)
    return shown


def _pair(one: dict[str, Any]) -> str:
    pictures = "".join(
        f"<figure>{image}<figcaption>{_sure(example)}</figcaption></figure>"
        for example in _entries(one, "examples")
        if (image := _image(example, _told(example)))
    )
    count, share = number(one.get("count")), number(one.get("share"))
    if not pictures or count != count:
        return ""
    much = f"{count:,.0f} times" if count != 1 else "once"
    much += f", {share:.1%} of the class" if share == share else ""
    return (
        f'<div class="pair"><p><b dir="auto">{escape(str(one.get("true")))}</b> taken for '
        f'<b class="said" dir="auto">{escape(str(one.get("said")))}</b><small>{much}</small></p>'
        f'<div class="strip">{pictures}</div></div>'
    )


def _single(one: dict[str, Any], kind: str) -> str:
    image = _image(one, _told(one))
    if not image:
        return ""
    said = escape(str(one.get("said")))
    under = f'<b class="said" dir="auto">{said}</b>' if kind == "wrong" else f"<b>{said}</b>"
    true = f"<br>is {escape(str(one.get('true')))}" if kind == "wrong" else ""
    return f"<figure>{image}<figcaption>{under} {_sure(one)}{true}</figcaption></figure>"


def _sure(one: dict[str, Any]) -> str:
    sure = number(one.get("sure"))
    return f"{sure:.2f}" if sure == sure else ""


def _told(one: dict[str, Any]) -> str:
    return f"is {one.get('true')}, taken for {one.get('said')}"


def _image(one: dict[str, Any], title: str) -> str:
    source = one.get("picture")
    if not isinstance(source, str) or not PNG.fullmatch(source):
        return ""
    return f'<img src="{source}" alt="{escape(title)}" title="{escape(title)}">'


def _entries(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    listed = found.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
