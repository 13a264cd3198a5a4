"""Observer of a beam search that records every hypothesis and the reason why it was pruned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headway.decode.search.job import BeamStep, Hypothesis, Job
from headway.inside.capture.beam_tree import FATES, BeamTree, Node, StepCounts, TokenCandidate

OPTIONS = 6
"""Number of most probable next tokens that are stored for each node."""

PiecesFunction = Callable[[Sequence[int]], list[str]]
"""Function that converts token ids to readable sub-word tokens."""


@dataclass
class BeamGroup:
    """State of one group of a diverse beam search. Hypotheses are given as ids of nodes of the
    search tree."""

    alive: list[int] = field(default_factory=lambda: [0])
    finished: list[int] = field(default_factory=list)
    stopped: str = ""


class BeamRecorder:
    """Beam search observer that records the search tree for one source or prompt."""

    def __init__(self, job: Job, spell: PiecesFunction) -> None:
        self.job, self.spell = job, spell
        self.eos, self.limit = job.specials.eos, job.limits[0]
        self.width = job.settings.beam // job.settings.groups
        self.stop_at = min(job.settings.n_best, self.width)
        start = job.specials.bos if job.prompts is None else job.prompts[0][-1]
        root = Node(
            0, -1, (), spell([start])[0], 0.0, 0.0, 0.0, 0, 1, 0, "kept", "root of the tree"
        )
        self.nodes = [root]
        self.counts: list[StepCounts] = []
        self.groups: dict[int, BeamGroup] = {}

    def on_beam_step(self, growth: BeamStep) -> None:
        group = self.groups.setdefault(growth.group, BeamGroup())
        if growth.before.done_B[0]:
            return
        scores_WV = growth.scores_BWV[0, : len(group.alive)]
        self._ask(group, scores_WV)
        new, ends = self._listed(growth, group)
        self._count(growth, group, scores_WV, len(new))
        fed = {self.nodes[number].parent for number in new}
        for number in group.alive:
            if number not in fed and number:
                self._starve(number, len(growth.found.token_BC[0]))
        known = {self.nodes[number].tokens: number for number in [*new, *group.finished]}
        group.alive = _places(known, growth.after.tokens_BWT[0], growth.after.log_prob_BW[0],
                              [growth.at + 1] * self.width)  # fmt: skip
        finished = _places(known, growth.after.ended_tokens_BWT[0], growth.after.ended_score_BW[0],
                           growth.after.ended_length_BW[0].tolist())  # fmt: skip
        self._cut(new, group.alive)
        self._lose([*group.finished, *ends], finished, growth.at + 1)
        group.finished = finished
        if growth.after.done_B[0]:
            self._stop(growth, group)

    def on_token_step(self, scores_RV: Tensor, sources: Sequence[int], token_R: Tensor) -> None:
        group = self.groups.setdefault(0, BeamGroup())
        self._ask(group, scores_RV)
        parent, token = self.nodes[group.alive[0]], int(token_R[0])
        value = float(scores_RV[0, token])
        node = self._node(parent, token, value, parent.log_prob + value, 1, 0, 0.0)
        possible_V = scores_RV[0].isfinite()
        n_possible = int(possible_V.sum())
        others_V = scores_RV[0].masked_fill(~possible_V, -torch.inf).clone()
        others_V[token] = -torch.inf
        n_scored = scores_RV.shape[1]
        self.counts.append(
            StepCounts(node.step, 0, 1, n_scored, n_scored - n_possible, 1, n_possible - 1,
                  _number(parent.log_prob + float(others_V.max())))
        )  # fmt: skip
        group.alive = [node.id]
        if token == self.eos:
            self._set(node.id, "ended", "the most probable next token was the end token", 1)
            group.finished, group.stopped = [node.id], "the end token was generated"

    def tree(self, results: Sequence[Hypothesis]) -> BeamTree:
        """Return the search tree.

        `results`: hypotheses that the finished search returned.
        """
        for group in self.groups.values():
            if group.alive and self.nodes[group.alive[0]].fate == "kept":  # greedy decoding
                self._limit(group)
            for place, number in enumerate(group.finished, 1):
                self._set(number, "ended", f"{_nth(place)} best finished hypothesis", place)
        known: dict[tuple[tuple[int, ...], bool], int] = {}
        for node in self.nodes[1:]:
            if node.fate in ("ended", "overtaken", "limit"):  # groups may find the same
                known.setdefault((node.tokens, node.fate == "ended"), node.id)
        ends = [(*h.tokens, self.eos) if h.finished else tuple(h.tokens) for h in results]
        settings = self.job.settings
        return BeamTree(
            nodes=tuple(self.nodes),
            counts=tuple(self.counts),
            outputs=tuple(known[end, h.finished] for end, h in zip(ends, results, strict=True)),
            beam=settings.beam,
            groups=settings.groups,
            penalty=settings.length_penalty,
            alpha=settings.length_penalty_alpha,
            limit=self.limit,
            stopped="; ".join(dict.fromkeys(group.stopped for group in self.groups.values())),
            kind="source" if self.job.prompts is None else "prompt",
        )

    def _node(
        self, parent: Node, token: int, token_log_prob: float, log_prob: float, rank: int,
        group: int, bonus: float,
    ) -> Node:  # fmt: skip
        step = parent.step + 1
        score = log_prob / self._divisor(step) + bonus
        node = Node(
            len(self.nodes), parent.id, (*parent.tokens, token), self.spell([token])[0],
            token_log_prob, log_prob, score, step, rank, group, "kept", "continued",
        )  # fmt: skip
        self.nodes.append(node)
        return node

    def _ask(self, group: BeamGroup, scores_WV: Tensor) -> None:
        """Store the most probable next tokens of each open hypothesis."""
        for number, scores_V in zip(group.alive, scores_WV, strict=True):
            best = scores_V.topk(min(OPTIONS, len(scores_V)))
            pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            pieces = self.spell([token for token, _ in pairs])
            options = tuple(
                TokenCandidate(token, piece, value)
                for (token, value), piece in zip(pairs, pieces, strict=True)
                if value > -torch.inf
            )
            if number or not self.nodes[0].next:  # groups begin alike
                self.nodes[number] = replace(self.nodes[number], next=options)

    def _listed(self, growth: BeamStep, group: BeamGroup) -> tuple[list[int], list[int]]:
        """Add nodes for the new hypotheses of a step, best first. Return the ids of all new nodes,
        and of those that ended with the end token."""
        found = growth.found
        new: list[int] = []
        ends: list[int] = []
        bonus = [0.0] * found.token_BC.shape[1]
        if growth.bonus_BC is not None:
            bonus = growth.bonus_BC[0].tolist()
        rows = zip(found.parent_BC[0].tolist(), found.token_BC[0].tolist(),
                   found.token_log_prob_BC[0].tolist(), found.log_prob_BC[0].tolist(),
                   bonus, strict=True)  # fmt: skip
        for parent, token, token_log_prob, log_prob, more in rows:
            if log_prob == -torch.inf:
                continue
            ended = token == self.eos
            node = self._node(
                self.nodes[group.alive[parent]], token, token_log_prob, log_prob, len(new) + 1,
                growth.group, more if ended else 0.0,
            )  # fmt: skip
            new.append(node.id)
            ends += [node.id] if ended else []
        return new, ends

    def _count(self, growth: BeamStep, group: BeamGroup, scores_WV: Tensor, listed: int) -> None:
        before_W = growth.before.log_prob_BW[0, : len(group.alive)]
        total_WV = before_W[:, None] + scores_WV
        possible = int(scores_WV.isfinite().sum())
        ordered_WV = total_WV if growth.price_BV is None else total_WV - growth.price_BV[0]
        ordered_N = ordered_WV.flatten().clone()
        taken_C = growth.found.log_prob_BC[0].isfinite()
        where_C = growth.found.parent_BC[0] * scores_WV.shape[1] + growth.found.token_BC[0]
        ordered_N[where_C[taken_C]] = -torch.inf
        best = float(total_WV.flatten()[ordered_N.argmax()]) if possible > listed else -torch.inf
        self.counts.append(
            StepCounts(growth.at + 1, growth.group, len(group.alive), scores_WV.numel(),
                  scores_WV.numel() - possible, listed, possible - listed, _number(best))
        )  # fmt: skip

    def _cut(self, new: Sequence[int], alive: Sequence[int]) -> None:
        going = [number for number in new if self.nodes[number].token != self.eos]
        for place, number in enumerate(going, 1):
            if number not in alive:
                rank = self.nodes[number].rank
                among = "" if place == rank else f", {_nth(place)} of the unfinished"
                self._set(number, "cut", f"step {self.nodes[number].step}: rank {rank}{among} > "
                                         f"beam {self.width}")  # fmt: skip

    def _lose(self, before: Sequence[int], finished: Sequence[int], step: int) -> None:
        """Mark finished hypotheses that were replaced by better ones.

        `before`: hypotheses that were already finished, and those that finished in this step.
        """
        for number in before:
            node = self.nodes[number]
            if number in finished:
                self._set(number, "ended", "")  # its place is set when the search is over
                continue
            worst = f"the {len(finished)} best ({self.nodes[finished[-1]].score:.2f} and higher)"
            if node.step == step:
                why = f"finished with {node.score:.2f}, worse than {worst}"
            else:
                why = f"finished with {node.score:.2f}; replaced by a better one in step {step}"
            self._set(number, "lost", why)

    def _starve(self, number: int, n_best: int) -> None:
        step = self.nodes[number].step + 1
        self._set(number, "starved", f"step {step}: none of its continuations was among the "
                                     f"{n_best} best")  # fmt: skip

    def _stop(self, growth: BeamStep, group: BeamGroup) -> None:
        """Set the fate of each open hypothesis once the search of its group has stopped."""
        group.stopped = "no hypothesis could be continued"
        if not group.alive:
            return
        most = [self.nodes[number].log_prob / self._divisor(self.limit) for number in group.alive]
        sure = float(growth.after.ended_score_BW[0, self.stop_at - 1])
        if sure <= most[0]:
            self._limit(group)
            return
        which = "the best" if self.stop_at == 1 else f"the {_nth(self.stop_at)} best"
        group.stopped = (
            f"no open hypothesis could still beat {which} finished one ({sure:.2f}): they can "
            f"reach at most {most[0]:.2f}"
        )
        for number, reach in zip(group.alive, most, strict=True):
            why = f"step {growth.at + 1}: {which} finished one has {sure:.2f}, this one at most "
            self._set(number, "overtaken", f"{why}{reach:.2f}")

    def _limit(self, group: BeamGroup) -> None:
        group.stopped = f"the limit of {self.limit} tokens was reached"
        for number in group.alive:
            self._set(number, "limit", f"not finished at the limit of {self.limit} tokens")

    def _set(self, number: int, fate: str, why: str, place: int | None = None) -> None:
        assert fate in FATES
        self.nodes[number] = replace(self.nodes[number], fate=fate, why=why, place=place)

    def _divisor(self, length: int) -> float:
        return float(self.job.penalty(torch.tensor(length)))


def _places(
    known: dict[tuple[int, ...], int], tokens_WT: Tensor, value_W: Tensor, lengths: Sequence[int]
) -> list[int]:
    """Return the ids of the nodes in the beam, best first. Unused beam positions are left out."""
    rows = zip(tokens_WT.tolist(), value_W.tolist(), lengths, strict=True)
    return [known[tuple(tokens[:n])] for tokens, value, n in rows if value > -torch.inf]


def _number(value: float) -> float | None:
    return value if value > -torch.inf else None


def _nth(n: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(0 if 10 < n % 100 < 14 else n % 10, "th")
    return f"{n}{ending}"
