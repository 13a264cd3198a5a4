"""Per-call options of `predict` and `evaluate`, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CallOption:
    """An option of a single `predict` or `evaluate` call, in addition to the decoding settings."""

    name: str
    help: str
    takes: str = ""
    """Placeholder for the value in help texts, or all choices separated by `|`. Empty if the option
    is a switch."""

    number: bool = False
    several: bool = False
    command: bool = False
    """Whether the option exists only on the command line. Python has `load` with several runs,
    `Answer.score`, `Run.write`, `Answers.save` and `Run.choose` instead."""


OPTIONS: dict[str, CallOption] = {
    one.name: one
    for one in (
        CallOption(
            name="with",
            help="Another run to combine with this one in an ensemble.",
            takes="RUN",
            several=True,
            command=True,
        ),
        CallOption(name="scores", help="Print the score of each output.", command=True),
        CallOption(
            name="top",
            help="Number of most likely classes, or of nearest lines, to print.",
            takes="N",
            number=True,
        ),
        CallOption(
            name="alignments",
            help="Print word alignments; for captions, the image region that each word attends to.",
        ),
        CallOption(
            name="on_long",
            help="How to handle lines longer than the model's maximum length.",
            takes="split|cut|error",
        ),
        CallOption(
            name="prefix", help="Text that each output must begin with, one per line.", takes="FILE"
        ),
        CallOption(
            name="constraints",
            help="Required and banned phrases, one JSON object per line: "
            '{"required": [...], "banned": [...]}.',
            takes="FILE.jsonl",
        ),
        CallOption(name="stream", help="Print the text while it is generated.", command=True),
        CallOption(
            name="shots", help="Few-shot examples to put before every prompt.", takes="FILE.jsonl"
        ),
        CallOption(
            name="labels",
            help="Choose the most likely of these answers instead of generating text.",
            takes="A,B,...",
            command=True,
        ),
        CallOption(
            name="field", help="The field to generate, for runs with data.fields.", takes="NAME"
        ),
        CallOption(name="draft", help="A smaller model for speculative decoding.", takes="RUN"),
        CallOption(name="to", help="File to write the vectors to.", takes="FILE.npy", command=True),
        CallOption(
            name="nearest",
            help="Print the lines of this file that are nearest to each input.",
            takes="FILE",
        ),
        CallOption(
            name="against",
            help="Verify the speaker against this recording, or identify the "
            "speaker with a list of recordings and labels.",
            takes="FILE",
        ),
        CallOption(
            name="format",
            help="Output format: plain text or subtitles.",
            takes="text|srt|vtt",
            command=True,
        ),
    )
}
"""Prediction options by name."""


SCORING: dict[str, CallOption] = {
    one.name: one
    for one in (
        CallOption(
            name="hypotheses",
            help="Score the translations in this file instead of translating.",
            takes="FILE",
        ),
        CallOption(
            name="against",
            help="Compare with another run, or with a file of its output.",
            takes="RUN|FILE",
        ),
        CallOption(name="lowercase", help="Ignore case."),
        CallOption(
            name="tokenize", help="sacreBLEU tokenizer: 13a, intl, zh, char ... [13a]", takes="NAME"
        ),
        CallOption(
            name="tokenised",
            help="Also compute BLEU on lower-cased, Moses-tokenised text, as in papers.",
            takes="en|de|fr",
        ),
        CallOption(name="out", help="File to write the translations to.", takes="FILE"),
    )
}
"""Evaluation options by name."""
