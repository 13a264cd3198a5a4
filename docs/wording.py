"""Count the wording problems that docs/built/writing.md names, and list all messages.

    python docs/wording.py            # fail if a count has risen
    python docs/wording.py --show     # also print every finding with its file and line
    python docs/wording.py --update   # store lower counts, write docs/built/messages.txt
    python docs/wording.py --sample code 100 7   # 100 docstrings and comments, seed 7 (or: docs)

Counts may only fall: `docs/built/wording.json` holds the highest value allowed for each.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / "docs" / "built" / "wording.json"
MESSAGES = ROOT / "docs" / "built" / "messages.txt"
STYLE_PAGES = ("docs/built/writing.md", "docs/built/glossary.md", "docs/built/messages.txt")

BANNED = re.compile(
    r"\b(?:of|for|to|by|from|with) who\b"
    r"|\bwho (?:is|are|was|has|does|did|[a-z]+s)\b"
    r"|\b(?:nobody|somebody|someone|everybody|he|his|him)\b"
    r"|\b(?:anew|whence|mends?|mended|thus far|till now|for nothing|from nothing|so many)\b"
    r"|(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less)[a-z]+"
    r"|\b(?:stands?|stood|lies)\b"
    r"|\b(?:behind) (?:it|them|that|this|each|every|all|the [a-z]+s?)\b"
    r"|\b(?:go|goes|going|went) on\b"
    r"|\b(?:is|are|was|were) (?:told|asked)\b"
    r"|\bwants? (?!to\b)[a-z]+"
    r"|\b(?:tokens?|lines?|rows?|steps?|words?|seconds?|files?|vectors?|labels?|weights?) an?"
    r" (?:second|step|row|line|class|label|token|word|request|layer|head|call|epoch|sentence)\b"
)
"""Constructions of the style guide's list that a pattern can find."""

FRONTED = re.compile(r"^(?:Of|In which|By which|For which|From which|With which)\b(?! course)")
LEANING = re.compile(
    r"^(?:Of|Those|These|That|Which|Who|The same|The other|\.\.\.|And|But)\b|^\.\.\."
)
"""First words of a docstring that cannot be understood without the docstring before it."""

ENGLISH = re.compile(r"(?:\b[A-Za-z][a-z']*\b,? ){2}\b[a-z][a-z']*\b")
"""Three words in a row, in a pattern that a test matches against a message."""

MESSAGES_OF_TESTS = {"err", "error", "message", "messages", "printed", "stderr", "value", "said"}
"""Names in tests that hold printed output or a message."""


class Finding(NamedTuple):
    place: str
    text: str


def files(folder: str, pattern: str = "*.py") -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        if name not in STYLE_PAGES:
            yield name, path.read_text(encoding="utf-8")


def texts(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """The line, text and kind (is it a docstring?) of every string constant."""
    docs = {
        id(one.value)
        for node in ast.walk(tree)
        for one in (node.body if hasattr(node, "body") and isinstance(node.body, list) else [])
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value, id(node) in docs


def banned_in_source() -> Iterator[Finding]:
    for name, source in files("src/headway"):
        for line, text, is_doc in texts(ast.parse(source)):
            if not is_doc and " " not in text.strip():
                continue
            found = [match.group() for match in BANNED.finditer(text)]
            if is_doc and (match := FRONTED.match(text)):
                found.append(match.group())
            for one in found:
                yield Finding(f"{name}:{line}", f"{one!r} in {short(text)}")


def banned_in_pages() -> Iterator[Finding]:
    for folder, pattern in (("docs", "*.md"), ("src/headway/web", "*.js")):
        for name, text in files(folder, pattern):
            for number, line in enumerate(text.splitlines(), 1):
                for match in BANNED.finditer(line):
                    yield Finding(f"{name}:{number}", f"{match.group()!r} in {short(line)}")


def leaning_docstrings() -> Iterator[Finding]:
    for name, source in files("src/headway"):
        for line, text, is_doc in texts(ast.parse(source)):
            if is_doc and LEANING.match(text):
                yield Finding(f"{name}:{line}", short(text))


def meanings() -> dict[str, dict[str, list[str]]]:
    """Names of classes and type aliases, with each different definition and its modules."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, source in files("src/headway"):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name][f"class in {name}"].append(name)
        for node in tree.body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and re.fullmatch(r"_?[A-Z][a-z]\w*", node.targets[0].id)
                and isinstance(node.value, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute)
            ):
                found[node.targets[0].id][ast.unparse(node.value)].append(name)
    return found


def ambiguous_types() -> Iterator[Finding]:
    for name, definitions in sorted(meanings().items()):
        if len(definitions) > 1:
            places = [place for some in definitions.values() for place in some]
            yield Finding(places[0], f"{name} is also in {', '.join(places[1:])}")


def prose_in_tests() -> Iterator[Finding]:
    for name, source in files("tests"):
        for node in ast.walk(ast.parse(source)):
            values: list[ast.AST] = []
            if isinstance(node, ast.keyword) and node.arg == "match":
                values = [node.value]
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                values = [node.left] if is_output(node.comparators[0]) else []
            for value in values:
                for one in ast.walk(value):
                    text = one.value if isinstance(one, ast.Constant) else None
                    if isinstance(text, str) and ENGLISH.search(
                        re.sub(r"\\[a-zA-Z]|\\", " ", text)
                    ):
                        yield Finding(f"{name}:{one.lineno}", repr(text))


def is_output(node: ast.AST) -> bool:
    """Whether a value looks like printed output or a message, rather than data of the test."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return bool(names & MESSAGES_OF_TESTS)


def constants_without_reason() -> Iterator[Finding]:
    """Numbers with a name at the top of a module that no docstring or comment explains."""
    for name, source in files("src/headway"):
        body, lines = ast.parse(source).body, source.splitlines()
        for at, node in enumerate(body):
            if (
                not isinstance(node, ast.Assign | ast.AnnAssign)
                or not isinstance(target := ast.unparse(node).split("=")[0].split(":")[0], str)
                or not re.fullmatch(r"_?[A-Z][A-Z0-9_]*(, [A-Z0-9_]+)* ?", target)
                or node.value is None
                or not is_number(node.value)
            ):
                continue
            after = body[at + 1] if at + 1 < len(body) else None
            explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            first, last = lines[node.lineno - 2].strip(), node.end_lineno or node.lineno
            commented = first.startswith("#") or any(
                re.search(r"#(?! fmt)", line) for line in lines[node.lineno - 1 : last]
            )
            if not explained and not commented:
                yield Finding(f"{name}:{node.lineno}", short(ast.unparse(node)))


def is_number(node: ast.AST) -> bool:
    """Whether this is a number, a computation with numbers, or a tuple of them."""
    leaves = [one for one in ast.walk(node) if isinstance(one, ast.Constant | ast.Name | ast.Call)]
    return bool(leaves) and all(
        isinstance(one, ast.Constant) and type(one.value) in (int, float) for one in leaves
    )


def documented_one_liners() -> Iterator[Finding]:
    """Private functions of one short statement with a docstring of one line."""
    for name, source in files("src/headway"):
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.startswith("_")
                and not node.name.startswith("__")
                and len(node.body) == 2
                and (text := ast.get_docstring(node))
                and "\n" not in text
                and node.body[1].lineno == node.body[1].end_lineno
            ):
                yield Finding(f"{name}:{node.lineno}", f"{node.name}: {text}")


def words_of_docs() -> int:
    """Number of words with a letter or digit on the pages of the documentation."""
    return sum(
        bool(re.search(r"\w", word)) for _, text in files("docs", "*.md") for word in text.split()
    )


def docstrings_and_comments() -> list[Finding]:
    """Every docstring, after the line that it explains, and every block of comments, before it."""
    found = []
    for name, source in files("src/headway"):
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            body = node.body if isinstance(getattr(node, "body", None), list) else []
            for number, one in enumerate(body):
                value = one.value if isinstance(one, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    above = body[number - 1] if number else node
                    code = "" if isinstance(above, ast.Module) else signature(above)
                    found.append(Finding(f"{name}:{one.lineno}", f"{code}  ⟶  {value.value}"))
        block: list[str] = []
        for number, line in enumerate([*lines, ""], 1):
            if re.match(r"\s*# (?!fmt|type|noqa)", line):
                block.append(line.strip().removeprefix("# "))
            elif block:
                text = f"# {' '.join(block)}  ⟶  {line.strip()}"
                found.append(Finding(f"{name}:{number - len(block)}", text))
                block = []
    return found


def signature(node: ast.AST) -> str:
    """The first line of a definition, or an assignment."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {node.name}({ast.unparse(node.args)}){returns}"
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    return short(ast.unparse(node))


def sentences() -> list[Finding]:
    """Every sentence of four words or more in paragraphs and lists of the documentation."""
    found = []
    for name, text in [*files("docs", "*.md"), ("README.md", (ROOT / "README.md").read_text())]:
        prose = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.M | re.S)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*\d.]+ )", prose):
            if re.match(r"\s*[#|!<]", paragraph):
                continue
            for one in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[*])", " ".join(paragraph.split())):
                if len(one.split()) >= 4:
                    found.append(Finding(name, one))
    return found


def sample(kind: str, size: int, seed: int) -> list[Finding]:
    found = {"code": docstrings_and_comments, "docs": sentences}[kind]()
    return random.Random(seed).sample(found, size)


COUNTS = {
    "banned constructions in strings and docstrings of src": banned_in_source,
    "docstrings of src that lean on a neighbour": leaning_docstrings,
    "class and type names of src with several meanings": ambiguous_types,
    "patterns in tests that hold prose": prose_in_tests,
    "banned constructions in docs and pages": banned_in_pages,
    "constants of src without a reason": constants_without_reason,
    "private functions of one line with a docstring": documented_one_liners,
}


WORDS = "words of the documentation"


def short(text: str, most: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


ERRORS = re.compile(
    r"(Error|Exception|Rejected|Refused|Damaged|Impossible\w*|Stopped|Diverged|Lost|Exit)$"
)
OUTPUT = {
    "about", "add", "add_rows", "echo", "error", "finding", "Finding", "info", "line", "note",
    "print", "print_note", "_print_note", "print_to_stderr", "say", "warn", "warning", "write_line",
}  # fmt: skip


def template(node: ast.AST) -> str | None:
    """The text of a message with `{…}` where values go."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            one.value if isinstance(one, ast.Constant) else f"{{{ast.unparse(one.value)}}}"
            for one in node.values
            if isinstance(one, ast.Constant | ast.FormattedValue)
        ]
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [template(node.left) or "{…}", template(node.right) or "{…}"]
        return "".join(sides)
    return None


def messages() -> Iterator[tuple[str, str]]:
    """Every message template, with the module that holds it."""
    for name, source in files("src/headway"):
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            if not (ERRORS.search(called) or called in OUTPUT):
                continue
            for value in [*node.args, *(one.value for one in node.keywords)]:
                text = template(value)
                if text and " " in text.strip():
                    yield name.removeprefix("src/headway/"), " ".join(text.split())


def messages_text() -> str:
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in messages():
        found[name].append(text)
    head = "# All messages, by module. Generated by `python docs/wording.py --update`.\n"
    return head + "".join(
        f"\n## {name}\n" + "".join(f"{text}\n" for text in dict.fromkeys(some))
        for name, some in sorted(found.items())
    )


def main(words: list[str]) -> int:
    if "--sample" in words:
        kind, size, seed = words[words.index("--sample") + 1 :][:3]
        for number, one in enumerate(sample(kind, int(size), int(seed)), 1):
            print(f"{number}. {one.place}: {' '.join(one.text.split())}")
        return 0
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    risen, now = False, {}
    for name, find in COUNTS.items():
        found = list(find())
        now[name] = len(found)
        limit = limits.get(name, len(found))
        risen |= len(found) > limit
        print(f"{len(found):5} (at most {limit:4}) {name}")
        if "--show" in words or len(found) > limit:
            print("".join(f"      {one.place}: {one.text}\n" for one in found), end="")
    words_now, most = words_of_docs(), limits.get(WORDS, 0)
    risen |= words_now > most
    print(f"{words_now:5} (at most {most:4}) {WORDS}")
    if "--update" in words:
        lower = {name: min(count, limits.get(name, count)) for name, count in now.items()}
        lower[WORDS] = min(words_now, most or words_now)
        LIMITS.write_text(json.dumps(lower, indent=1) + "\n")
        MESSAGES.write_text(messages_text(), encoding="utf-8")
    elif not MESSAGES.exists() or MESSAGES.read_text(encoding="utf-8") != messages_text():
        print(f"{MESSAGES.relative_to(ROOT)} is out of date. Run: python docs/wording.py --update")
        return 1
    return int(risen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
