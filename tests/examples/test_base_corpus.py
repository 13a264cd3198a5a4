import base_corpus
import pytest
from base_corpus import Overlap, is_english, parts, words

EVALUATION = [
    ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "by", "the", "river"],
    ["such", "a", "lovely", "film"],
    ["too", "short", "here"],
]


@pytest.mark.parametrize(
    ("paragraph", "shared"),
    [
        ("Yesterday the Quick, brown fox jumps over the lazy cat.", True),  # eight words
        ("Yesterday a quick brown fox jumps over the lazy cat.", False),  # seven
        ("It was SUCH a lóvely film, he said.", True),  # a whole sentence of four
        ("It was such a lovely day.", False),
        ("This is too short here.", False),  # a whole sentence of three
    ],
)
def test_paragraphs_that_share_words_with_an_evaluation_set_are_found(
    paragraph: str, shared: bool
) -> None:
    overlap = Overlap(EVALUATION)
    assert overlap.shared([words("Another one."), words(paragraph)]).tolist() == [False, shared]


def test_runs_do_not_cross_paragraphs() -> None:
    overlap = Overlap(EVALUATION)
    halves = [words("It was such a"), words("lovely film")]
    assert not overlap.shared(halves).any()


def test_tokenised_negations_and_quotes_are_the_same_words() -> None:
    assert words("He does n't – it 's “fine”") == words("he doesn’t, it's fine")


def test_long_paragraphs_are_cut_between_sentences() -> None:
    sentence = "This is one sentence of a long text."
    cut = list(parts(" ".join([sentence] * 100)))
    assert max(map(len, cut)) <= base_corpus.LONGEST
    assert all(part.endswith(".") for part in cut)
    assert " ".join(cut).count(sentence) == 100


def test_lists_and_other_languages_are_not_english() -> None:
    assert is_english(words("This is the house that he built for his family."))
    assert not is_english(words("Der Hund liegt unter dem Baum und schläft den ganzen Tag."))
    assert not list(parts("12:30 14:40 15:50 1999-2004 $$ 17 18 19 20"))
