"""Beam search with a record of its search tree, and conversion of its hypotheses to readings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from headway.decode.align import cross_attention
from headway.decode.logits_processors import NO_CONSTRAINTS, SpecialTokens, TokenConstraints
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher
from headway.decode.speech.ctc import JointSearcher
from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam_observer import BeamRecorder
from headway.inside.capture.beam_tree import BeamTree, Node
from headway.inside.capture.media import MediaInput
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.eval_mode import evaluating
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import EachRow, readout_of

__all__ = ["BeamTree", "Node", "beam_tree", "cross_rows", "has_search", "rerun", "search"]

BEAM = 4
"""Beam width of the search tree for a run whose default is sampling: enough alternatives to see,
few enough to draw."""


def has_search(run: LoadedRun) -> bool:
    """Whether this run generates its outputs token by token with a decoder. False for CTC."""
    return run.spec.writes and readout_of(run.settings) != EachRow("ctc")


def searcher_for(run: LoadedRun, model: Seq2Seq, decode: DecodeSettings) -> Searcher:
    """Return the searcher of the run. If the model has a CTC head, hypotheses are scored by CTC and
    attention jointly."""
    specials = SpecialTokens.of(run.vocab.target)
    if model.ctc is None:
        return Searcher([model], decode, specials)
    return JointSearcher(model, decode, specials, run.settings.transcribe.ctc)


def beam_tree(
    run: LoadedRun,
    text: str | Sequence[int] | MediaInput,
    decode: DecodeSettings | None = None,
    *,
    wish: TokenConstraints = NO_CONSTRAINTS,
    new: int = 24,
) -> BeamTree:
    """Run a beam search and return its search tree.

    `text`: source, or the beginning of a text for a language model. It may be token ids as the
    model reads them, with special tokens. `decode`: decoding settings; None: those of the run, or a
    beam of 4 if the run samples. `wish`: prefix and banned phrases of the output. `new`: maximum
    number of tokens that a language model adds.
    """
    if not has_search(run):
        raise UserError(
            f"{run.folder.name} has no search to show: its task `{run.settings.task}` does not "
            "generate text token by token."
        )
    if wish.required:
        raise UserError(
            "a search with required phrases has no search tree. Remove the required phrases."
        )
    item: Any = text.item if isinstance(text, MediaInput) else text
    if isinstance(text, str):
        tokenizer = run.vocab.source
        frame = tokenizer.as_prompt if run.spec.continues else tokenizer.as_source
        item = frame(tokenizer.encode(text))
    _, tree = search(run, item, tree_settings(run, decode, new), wish, record=True)
    assert tree is not None
    return tree


def search(
    run: LoadedRun,
    item: Any,
    settings: DecodeSettings,
    wish: TokenConstraints = NO_CONSTRAINTS,
    *,
    record: bool = False,
) -> tuple[list[Hypothesis], BeamTree | None]:
    """Return the best outputs for a source, or the best continuations of a prompt, best first.

    With `record`, the second value is the search tree, otherwise None. A search with sampling
    cannot be recorded.
    """
    target, specials = run.vocab.target, SpecialTokens.of(run.vocab.target)
    if run.spec.continues:
        model = cast(Decoder, run.model)
        searcher = Searcher([model], settings, specials, run.shape.max_len)
    else:
        searcher = searcher_for(run, cast(Seq2Seq, run.model), settings)
    recorder = BeamRecorder(searcher.job([item], [wish]), target.tokens) if record else None
    [found] = searcher([item], [wish], observer=recorder)
    if recorder is None:
        return found, None
    given = tuple(item) if isinstance(item, list | tuple) else ()
    return found, replace(recorder.tree(found), given=given)


def rerun(run: LoadedRun, reading: Reading, tree: BeamTree, node: Node | int) -> Reading:
    """Convert a hypothesis of a beam search, kept or pruned, to a reading.

    The tokens of the hypothesis are fixed, so `trace` shows what the model computes for exactly
    these tokens. The reading ends where the hypothesis ended.
    """
    node = tree.nodes[node] if isinstance(node, int) else node
    if not node.tokens:
        raise UserError(
            "node 0 is the root of the search tree and has no token. Choose another node."
        )
    target = run.vocab.target
    if tree.kind == "source":
        ids, said = [target.bos, *node.tokens[:-1]], node.tokens
        streams = {"source": reading.first, "target": TokenStream.of("target", ids, target)}
    else:
        ids = [*tree.given, *node.tokens[:-1]]
        said = (*ids[1:], node.token)
        streams = {"text": TokenStream.of("text", ids, target)}
    names = target.tokens(said)
    outputs = (TracedOutput(row, id, names[row]) for row, id in enumerate(said))
    ended = node.fate in ("ended", "lost")
    return replace(reading, streams=streams, outputs=tuple(outputs), finished=ended)


def cross_rows(
    run: LoadedRun,
    tree: BeamTree,
    wanted: Collection[int] | None = None,
    layer: int | None = None,
) -> dict[int, Tensor]:
    """Return the cross-attention over the source tokens at each expanded node of a search tree, by
    node id.

    `wanted`: ids of the nodes that are needed; their ancestors are included. None: all expanded
    nodes. `layer`: layer over whose heads the attention is averaged; None: the second to last.

    A node has a single row of attention, with which all of its next tokens were predicted. Teacher
    forcing on the longest hypotheses gives the rows of all their ancestors at once. The result is
    empty for a model without cross-attention.
    """
    if not Anatomy.of(run.model).is_pair:
        return {}
    model = cast(Seq2Seq, run.model)
    asked = [node for node in tree.nodes if node.next and (wanted is None or node.id in wanted)]
    inner = {node.parent for node in asked}
    ends = [node for node in asked if node.id not in inner]
    sources, targets = [list(tree.given)] * len(ends), [list(node.tokens) for node in ends]
    with evaluating([model]):
        found = cross_attention(model, sources, targets, run.vocab.target.bos, layer)
    rows: dict[int, Tensor] = {}
    for node, attention_TS in zip(ends, found, strict=True):
        path = [0, *(one.id for one in tree.path(node))]
        rows |= dict(zip(path, attention_TS, strict=True))
    return rows


def tree_settings(run: LoadedRun, decode: DecodeSettings | None, new: int) -> DecodeSettings:
    """Return decoding settings with which a search tree can be recorded: `decode` or the run's own
    settings, without sampling."""
    own = run.settings.decode
    settings = decode or (replace(own, beam=max(own.beam, BEAM)) if own.sample else own)
    if run.spec.continues:
        settings = replace(settings, max_len=min(new, settings.max_len or new))
    return replace(settings, sample=False, n_best=min(settings.n_best, settings.beam))
