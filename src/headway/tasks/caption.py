"""Captioning of images and videos, by an image encoder over patches and a text decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from headway.data.media.open_item import UNITS
from headway.data.prepare import evaluation_media, prepare
from headway.data.schema import MediaSpec
from headway.data.store import Columns, PreparedData
from headway.errors import DataError
from headway.metrics.captions import match_interval
from headway.metrics.translation import as_list
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.facts import DatasetStats, MediaFormat
from headway.settings.model import ImageSettings
from headway.settings.run import Resolved, RunSettings, with_files
from headway.specs.needs import WRITTEN
from headway.tasks.media_format import image_settings, pixel_statistics, stored_format
from headway.tasks.parent_run import parent_of, tokenizer_of
from headway.tasks.preprocess.image import ImageDataset
from headway.tasks.preprocess.preprocessor import media_settings_of
from headway.tasks.scores import Range
from headway.tasks.seq2seq import Seq2SeqTask, StoreSubset, TextBaseline
from headway.tasks.seq2seq_answers import writer_of
from headway.tasks.seq2seq_dataset import ImagePlan, Seq2SeqDataset
from headway.tasks.seq2seq_scores import (
    EvalSet,
    GeneratedTexts,
    TextPredictions,
    loss_of,
    text_scores,
    texts_of,
)
from headway.tasks.task import InferenceRequest, Predictor


class CaptionTask(Seq2SeqTask):
    """Task of captioning images and videos."""

    samples = 12
    unit = "images"

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        if not settings.data.media:
            raise DataError(
                "training data is missing. Give a TSV, CSV or JSONL file with the columns `path` "
                "(of the image) and `text` (the caption), for example: headway train caption "
                "captions.tsv --out RUN"
            )
        media = MediaSpec.of(settings.caption.modality, self._shape(settings), WRITTEN)
        words = tokenizer_of(settings)
        return prepare(settings, folder, progress, tokenizer=words, media=media)

    @staticmethod
    def _shape(settings: RunSettings, stored: MediaFormat | None = None) -> ImageSettings:
        return image_settings(settings, settings.caption.modality, stored)

    def describe(self, prepared: PreparedData) -> str:
        return f"{prepared.train.n:,} captions of {UNITS[prepared.modality]}"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        stored = stored_format(prepared)
        shape = self._shape(settings, stored)
        texts, begin = prepared.train["text"], prepared.tokenizer.target_begin
        return DatasetStats(
            n=prepared.train.n,
            longest_text=int(texts.lengths.max()) + (1 if begin is None else 2),
            vocab_size=prepared.tokenizer.vocab_size,
            front=shape,
            stored=stored,
            colours=pixel_statistics(prepared.train.images),
            parent=parent_of(settings),
        )

    def plan(
        self, items: Seq2SeqDataset, tokens: int, seed: int, pool: int | None = None
    ) -> ImagePlan:
        assert isinstance(items.source, ImageDataset)
        return ImagePlan.of(items.lengths, tokens, seed, pool, items.source.store.equal is not None)

    def token_mask_rate(self, settings: Resolved) -> float:
        return settings.caption.hide

    def eval_set(self, prepared: PreparedData, items: Seq2SeqDataset) -> EvalSet:
        """Return the validation images, each once, with all its captions as references."""
        texts = [items.text(example) for example in items.example_index]
        rows, references = group_by_image(prepared.valid, texts)
        places = [str(example["place"]) for example in prepared.valid_examples]
        names = [places[row] if row < len(places) else f"image {row:,}" for row in rows]
        return EvalSet(StoreSubset(prepared.valid.images, rows), references, names)

    def fast_settings(self, decode: DecodeSettings, items: Seq2SeqDataset) -> DecodeSettings:
        longest = int(items.lengths[:, 1].max()) + 2
        longest = min(decode.max_len or longest, longest)
        return replace(decode, beam=1, n_best=1, groups=1, max_len=longest)

    def baseline(self, exam: EvalSet, usual: Callable[[], str]) -> TextBaseline:
        text = usual()
        return TextBaseline("most frequent caption", [text] * len(exam.references), f"{text!r}")

    def describe_source(self, example: int, prepared: PreparedData) -> dict[str, object]:
        return {"image": example}

    def predictor(self, use: InferenceRequest) -> Predictor:
        from headway.tasks.seq2seq_answers import CaptionPredictor

        return CaptionPredictor(use)

    def test_set(self, use: InferenceRequest, files: DataSettings) -> EvalSet:
        """Return the test images, each once, with all its captions as references."""
        settings, shape = use.settings, media_settings_of(use.settings)
        media = MediaSpec.of(settings.caption.modality, shape, WRITTEN)
        given = evaluation_media(
            media, with_files(settings, files), tokenizer=use.opened.vocab.target,
            progress=use.progress,
        )  # fmt: skip
        texts = [" ".join(text.split()) for text in given.targets]
        rows, references = group_by_image(given.items, texts)
        names = [given.places[row] for row in rows]
        sources = StoreSubset(given.items.images, rows)
        items = self.dataset(given.items, use.opened.vocab, settings)
        return EvalSet(sources, references, names, {"captions": len(texts)}, dataset=items)

    def test_outputs(self, use: InferenceRequest, examples: EvalSet) -> TextPredictions:
        writer = writer_of(use.opened, use.settings.decode, task="caption")
        loss = None
        if len(use.opened.folders) > 1:  # an ensemble mixes the probabilities of its models
            pairs = [
                (image, text)
                for image, texts in zip(examples.sources, examples.references, strict=True)
                for text in as_list(texts)
            ]
            loss = loss_of(writer, iter(pairs), len(pairs), use.progress, "captions")
        what = use.settings.caption.modality
        outputs = texts_of(writer, examples.sources, use.progress, "captioning", what)
        rate = writer.summary.rate
        speed = ("speed", f"{rate:,.0f}", "tokens per second")
        return TextPredictions(outputs, loss, [speed], {"tokens_per_s": rate})

    def test_interval(self, judged: GeneratedTexts) -> dict[str, Range]:
        value = text_scores(["exact_match"], judged)["exact_match"].value
        found = match_interval(value, len(judged.outputs))
        return {"exact_match": (found.low, found.high)}


def group_by_image(items: Columns, texts: Sequence[str]) -> tuple[list[int], list[list[str]]]:
    """Return the index of the first row of each image, and all its captions. A data file has one
    row per caption, so an image may occur several times."""
    found: dict[int, tuple[int, list[str]]] = {}
    for row, (key, text) in enumerate(zip(items.hashes.tolist(), texts, strict=True)):
        found.setdefault(key, (row, []))[1].append(text)
    return [row for row, _ in found.values()], [written for _, written in found.values()]
