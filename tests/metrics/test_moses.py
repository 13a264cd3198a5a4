"""Our Moses rules against another port of the scripts, on sentences that are easy to get wrong."""

from __future__ import annotations

import pytest
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from headway.errors import UserError
from headway.metrics.moses import normalise_punctuation, tokenise

ENGLISH = [
    "",
    " ",
    ".",
    "...",
    "'",
    "Hello, world!",
    "Mr. Smith's dog isn't Mrs. Jones' dog.",
    "The U.S. economy grew 3.5% in Jan. 2019, i.e. $5,300.00 more.",
    "He said: “I can’t do it” – and left…",
    "See No. 5 and No. No one; Art. 3, pp. 12-15.",
    "It ends in a number, 5,",
    "A,B,C,D 1,2,3 a,1 1,a ,x x,",
    "the 1990's and the '90s",
    "rock 'n' roll, don't, o'clock, 'quoted' words.",
    "wait.... what..? ok.. Fine ..",
    "state-of-the-art, well--known, -5 degrees",
    "e-mail me at a_b@c.org or http://www.x.org/y_z?a=b&c=d.",
    "Dr. Who vs. the J. R. R. Tolkien Soc. of St. Ives.",
    "He lives in Washington D.C. and she left at 5 p.m. The end.",
    "etc. and so on. He left. she stayed.",
    'She said "stop." Then "go", "now".',
    "`backticks' and ``doubled''",
    "(brackets) [square] {curly} <tag> a|b & c",
    "He ( who was late ) came ; she : did not .",
    "tab\there\x07 and\u00a0there",
    "100 % sure, 50 %, 3 000, 3\u00a0000",
    "He said 'I am here.'",
    "½ of it, x² and ™ and €5 and №7",
    "ß straße naïve café",
    "a.b.c. A.B. 3.4. 5.",
    "one ´two´ ‘three’ ‚four‘ it‘s it’s",
    "wow!!! really??? yes?!",
]
GERMAN = [
    "Er kam am 3. Mai 2012 um 17.30 Uhr an.",
    "Das kostet ca. 3,50 Euro, d.h. 1.000,00 zusammen.",
    "z.B. Herr Dr. Müller bzw. Frau Prof. Schmidt, usw.",
    "„Geht’s noch?“, fragte er.",
    "Wie geht's? Hans' Hund",
    "Ludwig XIV. war König. Der XXI. nicht.",
    "Er sagte: »Nein.« Dann ging er…",
    "Die Nr. 5 lebt. Mio. Menschen",
    "Zeit: 12:30, Ergebnis 3:2, Seite 5ff.",
    "Und, und, und, 1,5 und 2,",
    '"Ja," sagte er. "Nein". "Doch." Ende',
    "3\u00a0000 Menschen\u00a0: 5\u00a0% , nº\u00a05",
    "E-Mail-Adresse, Auto-, Bus- und Bahnfahrer",
    "im 18. Jahrhundert. Am 100. Tag. das 99. Mal",
    "a. b. C. Z. ä. Ö.",
]
FRENCH = [
    "L'homme qu'il a vu aujourd'hui n'est pas là.",
    "« Bonjour », dit-elle.",
    "«\u00a0Bonjour\u00a0», dit-elle\u00a0: «\u00a0Ça va\u00a0?\u00a0»",
    "C'est à 5 km, p. ex. à 3,5 km env. de l'école.",
    "Qu’est-ce que c’est ? L’été !",
    "M. Dupont et Mme. Martin, cf. chap. 3, vol. 2.",
    "Il a dit \"oui.\" Puis 'non'.",
    "3\u00a0000 personnes et 20\u00a0ºC ou 5\u00a0cm",
    "l' homme d'1 an 5'a a'5 ' seul",
    "Les MM. Durand, etc. Fin.",
    "Œuvre, cœur, naïf, garçon.",
]
CASES = [
    (language, text)
    for language, texts in {"en": ENGLISH, "de": GERMAN, "fr": FRENCH}.items()
    for text in texts
]


@pytest.mark.parametrize(("language", "text"), CASES)
def test_it_gives_what_the_scripts_give(language: str, text: str) -> None:
    # The option makes it do what the Perl script does with a right single quote.
    normalised = MosesPunctNormalizer(language, perl_parity=True).normalize(text)
    assert normalise_punctuation(text, language) == normalised
    port = MosesTokenizer(language)
    for version in (text, text.lower(), normalised):
        assert tokenise(version, language) == port.tokenize(version, escape=False)
    assert tokenise(text, language, normalise=True) == port.tokenize(normalised, escape=False)


def test_every_language_has_rules_of_its_own() -> None:
    text = "l'an 3. Mai"
    assert tokenise(text, "en") == ["l", "'an", "3", ".", "Mai"]
    assert tokenise(text, "fr") == ["l'", "an", "3", ".", "Mai"]
    assert tokenise(text, "de") == ["l", "'", "an", "3.", "Mai"]


def test_han_characters_are_letters() -> None:
    """As for Perl; the port takes them for symbols unless the language is Chinese."""
    assert tokenise("奈良 (city)", "en") == ["奈良", "(", "city", ")"]


def test_a_language_without_rules_is_an_error() -> None:
    for function in (tokenise, normalise_punctuation):
        with pytest.raises(UserError, match=r"'xx'.*\bde\b.*\bfr\b"):
            function("text", "xx")
