"""Facts about a run that conditions and values in `defaults.toml` refer to by name."""

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
"""Number of labels above which the `top5` metric is reported. With five or fewer labels it is
always 1."""


@dataclass(frozen=True)
class DefaultFacts:
    """Facts about a run, for `defaults.toml`, which refers to its properties by name."""

    row: Spec
    settings: RunSettings
    stats: DatasetStats
    place: DeviceInfo

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def with_front(self, front: ImageSettings | AudioSettings | None) -> DefaultFacts:
        return replace(self, stats=replace(self.stats, front=front))

    # -- the run

    @property
    def task(self) -> str:
        """Name of the task, such as `translate`."""
        return self.row.name

    @property
    def modality(self) -> str:
        """Modality of the input: `text`, `image`, `video` or `audio`."""
        return self.row.modality

    @property
    def answers(self) -> str:
        """Kind of target: `text`, `label`, `labels`, `number`, `tags`, `gaps` or `vector`."""
        return spec_for_answer(self.row, self.stats.answer).answers

    @property
    def device(self) -> str:
        """Device type: `cpu` or `gpu`."""
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
        """Name of the parent run: the run to start from, or the teacher."""
        return self.settings.parent if self.stats.parent is None else self.stats.parent.name

    @property
    def imported(self) -> bool:
        """Whether the weights of the parent run were imported from another program."""
        return self.stats.parent is not None and self.stats.parent.imported

    @property
    def lora(self) -> bool:
        """Whether LoRA is used (`lora.rank`)."""
        return bool(self.settings.lora.rank)

    @property
    def preset(self) -> str:
        """Name of the preset that the user chose; empty if none."""
        return str(self.settings.asked.get("model.preset", ""))

    @property
    def body(self) -> str:
        """Kind of model that the user chose with `model.body`, such as `lstm`."""
        model = self.settings.model
        return model.body if model else str(self.settings.asked.get("model.body", "transformer"))

    @property
    def family(self) -> str:
        """Default model family of the task. Speech recognition with CTC alone has no decoder."""
        return self.row.families[-1 if self._is_speech and self.ctc == 1.0 else 0]

    @property
    def heads(self) -> tuple[str, ...]:
        """Output heads that the task needs."""
        return self.row.heads

    @property
    def main_metric(self) -> str:
        """Main metric: the first of the metrics that are available for the data."""
        return self.metrics[0]

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the data allows. For example, `top5` needs more than five labels, and span
        F1 needs tags that mark spans. Documents with fields have no bits per byte."""
        found = spec_for_answer(self.row, self.stats.answer).scores
        if self.row.is_tagging and not has_span_tags(self.stats.labels):
            return "accuracy", "loss"
        if self.row.continues and self.settings.data.fields:
            found = found[:2]
        return tuple(name for name in found if name != "top5" or self.labels > TOP)

    # -- the data

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return self.stats.n

    @cached_property
    def tokens(self) -> int:
        """Number of tokens per epoch as the model reads them; for media, patches or frames."""
        if not self._is_visual:
            return self.stats.n_tokens
        views = 2 if self.row.is_embedding else 1
        return views * self.longest * self.stats.n

    @cached_property
    def longest(self) -> int:
        """Length of the longest example in tokens, patches or frames."""
        return self.stats.rows(self.stats.image) if self._is_visual else self.stats.longest

    @property
    def longest_text(self) -> int:
        """Length of the longest caption or transcript in tokens."""
        return self.stats.longest_text

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.stats.vocab_size

    @property
    def separate_vocabularies(self) -> bool:
        """Whether source and target have separate vocabularies."""
        return bool(self.stats.source_vocab_size)

    @property
    def unit(self) -> str:
        """Plural noun for the examples in messages: `texts`, `images`, `videos` or `recordings`."""
        return "recordings" if self.row.is_audio else f"{self.row.modality}s"

    @property
    def pairs(self) -> bool:
        """Whether each example is a pair of texts."""
        return self.stats.pairs

    @property
    def labels(self) -> int:
        """Number of different labels or tags."""
        return len(self.stats.labels)

    @property
    def rarest(self) -> int:
        """Number of examples of the rarest class that occurs in the training data."""
        return min(self._counts, default=0)

    @property
    def most_frequent(self) -> int:
        """Number of examples of the most frequent class."""
        return max(self._counts, default=0)

    @property
    def imbalance(self) -> float:
        """Number of examples of the most frequent class divided by that of the rarest class;
        0 with fewer than two classes."""
        return self.most_frequent / self.rarest if len(self._counts) > 1 else 0.0

    @property
    def rare_label_examples(self) -> float:
        """Lower quartile of the number of training examples per label; 0 if unknown."""
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
        """Whether the prepared data contains word shapes (capitalization and digits), because the
        tokenizer ignores case."""
        return self.stats.shapes

    @property
    def n_word_shapes(self) -> int:
        """Number of different word shapes."""
        return len(WordShape)

    @property
    def short_side(self) -> int:
        """Shorter side of the training images in pixels; 0 without images."""
        return min(self.stats.image.height, self.stats.image.width) if self._is_visual else 0

    @property
    def long_side(self) -> int:
        """Longer side of the training images in pixels; 0 without images."""
        return max(self.stats.image.height, self.stats.image.width) if self._is_visual else 0

    @property
    def class_token(self) -> bool:
        """Whether a class token precedes the patches."""
        return self._is_visual and self.stats.image.class_token

    @property
    def distil_token(self) -> bool:
        """Whether a distillation token precedes the patches."""
        return self._is_visual and self.stats.image.distil_token

    @property
    def bands(self) -> int:
        """Number of mel bands of the audio."""
        return self.stats.audio.bands

    # -- settings of the user

    @property
    def tokenizer(self) -> str:
        """Kind of tokenizer, such as `bpe`."""
        return self.settings.tokenizer.kind

    @property
    def windows(self) -> bool:
        """Whether long texts are split into windows (`data.on_long=split`)."""
        return self.settings.data.on_long == "split"

    @property
    def context(self) -> int:
        """Window length from `complete.context` or `fill.context`; 0 if neither is set."""
        return self.settings.complete.context or self.settings.fill.context or 0

    @property
    def asked_batch(self) -> int:
        """Batch size in tokens that the user set with `train.batch_tokens`; 0 if none."""
        return self.settings.train.batch_tokens or 0

    @property
    def crf(self) -> bool:
        """Whether tags are predicted with a CRF (`tag.crf`)."""
        return self.settings.tag.crf

    @property
    def translation_length(self) -> int:
        """Maximum length of a translation in tokens: `data.max_len` plus the end token and
        `decode.extra_len`."""
        return self.settings.data.max_len + 1 + self.settings.decode.extra_len

    @cached_property
    def ctc(self) -> float:
        """Weight of the CTC loss, `transcribe.ctc`. A run that starts from another run uses a
        weight that its model supports."""
        parent = self.stats.parent
        return ctc_weight(self.settings, None if parent is None else parent.model)

    @property
    def joint_ctc(self) -> bool:
        """Whether the loss combines CTC with the decoder's cross-entropy."""
        return self.ctc > 0

    # -- the parent run

    @property
    def parent_dropout(self) -> float:
        """Dropout probability of the parent run's model."""
        return self._of_parent("dropout", 0.0)

    @property
    def parent_width(self) -> int:
        """Width of the parent run's residual stream (`d_model`)."""
        return self._of_parent("d_model", 0)

    @property
    def parent_ngrams(self) -> int:
        """Number of buckets in the parent run's n-gram table."""
        return self._of_parent("ngrams", 0)

    @property
    def parent_segments(self) -> int:
        """Number of the parent run's segment embeddings, which also encode word shapes."""
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
    """Return the weight of the CTC loss. If the user set none and the run starts from another run,
    it is a weight that the parent's model supports."""
    weight = settings.transcribe.ctc
    if parent is None or "transcribe.ctc" in settings.asked:
        return weight
    has = getattr(parent, "ctc", None)
    return 1.0 if has is None else weight if has else 0.0
