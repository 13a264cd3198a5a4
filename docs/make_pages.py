"""Make the look pages of `docs/look/examples`, which open in a browser with one click.

    .venv/bin/python docs/make_pages.py [NAME …]

Without names, all pages are made. Each is what `headway look` writes for a shipped model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from headway.inside.capture.reading import NEW_TOKENS, GenerationOptions
from headway.inside.page.look import Page, look
from headway.settings.folder import SHIPPED

FOLDER = Path(__file__).parent / "look" / "examples"


class Example(NamedTuple):
    """A page about one input of a shipped model."""

    run: str
    text: str = ""
    file: str = ""
    """Name of a file in the folder of the model, for a model that reads media."""

    new: int = NEW_TOKENS
    """Number of tokens that a language model generates."""

    def page(self) -> Page:
        run = SHIPPED / self.run
        file = run / self.file if self.file else None
        return look(run, self.text, GenerationOptions(max_new_tokens=self.new), file=file)


EXAMPLES = {
    "translation": Example("tatoeba-de-en", "Ein Hund hat ihr ins Bein gebissen."),
    "story": Example("stories", "The little dog was hungry. He wanted to", new=8),
    "image": Example("shapes", file="example.png"),
}


def main(names: list[str]) -> None:
    if missing := sorted(set(names) - set(EXAMPLES)):
        raise SystemExit(f"unknown pages: {', '.join(missing)}. Known: {', '.join(EXAMPLES)}")
    for name in names or EXAMPLES:
        place = FOLDER / f"{name}.html"
        EXAMPLES[name].page().save(place)
        sys.stdout.write(f"{place.name}: {place.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
