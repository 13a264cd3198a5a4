"""Modified Kneser–Ney, by hand, by a slow second way, and as Heafield's `lmplz` computes it."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.nn.kneser_ney import FALLBACK, NONE, KneserNey, discounts_of, preceding_tokens

START, END = 0, 1
FOLDER = Path(__file__).parent / "kneser_ney"
Texts = list[list[int]]


def flat(texts: Texts) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Read and to be said, text behind text, as documents are."""
    read = [token for text in texts for token in [START, *text]]
    found = [token for text in texts for token in [*text, END]]
    return np.array(read), np.array(found), [len(text) + 1 for text in texts]


def fitted(texts: Texts, vocab_size: int, order: int) -> KneserNey:
    return KneserNey.fitted(*flat(texts), vocab_size=vocab_size, order=order)


def chances_after(model: KneserNey, tokens: list[int]) -> torch.Tensor:
    return model.all_probs(contexts(model, tokens)[-1:])[0]


def contexts(model: KneserNey, tokens: list[int], lengths: list[int] | None = None) -> torch.Tensor:
    places = [place for length in lengths or [len(tokens)] for place in range(length)]
    return model.contexts(
        preceding_tokens(torch.tensor(tokens), torch.tensor(places), model.order - 1)
    )


def drawn(n: int, vocab_size: int, seed: int = 0) -> Texts:
    """Texts in which some tokens are frequent and follow each other; 6 or more never occur."""
    draw = np.random.default_rng(seed)
    texts: Texts = []
    for _ in range(n):
        text = [int(draw.integers(2, vocab_size - 2))]
        for _ in range(int(draw.integers(0, 9))):
            near = (text[-1] + int(draw.integers(0, 3))) % (vocab_size - 4) + 2
            text.append(near if draw.random() < 0.8 else int(draw.integers(2, vocab_size - 2)))
        texts.append(text)
    return texts


def test_two_texts_by_hand() -> None:
    """`a b` and `a c`. No n-gram occurs three times, so discounts are ½, 1 and 1½."""
    a, b, c = 2, 3, 4
    model = fitted([[a, b], [a, c]], vocab_size=5, order=2)
    # One token stands before a, b and c each, two before the end: five in all. Discounts leave
    # (3 · ½ + 1) / 5 = ½, a tenth for each of five tokens.
    alone = {
        a: 0.5 / 5 + 0.1,
        b: 0.5 / 5 + 0.1,
        c: 0.5 / 5 + 0.1,
        END: (2 - 1) / 5 + 0.1,
        START: 0.1,
    }
    for token, chance in alone.items():
        assert float(model.chance_V[token]) == pytest.approx(chance)
    # Two texts begin with a: (2 − 1) / 2 stays, and ½ goes back.
    assert float(chances_after(model, [START])[a]) == pytest.approx(0.5 + 0.5 * 0.2)
    behind_a = chances_after(model, [START, a])
    assert float(behind_a[b]) == pytest.approx(0.5 / 2 + (0.5 + 0.5) / 2 * 0.2)
    assert float(behind_a[END]) == pytest.approx(0.5 * 0.3)
    assert float(chances_after(model, [b])[END]) == pytest.approx(0.5 / 1 + 0.5 * 0.3)
    # Nothing was ever seen behind an end.
    assert torch.equal(chances_after(model, [END]), model.chance_V)


def test_discounts_by_hand() -> None:
    """n₁ = 4, n₂ = 2, n₃ = 1, n₄ = 1, so Y = 4 / (4 + 2 · 2) = ½."""
    found = discounts_of(np.array([1, 1, 1, 1, 2, 2, 3, 4, 9]))
    assert found == pytest.approx((1 - 2 * 0.5 * 2 / 4, 2 - 3 * 0.5 * 1 / 2, 3 - 4 * 0.5 * 1 / 1))


@pytest.mark.parametrize(
    "counts",
    [[], [1, 1, 1], [1, 2, 2], [2, 3, 4], [1, 2] + [3] * 9, [1, 2, 3, 4, 4, 4, 4]],
    ids=["nothing", "only ones", "no threes", "no ones", "second below 0", "third below 0"],
)
def test_what_cannot_be_estimated_is_discounted_as_usual(counts: list[int]) -> None:
    assert discounts_of(np.array(counts, np.int64)) == FALLBACK


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_add_up_to_one(order: int) -> None:
    """Behind every context of other texts, known or not, also of tokens that never occurred."""
    model = fitted(drawn(80, 12), 12, order)
    read, found, lengths = flat(drawn(30, 14, seed=1))
    read, found = read % 12, found % 12
    x_NK = contexts(model, read.tolist(), lengths)
    p_NV = model.all_probs(x_NK)
    torch.testing.assert_close(p_NV.sum(1), torch.ones(len(read)))
    assert float(p_NV.min()) > 0
    alone_N = model.token_probs(x_NK, torch.tensor(found))
    torch.testing.assert_close(alone_N, p_NV[torch.arange(len(found)), torch.tensor(found)])


def slow(texts: Texts, vocab_size: int, order: int, context: tuple[int, ...], token: int) -> float:
    """The formulas as they stand in the papers, with dictionaries."""
    raw: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
    for text in texts:
        whole = (START, *text, END)
        for n in range(1, order + 1):
            ends = range(max(n, 2), len(whole) + 1)
            raw[n].update(whole[end - n : end] for end in ends)
    counts = raw[:]
    for n in range(1, order):
        before: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in raw[n + 1]:
            before[gram[1:]].add(gram[0])
        counts[n] = Counter(
            {g: times if g[0] == START else len(before[g]) for g, times in raw[n].items()}
        )

    def p(context: tuple[int, ...]) -> float:
        n = len(context) + 1
        off = (0.0, *discounts_of(np.array(list(counts[n].values()), np.int64)))
        after = {gram[-1]: a for gram, a in counts[n].items() if gram[:-1] == context}
        lower = p(context[1:]) if context else 1 / vocab_size
        total = sum(after.values())
        if not total:
            return lower
        a = after.get(token, 0)
        back = sum(off[min(one, 3)] for one in after.values()) / total
        return (a - off[min(a, 3)]) / total + back * lower

    return p(context)


def test_as_with_dictionaries() -> None:
    texts, order = drawn(60, 9, seed=2), 3
    model = fitted(texts, 9, order)
    found = model.all_probs(contexts(model, [START, 3, 4, 8]))
    seen = [(START,), (START, 3), (3, 4), (4, 8)]
    for row, context in enumerate(seen):
        for token in range(9):
            expected = slow(texts, 9, order, context, token)
            assert float(found[row, token]) == pytest.approx(expected, rel=1e-5)


def test_a_text_does_not_see_its_neighbour() -> None:
    model = fitted(drawn(80, 12), 12, 4)
    text = [START, 3, 4, 5]
    both, alone = contexts(model, text + text, [4, 4]), contexts(model, text)
    assert torch.equal(both, torch.cat([alone, alone]))
    assert int(both[4, 1]) == NONE


def test_a_context_is_known_if_it_occurred() -> None:
    model = fitted([[2, 3, 4], [3, 5]], 6, 4)
    known_NK = contexts(model, [2, 3, 5, 4]) != NONE
    assert known_NK.tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, False],  # 3 5, but never 2 3 5
        [True, False, False],
    ]


def test_a_longer_order_than_any_text() -> None:
    model, short = (fitted([[2, 3], [2]], 5, order) for order in (9, 4))
    for context in ([START], [START, 2], [START, 2, 3]):
        torch.testing.assert_close(chances_after(model, context), chances_after(short, context))


def test_nothing_is_known_before_it_is_fitted() -> None:
    for model in (KneserNey(4, 3), fitted([], 4, 3)):
        torch.testing.assert_close(chances_after(model, [0, 2]), torch.full((4,), 0.25))


def test_an_order_below_one_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="order=0"):
        KneserNey(4, 0)


# As `lmplz` has it


def made_up() -> tuple[Texts, list[str]]:
    """Texts of words, and the words. No text has `<s>`, as none has `<unk>`: one chance, so our
    start token stands for the unknown word of the others."""
    lines = [line.split() for line in (FOLDER / "corpus.txt").read_text().splitlines()]
    words = ["<s>", "</s>", *sorted({word for line in lines for word in line})]
    numbers = {word: i for i, word in enumerate(words)}
    return [[numbers[word] for word in line] for line in lines], words


def check_arpa(text: str, model: KneserNey, words: list[str]) -> int:
    """Every probability and every weight of backing off; how many n-grams that were."""
    numbers = {word: i for i, word in enumerate(words)} | {"<unk>": START}
    n_checked = 0
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) < 2 or line.startswith("ngram"):
            continue
        *context, token = (numbers[word] for word in fields[1].split())
        if fields[1] != "<s>":  # which they never predict
            p_V = chances_after(model, context) if context else model.chance_V
            assert math.log10(float(p_V[token])) == pytest.approx(float(fields[0]), abs=1e-4)
        if len(fields) > 2 and fields[1] not in ("<unk>", "</s>") and token != END:
            node = contexts(model, [*context, token])[-1, len(context)]
            back = math.log10(float(model.backoff_I[node]))
            assert back == pytest.approx(float(fields[2]), abs=1e-4)
        n_checked += 1
    return n_checked


def test_every_number_of_lmplz() -> None:
    """The file was made by `lmplz -o 3 --discount_fallback < corpus.txt` (kenlm 0.3.0)."""
    texts, words = made_up()
    model = fitted(texts, len(words), 3)
    n = check_arpa((FOLDER / "lmplz-3.arpa").read_text(), model, words)
    assert n == model.n_grams + 1  # theirs has a start of texts and an unknown word


@pytest.mark.skipif(shutil.which("lmplz") is None, reason="kenlm's lmplz is not installed")
@pytest.mark.parametrize("order", [1, 2, 4, 5])
def test_as_lmplz_has_it_here(order: int) -> None:
    texts, words = made_up()
    command = ["lmplz", "-o", str(order), "-S", "10%", "--discount_fallback"]
    with (FOLDER / "corpus.txt").open() as corpus:
        made = subprocess.run(command, stdin=corpus, capture_output=True, text=True, check=True)
    model = fitted(texts, len(words), order)
    assert check_arpa(made.stdout, model, words) == model.n_grams + 1
