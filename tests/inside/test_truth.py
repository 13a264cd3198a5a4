"""The truth meter says what is true, on models and maps of which it is known."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toy_grammar

from headway.errors import DataError, UserError
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.measure import truth
from headway.inside.measure.maps.map import Map
from headway.inside.measure.truth import AlignedPair, Case, GroundTruthLink, MapAccuracy
from headway.inside.measure.truth.accuracy import heaviest, is_head
from headway.inside.measure.truth.cases import strip_number
from headway.models.build import build_model
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.tokens.special_tokens import TokenRoles
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.vocabtxt import BERT_SPECIALS, vocab_txt

from ..interop.padded_runs import tiny_run
from .copier import WORDS, copier


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return copier(tmp_path_factory.mktemp("copier"))


def copied(run: LoadedRun, n: int = 12, seed: int = 1) -> list[Case]:
    """Texts without distractors, which the model can copy."""
    picks, pairs = random.Random(seed), []
    for _ in range(n):
        text = " ".join(picks.sample(WORDS, picks.randint(4, 9)))
        links = tuple((i, i) for i in range(len(text.split())))
        pairs.append(AlignedPair(text, text, links))
    return truth.alignment_cases(run, pairs)


def test_the_right_head_is_always_right_and_the_wrong_one_never(run: LoadedRun) -> None:
    cases = copied(run)
    found = truth.measure_accuracy(run, cases, few=2)
    right, wrong = found.maps["cross.0.0"], found.maps["cross.0.1"]
    assert (right.p1, right.aer) == (1.0, 0.0)
    # Only the last word can be hit: what stands behind it is no candidate.
    assert wrong.p1 < 0.3
    assert found.maps["cross.0.mean"].p1 < 0.5
    assert found.n == right.n == sum(len(case.links) for case in cases)
    for name in ("norm", "gradxattention", "gradxinput", "integrated", "occlusion"):
        assert found.maps[name].p1 == 1.0, name
    assert found.maps["integrated"].n == sum(len(case.links) for case in cases[:2])
    assert "decoder.0.0" not in found.maps


def test_the_best_head_is_chosen_on_one_half_and_judged_on_the_other(run: LoadedRun) -> None:
    cases = [in_order(run, 4), in_order(run, 6)] * 2

    def maker(_: LoadedRun, case: Case) -> list[Map]:
        """A head that is right on the even cases alone, and one that never is."""
        even = case.columns == cases[0].columns
        n, m = len(case.reading.outputs), len(case.reading.streams["source"])
        right, wrong = torch.eye(n, m), torch.zeros(n, m)
        wrong[:, -2] = 1.0
        return [
            Map.of("cross.0.0", {"source": right if even else wrong}),
            Map.of("cross.0.1", {"source": wrong}),
        ]

    found = truth.measure_accuracy(run, cases, maker=maker)
    assert found.best is not None
    assert (found.best.name, found.best.p1_chosen) == ("cross.0.0", 1.0)
    assert found.best.p1 == pytest.approx(1 / 6)
    assert found.best.n == 12


def in_order(run: LoadedRun, n: int) -> Case:
    text = " ".join(WORDS[:n])
    [case] = truth.alignment_cases(run, [AlignedPair(text, text, tuple((i, i) for i in range(n)))])
    return case


def test_chance_accuracy_equals_theory(run: LoadedRun) -> None:
    cases = copied(run, 150, seed=5)
    found = truth.measure_accuracy(run, cases, maker=lambda run, case: [])
    chances = [1 / len(case.columns) for case in cases for _ in case.links]
    score = found.maps["random"]
    assert score.random == pytest.approx(sum(chances) / len(chances))
    deviation = math.sqrt(sum(p * (1 - p) for p in chances)) / len(chances)
    assert abs(score.p1 - score.random) < 3 * deviation
    assert score.n > 500


def test_words_of_many_pieces_have_no_more_chances(run: LoadedRun) -> None:
    case = in_order(run, 9)
    n = len(case.reading.first)
    wide = replace(case, columns=((0, 1, 2, 3, 4), *((i,) for i in range(5, n))))
    hits = [
        heaviest(truth.random_map(wide, seed).parts()["source"], wide, wide.links[0]) == 0
        for seed in range(300)
    ]
    assert sum(hits) / 300 < 2 / len(wide.columns)


def test_candidates_and_several_right_places_count(run: LoadedRun) -> None:
    case = copied(run, 1)[0]
    link = replace(
        case.links[0], correct=frozenset({0, 1}), sure=frozenset(), candidates=(0, 1, 2, 3)
    )
    assert case.chance(link) == 0.5
    case = replace(case, links=(link,))

    def at(place: int) -> Map:
        weights = torch.zeros(len(case.links[0].rows), len(case.reading.first))
        weights[:, place] = -1.0  # signs are left out
        return Map.of("cross.0.0", {"source": weights})

    hit = truth.measure_accuracy(run, [case], maker=lambda *_: [at(1)]).maps["cross.0.0"]
    miss = truth.measure_accuracy(run, [case], maker=lambda *_: [at(3)]).maps["cross.0.0"]
    assert (hit.p1, hit.aer, miss.p1, miss.aer) == (1.0, 0.0, 0.0, 1.0)


def test_the_error_rate_needs_both_origins_of_a_word(run: LoadedRun) -> None:
    [case] = truth.alignment_cases(run, [AlignedPair("ba be bi", "ba", ((0, 0), (1, 0)))])
    assert case.links[0].sure == frozenset({0, 1})
    found = truth.measure_accuracy(run, [case], ["heads"]).maps["cross.0.0"]
    # One link was found and two are sure: 1 - (1 + 1) / (1 + 2).
    assert (found.p1, found.aer) == (1.0, pytest.approx(1 / 3))


def test_what_was_measured_goes_through_a_file(run: LoadedRun, tmp_path: Path) -> None:
    found = truth.measure_accuracy(run, copied(run, 4), ["heads", "norm"], task="words")
    found.save(tmp_path / "truth.json")
    again = MapAccuracy.load(tmp_path / "truth.json")
    assert (again.task, again.n, again.maps.keys()) == ("words", found.n, found.maps.keys())
    assert again.maps["norm"].p1 == pytest.approx(found.maps["norm"].p1, abs=1e-4)
    assert again.best == found.best
    assert again.unit == found.unit == "words"
    (tmp_path / "bad.json").write_text('{"task": "x"}')
    with pytest.raises(DataError, match=r"/bad\.json"):
        MapAccuracy.load(tmp_path / "bad.json")
    with pytest.raises(UserError, match="truth"):
        truth.measure_accuracy(run, [])


def test_the_toy_grammar_links_every_word_to_its_source() -> None:
    pairs = toy_grammar.grammar(200)
    assert pairs == toy_grammar.grammar(200)
    assert pairs != toy_grammar.grammar(200, seed=2)
    begins = {"kal": "noun", "ib": "adj", "wer": "verb", "zu": "adv", "zo": "adv"}
    for pair in pairs:
        source, target = pair.source.split(), pair.target.split()
        for place, word in enumerate(target):
            origins = [source[s] for s, t in pair.links if t == place]
            kind = next(kind for begin, kind in begins.items() if word.startswith(begin))
            [content] = [o for o in origins if o.startswith(kind)]
            assert content.removeprefix(kind) in word
            others = {o for o in origins if o != content}
            assert others <= ({"the", "a"} if kind == "noun" else {"up"})
        assert sorted(t for _, t in pair.links)[-1] == len(target) - 1
    diagonal = sum(s == t for pair in pairs for s, t in pair.links)
    assert diagonal / sum(len(pair.links) for pair in pairs) < 0.35


def test_known_pairs_go_through_a_file(tmp_path: Path) -> None:
    pairs = toy_grammar.copies(5)
    toy_grammar.write_known(pairs, tmp_path / "pairs.tsv")
    assert truth.read_aligned_pairs(tmp_path / "pairs.tsv") == pairs
    (tmp_path / "one.tsv").write_text("a b\tc\n\nonly one side\n")
    with pytest.raises(DataError, match=r"(?=.*\bline 3\b)(?=.*/one\.tsv)(?=.*\b1\.)"):
        truth.read_aligned_pairs(tmp_path / "one.tsv")
    with pytest.raises(DataError, match=r"/none\.tsv"):
        truth.read_aligned_pairs(tmp_path / "none.tsv")


def test_copied_words_are_names_and_numbers_that_occur_once() -> None:
    run = open_plain("tatoeba-de-en")
    pairs = [
        ("Ich kenne Tom seit 1999.", "I have known Tom since 1999."),  # two
        ("Was war das?", "Was that it?"),  # the same letters, another word, both times first
        ("Tom mag Tom.", "Tom likes Tom."),  # twice
        ("Er will also in den Wald.", "So he also wants to go in the wood."),  # small words
        ("Wohnt Maria in Boston?", "Does Mary live in Boston?"),  # one
    ]
    cases = truth.copied_word_cases(run, pairs)
    assert [len(case.links) for case in cases] == [2, 1]
    words = [case.reading.text.split() for case in cases]
    found = [
        words[n][next(iter(link.correct))] for n, case in enumerate(cases) for link in case.links
    ]
    assert found == ["Tom", "1999.", "Boston?"]


def test_repeats_count_only_what_the_model_copies() -> None:
    run = open_plain("stories")
    cases = truth.repeat_cases(run, 30, 32)
    assert cases
    for case in cases:
        ids = case.reading.first.ids
        assert ids[1:33] == ids[33:]
        for link in case.links:
            [row], [place] = link.rows, link.correct
            assert ids[place] == ids[row + 1]
            assert place <= row - 1
    found = truth.measure_accuracy(run, cases, ["heads"])
    assert found.maps["self.4.0"].p1 > 3 * found.maps["random"].random


def test_repeats_are_for_language_models(run: LoadedRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="complete"):
        truth.repeat_cases(run)
    with pytest.raises(UserError, match=r"\b999\b"):
        truth.repeat_cases(open_plain(tiny_run(tmp_path / "run", "complete")), 1, 999)


def test_atoms_lose_their_numbers_and_needless_brackets() -> None:
    given = ["[CH3:12]", "[cH:1]", "[n:2]", "[nH:3]", "[O-:4]", "[K+]", "C", "[C@H:5]", "[Cl:6]"]
    assert [strip_number(piece) for piece in given] == [
        ("C", 12), ("c", 1), ("n", 2), ("[nH]", 3), ("[O-]", 4), ("[K+]", None), ("C", None),
        ("[C@H]", 5), ("Cl", 6),
    ]  # fmt: skip


def chemist(folder: Path) -> LoadedRun:
    """An untrained model that reads reactions atom by atom."""
    pieces = [*BERT_SPECIALS, *"CNOFSPIcnos()=#.123-+", "Br", "Cl", ">>", "[nH]", "[O-]", "[K+]"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    roles = TokenRoles(unk="[UNK]", bos="[CLS]", eos="[SEP]", mask="[MASK]")
    made = Tokenizer(vocab_txt(folder / "vocab.txt"), roles=roles)
    settings = EncoderSettings(
        vocab_size=made.vocab_size, d_model=16, n_layers=1, n_heads=2, d_ff=16, max_len=64,
        heads=("words",),
    )  # fmt: skip
    run = RunSettings(task="fill", model=settings)
    return LoadedRun.of(folder, run, build_model(settings).eval(), Vocabularies(made, made))


def test_atoms_of_a_product_are_linked_to_their_sources(tmp_path: Path) -> None:
    run = chemist(tmp_path)
    path = tmp_path / "reactions.smi"
    path.write_text(
        "# made up\n[CH3:1][CH:2]([CH3:1])Br.[O-:3].[K+]>>[CH3:1][CH:2]([CH3:1])[OH:3]\n"
    )
    [case] = truth.atom_cases(run, path)
    assert case.unit == "atoms"
    assert case.reading.text == "CC(C)Br.[O-].[K+]>>CC(C)O"
    pieces = case.reading.last.pieces
    assert [pieces[place] for (place,) in case.columns] == ["C", "C", "C", "Br", "[O-]", "[K+]"]
    assert [sorted(link.correct) for link in case.links] == [[0, 2], [1], [0, 2], [4]]
    assert [sorted(link.sure) for link in case.links] == [[], [1], [], [4]]
    rows = [case.reading.outputs[link.rows[0]].row for link in case.links]
    assert [pieces[row] for row in rows if row is not None] == ["C", "C", "C", "O"]
    assert truth.atom_case(run, "CC>>CC") is None
    with pytest.raises(DataError, match=r"(?=.*SMILES)(?=.*'a text')"):
        truth.atom_case(run, "a text")


@pytest.mark.parametrize(
    ("name", "wanted"), [("cross.0.12", True), ("cross.0.mean", False), ("norm", False)]
)
def test_heads_are_known_by_their_names(name: str, wanted: bool) -> None:
    assert is_head(name) is wanted


def test_links_keep_to_their_rows_when_outputs_are_left_out(run: LoadedRun) -> None:
    reading = read(run, "ba be bi bo", GenerationOptions(output="ba be bi bo"))
    columns = tuple((i,) for i in range(4))
    link = GroundTruthLink((2,), frozenset({2}), frozenset({2}))
    narrow = Case(reading, "source", columns, (link,)).with_judged_outputs()
    assert narrow.links[0].rows == (0,)
    assert [output.row for output in narrow.reading.outputs] == [2]
    assert truth.measure_accuracy(run, [narrow], ["heads"]).maps["cross.0.0"].p1 == 1.0


def test_the_shipped_translators_carry_their_truth() -> None:
    from headway.settings.folder import SHIPPED

    for name in ("tatoeba-de-en", "tatoeba-en-de", "stories"):
        path = SHIPPED / name / "truth.json"
        found = MapAccuracy.load(path)
        assert found.best is not None
        assert found.best.p1 > 3 * found.maps["random"].random
        assert json.loads(path.read_text())["maps"]["norm"]["n"] == found.n
        assert path.stat().st_size < 20_000
