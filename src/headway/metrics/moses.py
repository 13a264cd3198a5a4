"""Moses tokenization and punctuation normalization, for scores that are comparable with
publications.

The rules cover English, German and French. They are used only for scoring; models do not use them.
Special characters are not escaped. `sacremoses` has the same rules for fifty languages, but
`evaluate` and `score` must work without extra packages. Tests compare both implementations.
"""

from __future__ import annotations

import re

from headway.errors import UserError, suggest

LETTER = r"[^\W\d_]"
NO_LETTER = r"[\W\d_]"
NBSP = "\N{NO-BREAK SPACE}"
SMALL_DIGITS = "²³¹¼½¾⁰-₉⅐-⅟①-⒛"
r"""Characters that match Python's `\w` but not Perl's."""

LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"
ROMAN = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI XVII XVIII XIX XX"
TITLES = """
    Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Ens Gen Gov Hon
    Hosp Insp Lt MM MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt Rep Reps
    Res Rev Rt Sen Sens Sfc Sgt Sr St Supt Surg vs Nos Nr
"""
ENGLISH = "Drs Hr rev Rs Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec"
GERMAN = """
    Mio Mrd bzw usw etc MwSt ggf vgl sogen sog ff Buchst Std evtl Zt Chr Ltd spp sen SA jun dgl
    dergl Co zzt usf Dkr bzgl BSE No Art pp ca Ca
"""
FRENCH = """
    art ann apr av auj lib boul ca cf chap contr dir éd env al etc ex fasc fém fig fr hab ibid id
    inf masc MM ms n/réf pl pp SS sec sect sing sq sqq suiv sup suppl tél vb vol vs
"""


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


KEEP_PERIOD: dict[str, frozenset[str]] = {
    "en": _words(LETTERS, TITLES, ENGLISH),
    "de": _words(LETTERS, LETTERS.lower(), ROMAN, ROMAN.lower(), TITLES, GERMAN)
    | {str(number) for number in range(1, 100)},  # der 3. Mai
    "fr": _words(LETTERS, LETTERS.lower(), FRENCH),
}
"""Abbreviations of each language. A period after an abbreviation does not end a sentence and stays
attached."""

KEEP_BEFORE_NUMBER = {"en": frozenset({"No", "Art", "pp"})}

APOSTROPHES: dict[str, list[tuple[str, str]]] = {
    "en": [  # do|n't is don|'t here
        (rf"({NO_LETTER})'({NO_LETTER})", r"\1 ' \2"),
        (rf"([^\w]|_)'({LETTER})", r"\1 ' \2"),
        (rf"({LETTER})'({NO_LETTER})", r"\1 ' \2"),
        (rf"({LETTER})'({LETTER})", r"\1 '\2"),
        (r"(\d)'(s)", r"\1 '\2"),
    ],
    "fr": [  # l'|homme
        (rf"({NO_LETTER})'({NO_LETTER})", r"\1 ' \2"),
        (rf"({NO_LETTER})'({LETTER})", r"\1 ' \2"),
        (rf"({LETTER})'({NO_LETTER})", r"\1 ' \2"),
        (rf"({LETTER})'({LETTER})", r"\1' \2"),
    ],
    "de": [(r"'", r" ' ")],
}

NORMAL: list[tuple[str, str]] = [
    # Normalize spaces around brackets and before punctuation.
    (r"\r", ""),
    (r"\(", " ("),
    (r"\)", ") "),
    (r" +", " "),
    (r"\) ([.!:?;,])", r")\1"),
    (r"\( ", "("),
    (r" \)", ")"),
    (r"(\d) %", r"\1%"),
    (r" ([:;])", r"\1"),
    # Convert quotation marks, dashes and the ellipsis to ASCII. As in the Perl script, a right
    # single quote that is not an apostrophe becomes a double quote.
    (r"`", "'"),
    (r"''", ' " '),
    (r"[„“”]", '"'),
    (r"–", "-"),
    (r"—", " - "),
    (r" +", " "),
    (r"´", "'"),
    (r"([a-zA-Z])‘([a-zA-Z])", r"\1'\2"),
    (r"([a-zA-Z])’([a-zA-Z])", r"\1'\2"),
    (r"[‘‚]", "'"),
    (r"’", '"'),
    (r"''", '"'),
    (r"…", "..."),
    (rf"{NBSP}«{NBSP}", ' "'),
    (rf"«{NBSP}?", '"'),
    (rf"{NBSP}»{NBSP}", '" '),
    (rf"{NBSP}?»", '"'),
    # Convert non-breaking spaces to spaces.
    (rf"{NBSP}([%:?!;])", r"\1"),
    (rf"(nº|,){NBSP}", r"\1 "),
    (rf"{NBSP}(ºC|cm)", r" \1"),
    (r" +", " "),
]
"""Substitutions of `normalise_punctuation`, applied in this order."""

QUOTE_AND_COMMA: dict[str, list[tuple[str, str]]] = {
    "en": [(r'"([,.]+)', r'\1"'), (rf"(\d){NBSP}(\d)", r"\1.\2")],
    "de": [
        (r',"', '",'),
        (r'(\.+)"(\s*[^<])', r'"\1\2'),
        (rf"(\d){NBSP}(\d)", r"\1,\2"),
    ],
}
QUOTE_AND_COMMA["fr"] = QUOTE_AND_COMMA["de"]


def normalise_punctuation(text: str, language: str) -> str:
    """Normalize quotation marks, dashes and spaces as Moses' `normalize-punctuation` does."""
    _check(language)
    for pattern, replacement in [*NORMAL, *QUOTE_AND_COMMA[language]]:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def tokenise(text: str, language: str, *, normalise: bool = False) -> list[str]:
    """Split a text into words and punctuation marks. `normalise`: call `normalise_punctuation`
    first."""
    _check(language)
    if normalise:
        text = normalise_punctuation(text, language)
    text = re.sub(r"[\x00-\x1f]", "", re.sub(r"\s+", " ", text)).strip()
    text = re.sub(rf"([^\w\s.'`,\-]|[_{SMALL_DIGITS}])", r" \1 ", text)
    text = re.sub(r"(\.{2,})", r" \1 ", text)
    # A comma inside a number stays attached. The next two rules separate all other commas.
    text = re.sub(r"(\D),", r"\1 , ", text)
    text = re.sub(r",(\D|$)", r" , \1", text)
    for pattern, replacement in APOSTROPHES[language]:
        text = re.sub(pattern, replacement, text)
    words = text.split()
    apart = [
        part
        for word, following in zip(words, [*words[1:], ""], strict=False)
        for part in _without_period(word, following, language)
    ]
    return re.sub(r"\.' ?$", " . ' ", " ".join(apart)).split()


def _without_period(word: str, following: str, language: str) -> list[str]:
    """Split a final period from a word unless the word is an abbreviation."""
    stem = word.removesuffix(".")
    if stem == word or not stem or not stem.strip("."):
        return [word]
    is_kept = (
        ("." in stem and re.search(LETTER, stem) is not None)
        or stem in KEEP_PERIOD[language]
        or following[:1].islower()
        or (stem in KEEP_BEFORE_NUMBER.get(language, ()) and following[:1].isdecimal())
    )
    return [word] if is_kept else [stem, "."]


def _check(language: str) -> None:
    if language not in KEEP_PERIOD:
        known = suggest(language, KEEP_PERIOD)
        raise UserError(f"Moses tokenisation does not support the language {language!r}.{known}")
