"""Sets of labelled English texts from Debian packages that anybody can rebuild.

    python examples/label_sets.py data/sets

| set | text | label |
|---|---|---|
| sections | what a package's record says about it, without its name | its section |
| manuals | first paragraph of a manual page | section of the manual |
| comments | a comment in a program | language of the program |
| licences | a sentence of a licence | family of licences |
| fortunes | a saying, a joke, a quotation | the file it stands in: its topic |
| tags | the one-line description of a package | which of 24 tags it has, separated by `; ` |
| sizes | the one-line description of a package | the decimal logarithm of its installed KiB |

Each becomes `NAME/train.tsv`, `valid.tsv` and `test.tsv` with a header, and a row for every package
in `SOURCES.tsv` with its version and licences. Texts of a package (in sections: of its source)
are in one part; fortunes, sentences of licences and the pages of `manpages` are split one by one.
Equal texts are there once, and no held-out text has eight words in a row that stand in a training
text. It needs apt and dpkg-deb, no rights, and 800 MB for packages, which it keeps in
`data/sets/packages`. `--without TEXT` also leaves out held-out texts of which eight words in a row
stand in that file: what an encoder learned from, say.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from debian_records import records

MOST = 1000
"""Texts of one label."""

FEWEST = 40
"""A label with fewer is left out."""

RUN = 8
"""Words in a row that no held-out text may share with one to train on."""


class Text(NamedTuple):
    text: str
    label: str
    group: str
    """What stays together."""


Record = Mapping[str, str]
Parts = dict[str, list[Text]]
HELD_OUT = ("valid", "test")
Packages = Mapping[str, Path]
"""The folder into which each package was unpacked."""


# ---- packages -----------------------------------------------------------------------------------


class Apt:
    """Debian's packages without touching this system's lists: all files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.options = ["-o", f"Dir::State::Lists={self.folder / 'lists'}"]
        self.options += ["-o", "Acquire::Languages=en", "-o", "APT::Sandbox::User=root"]

    def records(self) -> list[Record]:
        """Of all packages, the long description as `Description-en`."""
        (self.folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        if not list(self.folder.glob("lists/*Translation-en*")):
            subprocess.run(["apt-get", *self.options, "-qq", "update"], check=True)
        long = {
            found["Description-md5"]: found["Description-en"]
            for path in sorted(self.folder.glob("lists/*bookworm_main_i18n_Translation-en*"))
            for found in records(self._lines(path))
        }
        return [
            {**found, "Description-en": long.get(found.get("Description-md5", ""), "")}
            for path in sorted(self.folder.glob("lists/*bookworm_main_binary*_Packages*"))
            for found in records(self._lines(path))
        ]

    def _lines(self, path: Path) -> list[str]:
        said = subprocess.run(
            ["/usr/lib/apt/apt-helper", "cat-file", str(path)], check=True, capture_output=True
        )
        return said.stdout.decode("utf-8").split("\n")

    def unpacked(self, found: Sequence[Record]) -> dict[str, Path]:
        """Downloads what is not there yet."""
        places = {record["Package"]: self.folder / record["Package"] for record in found}
        lacking = [
            f"{r['Package']}={r['Version']}" for r in found if not places[r["Package"]].exists()
        ]
        (self.folder / "archives").mkdir(exist_ok=True)
        for first in range(0, len(lacking), 100):
            command = ["apt-get", *self.options, "-qq", "download", *lacking[first : first + 100]]
            subprocess.run(command, check=True, cwd=self.folder / "archives")
        for path in sorted((self.folder / "archives").glob("*.deb")):
            place = self.folder / path.name.split("_")[0]
            subprocess.run(["dpkg-deb", "-x", str(path), str(place)], check=True)
            path.unlink()
        return places


def source(record: Record) -> str:
    return record.get("Source", record["Package"]).split(" ")[0]


def chance(name: str) -> float:
    """Between 0 and 1, always the same for a name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 16**8


def some(found: Iterable[Record], n: int, most_bytes: int = 400_000) -> list[Record]:
    """One package each of `n` sources, as a hash draws them, none of them large."""
    one_each = {source(r): r for r in found if int(r.get("Size", 0)) < most_bytes}
    return [one_each[name] for name in sorted(one_each, key=chance)[:n]]


# ---- sections: descriptions of packages ---------------------------------------------------------

SECTIONS = ("admin", "comm", "database", "devel", "editors", "electronics", "fonts", "games",
            "graphics", "hamradio", "mail", "math", "net", "science", "sound", "text", "utils",
            "video", "web")  # fmt: skip
"""Those named after what a program is for, and not after a language or a kind of file."""


def sections(found: Iterable[Record]) -> Iterator[Text]:
    for record in found:
        _, _, body = record.get("Description-en", "").partition("\n")
        if record.get("Section") in SECTIONS and body:
            names = sorted({record["Package"], source(record)}, key=len, reverse=True)
            unnamed = re.sub("|".join(rf"\b{re.escape(n)}\b" for n in names), " ", body, flags=re.I)
            text = plain(re.sub(r"(?m)^ \.$", " ", unnamed))[:1500]
            yield Text(text, record["Section"], source(record))


# ---- tags and sizes: one-line descriptions -----------------------------------------------------

DESCRIBED = 7000
"""Texts of `tags` and of `sizes`, about 5,000 of them to train on."""

TAGS = (
    "devel::doc", "devel::lang:perl", "devel::library", "implemented-in::c", "implemented-in::c++",
    "implemented-in::perl", "implemented-in::python", "interface::commandline",
    "interface::graphical", "interface::x11", "made-of::html", "role::app-data",
    "role::devel-lib", "role::documentation", "role::plugin", "role::program", "role::shared-lib",
    "scope::utility", "uitoolkit::gtk", "uitoolkit::ncurses", "uitoolkit::qt",
    "use::gameplaying", "works-with::text", "x11::application",
)  # fmt: skip
"""The 24 most frequent tags of Debian 12."""


def tags(found: Iterable[Record]) -> Iterator[Text]:
    for record in found:
        names = sorted(set(re.split(r",\s*", record.get("Tag", ""))) & set(TAGS))
        if names:
            yield Text(plain(record["Description"]), "; ".join(names), source(record))


def sizes(found: Iterable[Record]) -> Iterator[Text]:
    for record in found:
        if int(record.get("Installed-Size", 0)):
            size = f"{math.log10(int(record['Installed-Size'])):.3f}"
            yield Text(plain(record["Description"]), size, source(record))


# ---- manuals: what pages are about ---------------------------------------------------------------

ESCAPES = ((r"\\f(?:\(..|\[\w*\]|.)", ""), (r"\\-", "-"), (r"\\\((?:em|en)|\\\[e[mn]\]", "-"),
           (r"\\\((?:lq|rq|oq|cq|aq|dq)|\\\[[lroacd]q\]", '"'), (r"\\s[-+]?\d+", ""),
           (r'\\".*', ""), (r"\\[&|^/,%:]", ""), (r"\\e", r"\\"), (r"\\[ ~0]", " "),
           (r"\\\(..|\\\[\w+\]|\\\*\(..|\\\*\[\w+\]", " "))  # fmt: skip
ENDS = re.compile(r"\.\s*(?:SH|SS|PP|P|LP|TP|IP|HP|RS|sp|nf|Sh|Ss|Pp|Bl|Bd|TS|EX)\b|\s*$", re.I)
"""What ends a paragraph of a page."""

WORDS = r"(?:Ar|Cm|Dq|Dv|Em|Fa|Fl|Fn|Ic|Nm|Ns|Op|Pa|Ql|Sy|Va|Xr)\b"
"""What a line of a BSD page may say about its words, and between them."""

FONTS = re.compile(rf"\.\s*(?:[BI]|[BIR][BIR]|SM|SB|{WORDS})\b")
COLLECTIONS = ("manpages", "manpages-dev")
"""Packages of pages that have only that in common: here a page is what stays together."""


def manuals(packages: Packages) -> Iterator[Text]:
    for name, folder in packages.items():
        for path in sorted(folder.glob("usr/share/man/man[1-8]/*.gz")):
            if path.is_file() and not path.is_symlink():
                page = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
                text = described(page, path.name.split(".")[0])
                yield Text(text, path.parent.name[-1], text if name in COLLECTIONS else name)


def described(page: str, name: str) -> str:
    """The first paragraph of DESCRIPTION as plain text: what `man` would print, nearly."""
    _, _, rest = re.sub(r'(?mi)^\.sh +"?description"?[ \t]*$', "\0", page).partition("\0")
    words: list[str] = []
    for line in rest.split("\n")[1:]:
        if ENDS.match(line):
            if words:
                break
        elif line.startswith(".Nm") and len(line.split()) == 1:
            words.append(name)
        elif FONTS.match(line):
            joined = re.match(r"\.\s*[BIR][BIR]\b", line) is not None
            parts = re.findall(r'"([^"]*)"|(\S+)', line.split(None, 1)[1] if " " in line else "")
            shown = [a or b for a, b in parts if not re.fullmatch(WORDS, b)]
            words.append(("" if joined else " ").join(shown))
        elif not line.startswith((".", "'")):
            words.append(line)
    text = " ".join(words)
    for pattern, instead in ESCAPES:
        text = re.sub(pattern, instead, text)
    return plain(re.sub(r"(\w)\s?\([1-9]\w*\)", r"\1", text))  # others' sections would say it


# ---- comments in programs ------------------------------------------------------------

LINES = {"c": r"//+!?|\*+(?!/)", "hash": r"#+!?", "lisp": r";+", "ml": r"\*?"}
BLOCKS = {"c": r"/\*+(.*?)\*/", "hash": r'"""(.*?)"""', "lisp": r"(?!)", "ml": r"\(\*+(.*?)\*\)"}


class Language(NamedTuple):
    packages: str
    ending: str
    kind: str


LANGUAGES = {
    "C": Language(r"lib(?!rust|ghc).*(?<!ocaml)-dev", ".h", "c"),
    "Emacs Lisp": Language(r"elpa-.*", ".el", "lisp"),
    "Go": Language(r"golang-.*-dev", ".go", "c"),
    "JavaScript": Language(r"node-.*", ".js", "c"),
    "OCaml": Language(r"lib.*-ocaml-dev", ".mli", "ml"),
    "Perl": Language(r"lib.*-perl", ".pm", "hash"),
    "PHP": Language(r"php-.*", ".php", "c"),
    "Python": Language(r"python3-.*", ".py", "hash"),
    "Ruby": Language(r"ruby-.*", ".rb", "hash"),
    "Rust": Language(r"librust-.*-dev", ".rs", "c"),
}
EACH = 25
"""Comments of one package."""


def comments(packages: Packages, language: str) -> Iterator[Text]:
    _, ending, kind = LANGUAGES[language]
    for name, folder in packages.items():
        found: dict[str, None] = {}
        for path in sorted(folder.rglob(f"*{ending}")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 200_000:
                found.update(dict.fromkeys(remarks(path.read_text("utf-8", "replace"), kind)))
        for text in sorted(found, key=chance)[:EACH]:
            yield Text(text, language, name)


def remarks(code: str, kind: str) -> Iterator[str]:
    """The first paragraph of each comment that has lines of its own, without its marks."""
    begins = re.compile(rf"\s*(?:{LINES[kind]})(?=\s|$)")
    blocks = [found.split("\n") for found in re.findall(BLOCKS[kind], code, re.DOTALL)]
    run: list[str] = []
    if kind != "ml":
        for line in [*re.sub(BLOCKS[kind], "", code, flags=re.DOTALL).split("\n"), ""]:
            if begins.match(line):
                run.append(line)
            elif run:
                blocks.append(run)
                run = []
    for block in blocks:
        lines = [begins.sub("", line, count=1).strip() for line in block]
        paragraph = "\n".join(lines).strip().split("\n\n")[0]
        text = plain(paragraph)
        letters = sum(c.isalpha() or c == " " for c in text)
        if letters > 0.9 * len(text) and not re.search(r"(?i)copyright|licen[sc]e|spdx", text):
            yield text


# ---- licences and fortunes ------------------------------------------------------------

FAMILIES = {
    "Apache": ("apache-2.0", "ecl-2.0"),
    "Artistic": ("artistic", "artistic-2.0"),
    "Creative Commons": ("cc-by-4.0", "cc-by-sa-4.0", "cc0-1.0"),
    "Eclipse": ("epl-1.0", "epl-2.0"),
    "EUPL": ("eupl-1.1", "eupl-1.2"),
    "GNU documentation": ("gfdl-1.2", "gfdl-1.3"),
    "GNU programs": ("gpl-1", "gpl-2.0", "gpl-3.0", "lgpl-2", "lgpl-2.1", "lgpl-3.0", "agpl-3.0"),
    "LaTeX": ("lppl-1.3c",),
    "Mozilla": ("mpl-1.1", "mpl-2.0"),
    "ODbL": ("odbl-1.0",),
    "Open Software": ("osl-3.0", "afl-3.0"),
}


def licences(packages: Packages) -> Iterator[Text]:
    places = [path for folder in packages.values() for path in sorted(folder.rglob("*licenses/*"))]
    texts = {path.name.lower().removesuffix(".txt"): path for path in places}
    for family, names in FAMILIES.items():
        for name in names:
            # What stands between lines of dashes was written about the licence.
            body = re.sub(r"(?s)\A---\n.*?\n---\n", "", texts[name].read_text("utf-8"))
            for paragraph in re.split(r"\n\s*\n", body):
                for sentence in re.split(r"(?<=[.;:])\s+(?=[\"“(A-Z0-9])", plain(paragraph)):
                    text = re.sub(r"^(?:[-*•]|\(?[\da-z.]{1,4}[.)])\s+", "", sentence)
                    yield Text(text, family, text)


TOPICS = ("art", "computers", "definitions", "drugs", "education", "ethnic", "food", "humorists",
          "kids", "law", "linux", "love", "medicine", "men-women", "perl", "politics", "science",
          "songs-poems", "sports", "work")  # fmt: skip
"""Files that are named after what their sayings are about."""


def fortunes(packages: Packages) -> Iterator[Text]:
    for folder in packages.values():
        for topic in TOPICS:
            path = folder / "usr/share/games/fortunes" / topic
            for saying in re.split(r"(?m)^%$", path.read_text("utf-8", "replace")):
                text = plain(saying)[:1500]
                yield Text(text, topic, text)


# ---- texts to sets ------------------------------------------------------------


def plain(text: str) -> str:
    """In one line, as it is to stand in a table."""
    return " ".join(text.replace("\0", " ").split())


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str) -> set[str]:
    """All runs of so many words; of a shorter text, all of it."""
    found = words(text)
    return {" ".join(found[i : i + RUN]) for i in range(max(1, len(found) - RUN + 1))}


def chosen(texts: Iterable[Text], fewest_words: int = 6) -> list[Text]:
    """Each text once, and none that stands under two labels; of a label `FEWEST` to `MOST`."""
    by_words: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        if len(words(text.text)) >= fewest_words and text.text.isprintable():
            by_words[" ".join(words(text.text))].append(text)
    by_label: dict[str, list[Text]] = defaultdict(list)
    for key in sorted(by_words, key=chance):
        same = by_words[key]
        if len({text.label for text in same}) == 1:
            by_label[same[0].label].append(same[0])
    kept = [found[:MOST] for found in by_label.values() if len(found) >= FEWEST]
    return sorted((text for found in kept for text in found), key=lambda text: chance(text.text))


def selected(name: str, texts: Iterable[Text]) -> list[Text]:
    """The texts of a set: balanced by label, or a draw where each label is a set or a number."""
    return drawn(texts, DESCRIBED) if name in ("tags", "sizes") else chosen(texts)


def drawn(texts: Iterable[Text], n: int, fewest_words: int = 3) -> list[Text]:
    """Up to `n` texts in the order of a hash. Each text occurs once, with one of its labels."""
    by_words: dict[str, Text] = {}
    for text in sorted(texts, key=lambda one: chance(one.text + one.label)):
        if len(words(text.text)) >= fewest_words and text.text.isprintable():
            by_words.setdefault(" ".join(words(text.text)), text)
    return sorted(by_words.values(), key=lambda text: chance(text.text))[:n]


def split(texts: Sequence[Text]) -> Parts:
    """Three parts by the hash of the group; what shares words with an earlier part is left out."""
    parts: Parts = {"train": [], "valid": [], "test": []}
    for text in texts:
        place = chance("group " + text.group)
        parts["test" if place < 0.2 else "valid" if place < 0.3 else "train"].append(text)
    seen: set[str] = set()
    for name, found in parts.items():
        parts[name] = [text for text in found if not runs(text.text) & seen]
        seen.update(*(runs(text.text) for text in found))
    return parts


def stands_in(paths: Iterable[Path], wanted: set[str]) -> set[str]:
    """Those of the runs of words that stand in a line of these files."""
    found: set[str] = set()
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found |= runs(line) & wanted
    return found


def without(sets: Mapping[str, Parts], paths: Sequence[Path]) -> dict[str, Parts]:
    """The same, but for held-out texts of which a run of words stands in one of these files."""
    held_out = [text for parts in sets.values() for name in HELD_OUT for text in parts[name]]
    known = stands_in(paths, set().union(*(runs(text.text) for text in held_out)))
    return {
        name: {
            part: [t for t in found if part not in HELD_OUT or not runs(t.text) & known]
            for part, found in parts.items()
        }
        for name, parts in sets.items()
    }


def save(folder: Path, parts: Parts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in parts.items():
        rows = "".join(f"{text.text}\t{text.label}\n" for text in found)
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + rows, "utf-8")
    labels = Counter(text.label for text in parts["train"])
    amounts = ", ".join(f"{name} {len(found):,}" for name, found in parts.items())
    print(f"{folder.name}: {len(labels)} labels; {amounts}")


def licence(folder: Path, package: str) -> str:
    """The names of licences in the package's own file about them."""
    path = folder / "usr/share/doc" / package / "copyright"
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    names = re.findall(r"(?m)^License: *(\S.*)$", text)
    return ", ".join(sorted(set(names))) or f"see /usr/share/doc/{package}/copyright"


# ---- what is made of which packages ------------------------------------------------------------


def packages_of(name: str, found: Sequence[Record]) -> dict[str, list[Record]]:
    """The packages that a set is made of; of comments, by their language."""
    named = {record["Package"]: record for record in found}
    if name == "comments":
        return {
            language: some([r for r in found if re.fullmatch(how.packages, r["Package"])], 60)
            for language, how in LANGUAGES.items()
        }
    if name == "manuals":
        tagged = [r for r in found if "role::program" in r.get("Tag", "")]
        libraries = [r for r in found if r.get("Section") == "libdevel" and "-dev" in r["Package"]]
        basic = [named[package] for package in COLLECTIONS]
        return {"": [*basic, *some(tagged, 900), *some(libraries, 200)]}
    asked = {"licences": ("base-files", "ruby-licensee"), "fortunes": ("fortunes",)}[name]
    return {"": [named[package] for package in asked]}


def make(name: str, apt: Apt, found: Sequence[Record], sources: list[str]) -> Iterator[Text]:
    if name in OF_LISTS:
        sources.append(f"{name}\tall packages\tof the lists\teach as its package")
        yield from OF_LISTS[name](found)
        return
    for part, asked in packages_of(name, found).items():
        packages = apt.unpacked(asked)
        for record in asked:
            package = record["Package"]
            of = licence(packages[package], package)
            sources.append(f"{name}\t{package}\t{record['Version']}\t{of}")
        if name == "comments":
            yield from comments(packages, part)
        else:
            yield from {"manuals": manuals, "licences": licences, "fortunes": fortunes}[name](
                packages
            )


OF_LISTS = {"sections": sections, "tags": tags, "sizes": sizes}
"""Sets made from the records of packages alone."""

NAMES = ("sections", "manuals", "comments", "licences", "fortunes", "tags", "sizes")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--without", nargs="+", type=Path, default=[], help="files of plain text")
    asked = parser.parse_args(given)
    apt = Apt(asked.folder / "packages")
    found = apt.records()
    sources = ["set\tpackage\tversion\tlicences"]
    sets = {name: split(selected(name, make(name, apt, found, sources))) for name in asked.only}
    for name, parts in without(sets, asked.without).items():
        save(asked.folder / name, parts)
    (asked.folder / "SOURCES.tsv").write_text("\n".join(sources) + "\n", "utf-8")


if __name__ == "__main__":
    main()
