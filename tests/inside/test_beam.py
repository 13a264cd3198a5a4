"""The tree of a search: every continuation accounted for, every hypothesis true to the model."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
import torch

from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.searcher import Searcher
from headway.decode.writer import token_log_probs
from headway.errors import UserError
from headway.inside.capture.beam import beam_tree, has_search, rerun
from headway.inside.capture.beam_tree import FATES, PLACED, BeamTree
from headway.inside.capture.forward import run_reading
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.trace import trace
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings
from headway.tasks.loaded_run import LoadedRun, open_plain

TEXT = "Ein Mann fährt mit dem Fahrrad durch die Stadt, obwohl es regnet."
PROMPT = "Once upon a time there was"
SEARCHES = {
    "paper": DecodeSettings(),
    "several": DecodeSettings(beam=3, n_best=3, length_penalty="power", length_penalty_alpha=1.0),
    "short": DecodeSettings(beam=4, n_best=2, max_len=5),
    "no penalty": DecodeSettings(beam=2, length_penalty="none", min_len=15),
    "ban": DecodeSettings(beam=4, no_repeat_ngram=1, unknown="keep"),
    "groups": DecodeSettings(beam=4, groups=2, diversity=1.0, n_best=4),
    "singles": DecodeSettings(beam=3, groups=3, n_best=3),
    "coverage": DecodeSettings(beam=4, coverage=0.5, n_best=4),
    "greedy": DecodeSettings(beam=1),
    "greedy, short": DecodeSettings(beam=1, max_len=3),
}


@cache
def translator() -> LoadedRun:
    return open_plain("tatoeba-de-en")


@cache
def writer() -> LoadedRun:
    return open_plain("stories")


@cache
def tree_of(name: str) -> BeamTree:
    return beam_tree(translator(), TEXT, SEARCHES[name])


def source() -> list[int]:
    vocab = translator().vocab.source
    return vocab.as_source(vocab.encode(TEXT))


def given_again(tree: BeamTree) -> list[list[float]]:
    """Log-probabilities of the tokens of every node, from one pass over whole hypotheses."""
    model, target = translator().model, translator().vocab.target
    assert isinstance(model, Seq2Seq)
    nodes = tree.nodes[1:]
    ended = [node.token == target.eos for node in nodes]
    targets = [
        list(node.tokens[:-1]) if end else list(node.tokens)
        for node, end in zip(nodes, ended, strict=True)
    ]
    sources = [source()] * len(nodes)
    found = token_log_probs([model], sources, targets, bos=target.bos, eos=target.eos)
    return [logs if end else logs[:-1] for logs, end in zip(found, ended, strict=True)]


@pytest.mark.parametrize("name", SEARCHES)
def test_the_model_gives_every_kept_and_pruned_node_its_log_probability(name: str) -> None:
    tree = tree_of(name)
    fates = {node.fate for node in tree.nodes[1:]}
    assert "greedy" in name or "cut" in fates
    for node, logs in zip(tree.nodes[1:], given_again(tree), strict=True):
        assert node.log_prob == pytest.approx(sum(logs), abs=1e-4)
        assert node.token_log_prob == pytest.approx(logs[-1], abs=1e-4)


@pytest.mark.parametrize("name", SEARCHES)
def test_every_continuation_of_every_hypothesis_is_accounted_for(name: str) -> None:
    tree, size = tree_of(name), translator().vocab.target.vocab_size
    by_step = {(count.step, count.group): count for count in tree.counts}
    assert len(by_step) == len(tree.counts)
    for count in tree.counts:
        before = [
            node
            for node in tree.nodes
            if node.step == count.step - 1
            and node.fate in ("kept", "starved")
            and (node.group == count.group or node.id == 0)
        ]
        assert count.alive == len(before)
        assert count.scored == count.alive * size == count.ruled_out + count.listed + count.rest
        nodes = [n for n in tree.nodes[1:] if (n.step, n.group) == (count.step, count.group)]
        assert count.listed == len(nodes)
        assert sorted(node.rank for node in nodes) == list(range(1, len(nodes) + 1))
    assert sum(count.listed for count in tree.counts) == tree.expanded == tree.kept + tree.cut
    assert {node.fate for node in tree.nodes} <= FATES.keys()
    # What stops is a leaf, and only what goes on has something behind it.
    for node in tree.nodes:
        assert bool(tree.children[node.id]) == (node.fate == "kept")
        assert node.why
        assert bool(node.next) == (node.fate in ("kept", "starved"))


@pytest.mark.parametrize("name", SEARCHES)
def test_the_best_leaf_is_what_the_decoder_gives(name: str) -> None:
    run, tree = translator(), tree_of(name)
    assert isinstance(run.model, Seq2Seq)
    specials = SpecialTokens.of(run.vocab.target)
    [found] = Searcher([run.model], SEARCHES[name], specials)([source()])
    assert len(tree.outputs) == len(found)
    for number, h in zip(tree.outputs, found, strict=True):
        node = tree.nodes[number]
        assert list(node.tokens) == h.tokens + [specials.eos] * h.finished
        assert node.log_prob == pytest.approx(h.log_prob, abs=1e-4)
        assert node.score == pytest.approx(h.score, abs=1e-4)
        logs = [one.token_log_prob for one in tree.path(number)]
        assert logs == pytest.approx(h.token_log_probs, abs=1e-4)
    assert tree.text(tree.best) == run.vocab.target.decode(found[0].tokens)
    ended = [node.score for node in tree.nodes if node.fate == "ended"]
    assert not ended or tree.best.score == pytest.approx(max(ended), abs=1e-4)


def test_nothing_better_was_left_out() -> None:
    """The best of the rest of each step is no better than the worst that was taken up."""
    tree = tree_of("paper")
    for count in tree.counts:
        nodes = [node for node in tree.nodes[1:] if node.step == count.step]
        assert count.rest_best is not None
        assert count.rest_best <= min(node.log_prob for node in nodes)
        # The first of the rest is what a wider beam would take up next.
    first = beam_tree(translator(), TEXT, DecodeSettings(beam=5))
    wider = [node.log_prob for node in first.nodes if node.step == 1]
    assert tree.counts[0].rest_best == pytest.approx(wider[8], abs=1e-5)


@pytest.mark.parametrize("name", ["greedy", "greedy, short"])
def test_the_tree_of_greedy_decoding_is_one_path(name: str) -> None:
    tree = tree_of(name)
    assert [node.parent for node in tree.nodes[1:]] == list(range(len(tree.nodes) - 1))
    assert all(node.rank == 1 for node in tree.nodes)
    assert tree.best.fate == ("limit" if "short" in name else "ended")
    assert tree.cut == 0
    # Each token is the best of those that the model held possible.
    for node in tree.nodes[1:]:
        assert tree.nodes[node.parent].next[0].token == node.token


def test_nodes_die_for_the_reason_they_give() -> None:
    tree = tree_of("paper")
    by_fate = {fate: [n for n in tree.nodes[1:] if n.fate == fate] for fate in FATES}
    for node in by_fate["cut"]:
        same = [n for n in tree.nodes[1:] if n.step == node.step and n.fate != "ended"]
        better = [n for n in same if n.log_prob >= node.log_prob and n.id != node.id]
        assert len(better) >= 4
        assert re.search(rf"\b{node.rank}\b.*\b4\b", node.why)
    for node in by_fate["starved"]:
        children = [n for n in tree.nodes[1:] if n.step == node.step + 1]
        best_child = node.log_prob + node.next[0].log_prob
        assert best_child <= min(n.log_prob for n in children)
        assert f"step {node.step + 1}" in node.why
    longest = ((5 + tree.limit) / 6) ** 0.6
    assert by_fate["overtaken"]
    for node in by_fate["overtaken"]:
        assert node.log_prob / longest < tree.best.score
        assert f"{tree.best.score:.2f}" in node.why
    assert f"{tree.best.score:.2f}" in tree.stopped
    places = [n.place for n in sorted(by_fate["ended"], key=lambda n: -n.score)]
    assert places == [1, 2, 3, 4]


def test_hypotheses_that_end_too_low_are_marked_lost() -> None:
    settings = DecodeSettings(beam=2, n_best=2, length_penalty_alpha=2.0, extra_len=20)
    trees = [beam_tree(translator(), text, settings) for text in ("Ja.", "Komm!", "Guten Tag!")]
    lost = [(tree, n) for tree in trees for n in tree.nodes if n.fate == "lost"]
    assert {f"{n.score:.2f}" in n.why for _, n in lost} == {True}
    for tree, node in lost:
        finished = [n.score for n in tree.nodes if n.fate == "ended"]
        assert len(finished) == 2
        assert node.score <= min(finished)
        assert node.fate not in PLACED


def test_a_length_limit_leaves_hypotheses_alive() -> None:
    tree = tree_of("short")
    assert {n.fate for n in tree.nodes if n.step == 5} <= {"limit", "cut", "ended", "lost"}
    assert re.search(r"\b5\b", tree.stopped)
    assert [tree.nodes[number].fate for number in tree.outputs] == ["limit", "limit"]


def test_groups_are_trees_of_their_own_from_one_root() -> None:
    tree = tree_of("groups")
    assert {node.group for node in tree.nodes} == {0, 1}
    for node in tree.nodes[1:]:
        assert node.parent == 0 or tree.nodes[node.parent].group == node.group
    assert re.search(r"\b2 groups", tree.summary)


def test_rules_count_as_ruled_out_and_leave_no_node() -> None:
    run = translator()
    target, size = run.vocab.target, run.vocab.target.vocab_size
    banned = {target.bos, target.unk}
    plain = tree_of("paper")
    assert all(count.ruled_out == 2 * count.alive for count in plain.counts)
    late = tree_of("no penalty")
    assert [c.ruled_out // c.alive for c in late.counts][:16] == [3] * 15 + [2]
    assert all(node.step > 15 for node in late.nodes[1:] if node.token == target.eos)
    again = tree_of("ban")
    for node in again.nodes[1:]:
        assert len(set(node.tokens)) == len(node.tokens)
    assert again.counts[5].ruled_out == (5 + 1) * again.counts[5].alive  # used ones, and <s>
    prefix = tuple(target.encode("A woman"))
    forced = beam_tree(run, TEXT, DecodeSettings(), wish=TokenConstraints(prefix=prefix))
    assert forced.best.tokens[: len(prefix)] == prefix
    for count in forced.counts[: len(prefix)]:
        assert (count.alive, count.listed, count.rest) == (1, 1, 0)
        assert count.ruled_out == size - 1
        assert count.rest_best is None
    for tree in (plain, late, forced):
        assert not banned & {token for node in tree.nodes for token in node.tokens}


def test_a_tree_survives_json() -> None:
    for tree in (tree_of("paper"), tree_of("groups"), tree_of("greedy, short")):
        assert BeamTree.from_dict(json.loads(json.dumps(tree.to_dict()))) == tree


def test_a_language_model_has_a_tree_too() -> None:
    run = writer()
    tree = beam_tree(run, PROMPT, DecodeSettings(beam=3, max_len=30), new=12)
    tokenizer = run.vocab.target
    prompt = tokenizer.as_prompt(tokenizer.encode(PROMPT))
    settings = DecodeSettings(beam=3, max_len=12)
    search = Searcher([run.model], settings, SpecialTokens.of(tokenizer), 512)  # type: ignore[list-item]
    [[best]] = search([prompt])
    assert list(tree.best.tokens) == best.tokens
    assert tree.best.log_prob == pytest.approx(best.log_prob, abs=1e-4)
    reading = read(run, PROMPT)
    for node in tree.nodes[1::5]:
        again = rerun(run, reading, tree, node)
        with torch.no_grad():
            logs_R = run_reading(run, again).log_probs_R[-node.step :]
        expected = [one.token_log_prob for one in tree.path(node)]
        assert logs_R.tolist() == pytest.approx(expected, abs=1e-4)
    # A run that draws is searched all the same.
    assert beam_tree(run, PROMPT, new=3).beam == 4


def test_any_node_can_be_read_again() -> None:
    run, tree = translator(), tree_of("paper")
    reading = read(run, TEXT)
    fates = {node.fate: node for node in tree.nodes[1:]}
    assert fates.keys() >= {"kept", "cut", "ended", "overtaken", "starved"}
    for node in fates.values():
        again = rerun(run, reading, tree, node.id)
        assert [output.id for output in again.outputs] == list(node.tokens)
        with torch.no_grad():
            logs_R = run_reading(run, again).log_probs_R
        assert float(logs_R.sum()) == pytest.approx(node.log_prob, abs=1e-4)
        assert again.finished == (node.fate == "ended")
    assert rerun(run, reading, tree, tree.best) == reading
    with pytest.raises(UserError, match="node 0"):
        rerun(run, reading, tree, 0)


def test_a_search_that_has_no_tree_is_an_error() -> None:
    run = translator()
    with pytest.raises(UserError, match="required"):
        beam_tree(run, TEXT, wish=TokenConstraints(required=((5, 6),)))
    other = run.with_model(run.model, RunSettings(task="classify", model=EncoderSettings()))
    assert not has_search(other)
    with pytest.raises(UserError, match="classify"):
        beam_tree(other, TEXT)


def test_a_trace_with_its_tree_searches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search that found the answer is the one that is drawn."""
    searched: list[object] = []
    plain = Searcher.__call__

    def counted(self: Searcher, sources: Any, *more: Any, **others: Any) -> Any:
        searched.append(sources)
        return plain(self, sources, *more, **others)

    monkeypatch.setattr(Searcher, "__call__", counted)
    found = trace(translator(), TEXT, beam=True)
    assert len(searched) == 1
    assert found.beam is not None
    assert found.beam == beam_tree(translator(), TEXT)
    trace(translator(), TEXT, GenerationOptions(decode=DecodeSettings(sample=True)), beam=True)
    assert len(searched) == 4  # what is drawn by chance is no tree
