"""The facts that conditions and values of the table of defaults refer to by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headway.settings.facts import DatasetStats, DeviceInfo
from headway.settings.model import AudioSettings, ImageSettings, ModelSettings, family_of
from headway.settings.run import RunSettings
from headway.settings.text import WordShape
from headway.settings.warm_start import gets_decoder, vocab_size_of
from headway.specs.metrics import has_span_tags
from headway.specs.tasks import Spec, spec_for_answer

TOP = 5
"""`top5` is a metric of data with more labels than this."""


@dataclass(frozen=True)
class DefaultFacts:
    """Facts about a run, by the names that `defaults.toml` uses. Its properties are those names."""

    row: Spec
    settings: RunSettings
    stats: DatasetStats
    place: DeviceInfo

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def with_front(self, front: ImageSettings | AudioSettings | None) -> DefaultFacts:
        return replace(self, stats=replace(self.stats, front=front))

    # The run

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.row.name

    @property
    def modality(self) -> str:
        """`text`, `image`, `video` or `audio`."""
        return self.row.modality

    @property
    def answers(self) -> str:
        """Kind of output: `text`, `label`, `labels`, `number`, `tags`, `gaps` or `vector`."""
        return spec_for_answer(self.row, self.stats.answer).answers

    @property
    def device(self) -> str:
        """`cpu` or `gpu`."""
        return "cpu" if self.place.is_cpu else "gpu"

    @property
    def bf16(self) -> bool:
        """Whether the device computes in bfloat16 natively."""
        return self.place.bf16

    @cached_property
    def start(self) -> str:
        """Origin of the model: `scratch`, `model` (the user named one), `run` (fine-tuning),
        `encoder` (a new decoder after the encoder of a run) or `teacher` (distillation)."""
        parent = self.stats.parent
        if parent is None:
            return "scratch" if self.settings.model is None else "model"
        if self.settings.start.run and gets_decoder(parent.model, self.family):
            return "encoder"
        return "teacher" if self.settings.distil.teacher else "run"

    @property
    def parent(self) -> str:
        """Name of the run that it starts from or learns from."""
        return self.settings.parent if self.stats.parent is None else self.stats.parent.name

    @property
    def imported(self) -> bool:
        """Whether the weights of the parent run were imported."""
        return self.stats.parent is not None and self.stats.parent.imported

    @property
    def lora(self) -> bool:
        """Whether LoRA matrices are trained."""
        return bool(self.settings.lora.rank)

    @property
    def preset(self) -> str:
        """Preset that the user named."""
        return str(self.settings.asked.get("model.preset", ""))

    @property
    def body(self) -> str:
        """Body of the model that the user named, such as `lstm`."""
        model = self.settings.model
        return model.body if model else str(self.settings.asked.get("model.body", "transformer"))

    @property
    def family(self) -> str:
        """Default model family. Speech recognition with CTC alone has no decoder."""
        return self.row.families[-1 if self._is_speech and self.ctc == 1.0 else 0]

    @property
    def heads(self) -> tuple[str, ...]:
        """Output heads that the task needs."""
        return self.row.heads

    @property
    def main_metric(self) -> str:
        """First metric that the data allows."""
        return self.metrics[0]

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Metrics available for the data: `top5` needs more than five labels, spans need tags that
        mark them, and fields are not scored per byte."""
        found = spec_for_answer(self.row, self.stats.answer).scores
        if self.row.is_tagging and not has_span_tags(self.stats.labels):
            return "accuracy", "loss"
        if self.row.continues and self.settings.data.fields:
            found = found[:2]
        return tuple(name for name in found if name != "top5" or self.labels > TOP)

    # The data

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return self.stats.n

    @cached_property
    def tokens(self) -> int:
        """Tokens per epoch as the model reads them: for media, patches or frames."""
        if not self._is_visual:
            return self.stats.n_tokens
        views = 2 if self.row.is_embedding else 1
        return views * self.longest * self.stats.n

    @cached_property
    def longest(self) -> int:
        """Tokens, patches or frames of the longest example."""
        return self.stats.rows(self.stats.image) if self._is_visual else self.stats.longest

    @property
    def longest_text(self) -> int:
        """Tokens of the longest caption or transcript."""
        return self.stats.longest_text

    @property
    def vocabulary(self) -> int:
        """Number of tokens of the tokenizer."""
        return self.stats.vocab_size

    @property
    def separate_vocabularies(self) -> bool:
        """Whether source and target have a vocabulary each."""
        return bool(self.stats.source_vocab_size)

    @property
    def unit(self) -> str:
        """What the examples are: `texts`, `images`, `videos` or `recordings`."""
        return "recordings" if self.row.is_audio else f"{self.row.modality}s"

    @property
    def pairs(self) -> bool:
        """Whether each example is a pair."""
        return self.stats.pairs

    @property
    def labels(self) -> int:
        """Number of different labels or tags."""
        return len(self.stats.labels)

    @property
    def rarest(self) -> int:
        """Number of examples of the rarest class that occurs."""
        return min(self._counts, default=0)

    @property
    def most_frequent(self) -> int:
        """Number of examples of the most frequent class."""
        return max(self._counts, default=0)

    @property
    def imbalance(self) -> float:
        """Ratio of the most frequent class to the rarest; 0 if there are not two classes."""
        return self.most_frequent / self.rarest if len(self._counts) > 1 else 0.0

    @property
    def rare_label_examples(self) -> float:
        """Number of examples that a quarter of the labels do not exceed; 0 if unknown."""
        counts = sorted(self._counts)
        if not counts:
            return 0.0
        place = 0.25 * (len(counts) - 1)
        low, part = int(place), place % 1
        return counts[low] + part * (counts[min(low + 1, len(counts) - 1)] - counts[low])

    @property
    def mean(self) -> float:
        """Mean of numeric targets."""
        return self.stats.mean

    @property
    def std(self) -> float:
        """Standard deviation of numeric targets."""
        return self.stats.std

    @property
    def word_shapes(self) -> bool:
        """Whether the prepared data has word shapes, because the tokenizer ignores case."""
        return self.stats.shapes

    @property
    def n_word_shapes(self) -> int:
        """Number of word shapes."""
        return len(WordShape)

    @property
    def short_side(self) -> int:
        """Shorter side of the images in pixels."""
        return min(self.stats.image.height, self.stats.image.width) if self._is_visual else 0

    @property
    def long_side(self) -> int:
        """Longer side of the images in pixels."""
        return max(self.stats.image.height, self.stats.image.width) if self._is_visual else 0

    @property
    def class_token(self) -> bool:
        """Whether a class token is read before the patches."""
        return self._is_visual and self.stats.image.class_token

    @property
    def distil_token(self) -> bool:
        """Whether a distillation token is read before the patches."""
        return self._is_visual and self.stats.image.distil_token

    @property
    def bands(self) -> int:
        """Number of mel bands of the audio."""
        return self.stats.audio.bands

    # Settings of the user

    @property
    def tokenizer(self) -> str:
        """Kind of tokenizer."""
        return self.settings.tokenizer.kind

    @property
    def windows(self) -> bool:
        """Whether long texts are read in windows (`data.on_long=split`)."""
        return self.settings.data.on_long == "split"

    @property
    def context(self) -> int:
        """`complete.context` or `fill.context`; 0 if neither is set."""
        return self.settings.complete.context or self.settings.fill.context or 0

    @property
    def asked_batch(self) -> int:
        """`train.batch_tokens` of the user; 0 if it is open."""
        return self.settings.train.batch_tokens or 0

    @property
    def crf(self) -> bool:
        """`tag.crf`."""
        return self.settings.tag.crf

    @property
    def translation_length(self) -> int:
        """Longest translation: `data.max_len` and its end, and `decode.extra_len`."""
        return self.settings.data.max_len + 1 + self.settings.decode.extra_len

    @cached_property
    def ctc(self) -> float:
        """Weight of CTC: `transcribe.ctc`, or for a run that starts from another, a weight that its
        model supports."""
        parent = self.stats.parent
        return ctc_weight(self.settings, None if parent is None else parent.model)

    @property
    def joint_ctc(self) -> bool:
        """Whether a decoder and CTC are trained together."""
        return self.ctc > 0

    # The parent run

    @property
    def parent_dropout(self) -> float:
        """Dropout of the parent run."""
        return self._of_parent("dropout", 0.0)

    @property
    def parent_width(self) -> int:
        """`d_model` of the parent run."""
        return self._of_parent("d_model", 0)

    @property
    def parent_ngrams(self) -> int:
        """Size of the table of n-grams of the parent run."""
        return self._of_parent("ngrams", 0)

    @property
    def parent_segments(self) -> int:
        """Number of segments that the parent run tells apart; word shapes are read as segments."""
        return self._of_parent("n_segments", len(WordShape))

    @property
    def parent_family(self) -> str:
        """Model family of the parent run."""
        return "" if self.stats.parent is None else family_of(self.stats.parent.model)

    @property
    def parent_vocabulary(self) -> int:
        """Vocabulary size of the parent run; 0 if it has none."""
        return 0 if self.stats.parent is None else vocab_size_of(self.stats.parent.model)

    def _of_parent(self, name: str, usual: Any) -> Any:
        return usual if self.stats.parent is None else getattr(self.stats.parent.model, name, usual)

    @property
    def _is_visual(self) -> bool:
        return not self.row.is_text and not self.row.is_audio

    @property
    def _is_speech(self) -> bool:
        return self.row.is_audio and self.row.writes

    @property
    def _counts(self) -> list[int]:
        return [count for count in self.stats.counts if count]


def ctc_weight(settings: RunSettings, parent: ModelSettings | None) -> float:
    """The weight of CTC: for a run that starts from another, one that the model supports."""
    weight = settings.transcribe.ctc
    if parent is None or "transcribe.ctc" in settings.asked:
        return weight
    has = getattr(parent, "ctc", None)
    return 1.0 if has is None else weight if has else 0.0
