"""A page about what happens inside, for every row."""

from __future__ import annotations

from pathlib import Path

from headway.web import pack as packing

from .tiny import Tiny


def test_it_can_be_looked_into(tiny: Tiny, tmp_path: Path) -> None:
    page = tiny.run.look(tiny.questions[1])
    assert page.looks
    streams = page.looks[0]["streams"]
    assert streams
    page.save(tmp_path / "look.html")
    kept = packing.unpack((tmp_path / "look.html").read_text(encoding="utf-8"))
    assert kept["title"] == page.title
    assert kept["looks"][0]["streams"].keys() == streams.keys()
