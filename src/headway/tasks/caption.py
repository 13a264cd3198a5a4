"""Captions for images and videos: an encoder of patches and a text decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.data.prepare import prepare
from headway.data.source import MediaSpec
from headway.data.store import PreparedData
from headway.errors import ConfigError, DataError
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.facts import DatasetStats, DeviceInfo, MediaFormat, Proposal, because
from headway.settings.model import ImageSettings
from headway.settings.run import Resolved, RunSettings
from headway.tasks.defaults import media_proposal, stored_front
from headway.tasks.intake_vision import PictureCuts
from headway.tasks.media_format import picture_shape, pixel_statistics, stored_form
from headway.tasks.parent_run import origin_of, tokenizer_of
from headway.tasks.scores import Scores
from headway.tasks.task import Predictor, Use
from headway.tasks.write import Exam, Some, Write
from headway.tasks.write_items import PicturePlan, WriteItems
from headway.tasks.write_scores import by_picture, evaluate_captions

EPOCHS = ((2_000, 60), (10_000, 30), (50_000, 15), (1_000_000, 8))
"""Number of training captions up to which the number of epochs applies; 4 epochs beyond."""

MODEL: dict[str, dict[str, Any]] = {
    "cpu": {"d_model": 128, "n_layers": 3, "n_decoder_layers": 2, "n_heads": 4, "d_ff": 512},
    "cuda": {"d_model": 256, "n_layers": 6, "n_decoder_layers": 3, "n_heads": 4, "d_ff": 1024},
}
"""Default model settings by device, without a preset."""


class Caption(Write):
    """Captioning of images and videos."""

    samples = 12

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        if not settings.data.media:
            raise DataError(
                "no training data. Give a TSV, CSV or JSONL file with the columns `path` (of an "
                "image) and `text` (its caption): headway train caption captions.tsv --out RUN"
            )
        media = MediaSpec.of(settings.caption.what, self._shape(settings), "text")
        words = tokenizer_of(settings)
        return prepare("media", settings, folder, progress, tokenizer=words, media=media)

    @staticmethod
    def _shape(settings: RunSettings, stored: MediaFormat | None = None) -> ImageSettings:
        return picture_shape(settings, settings.caption.what, {"class_token": False}, stored)

    def describe(self, prepared: PreparedData) -> str:
        return f"{prepared.train.n:,} captions of {prepared.modality}"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        stored = stored_form(prepared)
        shape = self._shape(settings, stored)
        texts, begin = prepared.train["text"], prepared.tokenizer.target_begin
        return DatasetStats(
            n=prepared.train.n,
            longest_text=int(texts.lengths.max()) + (1 if begin is None else 2),
            vocab_size=prepared.tokenizer.vocab_size,
            front=shape,
            stored=stored,
            colours=pixel_statistics(prepared.train.images),
            parent=origin_of(settings),
        )

    def propose(self, settings: RunSettings, facts: DatasetStats, device: DeviceInfo) -> Proposal:
        for name in ("mixup", "cutmix"):
            if getattr(settings.augment, name):
                raise ConfigError(
                    f"augment.{name} mixes two images and their classes, but captions cannot be "
                    "mixed. Leave it out."
                )
        rows, limit = facts.rows(facts.image), 2 * facts.longest_text + 8
        found = media_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} captions",
            n_rows=rows * facts.n,
            longest=max(rows, limit),
            epochs=next((epochs for most, epochs in EPOCHS if facts.n <= most), 4),
            shape={**MODEL.get(device.type, MODEL["cuda"]), "dropout": 0.1},
            front=stored_front(facts),
            training={"lr": 4e-3, "smoothing": 0.0},
        )
        why = f"twice the longest caption ({facts.longest_text} tokens), and some spare"
        return found.with_others(
            because(why, "decode", {"max_len": limit}),
            because(
                device.description, "decode", {"batch_tokens": 4096 if device.is_cpu else 65_536}
            ),
        )

    def plan(
        self, items: WriteItems, tokens: int, seed: int, pool: int | None = None
    ) -> PicturePlan:
        assert isinstance(items.source, PictureCuts)
        return PicturePlan.of(
            items.lengths, tokens, seed, pool, items.source.store.equal is not None
        )

    def hide(self, settings: Resolved) -> float:
        return settings.caption.hide

    def exam(self, prepared: PreparedData, items: WriteItems) -> Exam:
        """Each image once, with all its captions as references."""
        texts = [items.text(example) for example in items.owner]
        rows, references = by_picture(prepared.valid, texts)
        places = [str(example["place"]) for example in prepared.valid_examples]
        names = [places[row] if row < len(places) else f"image {row:,}" for row in rows]
        return Exam(Some(prepared.valid.images, rows), references, names)

    def quick(self, decode: DecodeSettings, items: WriteItems) -> DecodeSettings:
        longest = int(items.lengths[:, 1].max()) + 2
        longest = min(decode.max_len or longest, longest)
        return replace(decode, beam=1, n_best=1, groups=1, max_len=longest)

    def trivial(self, exam: Exam, usual: Callable[[], str]) -> tuple[str, list[str]]:
        return "most frequent caption", [usual()] * len(exam.references)

    def shown(self, example: int, prepared: PreparedData) -> dict[str, object]:
        return {"picture": example}

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.write_answers import CaptionPredictor

        return CaptionPredictor(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        return evaluate_captions(use, files)
