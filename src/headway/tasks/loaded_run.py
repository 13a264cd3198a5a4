"""Loaded runs, for prediction, inspection and export.

A `LoadedRun` is immutable. It keeps the models, the vocabulary and everything that is slow to load.
Settings of a single call, such as the beam size, are not stored in it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from headway.errors import FolderError, Option, UserError
from headway.models.folder import load_model
from headway.models.parts.front import set_compute_dtype
from headway.nn.devices import CPU, pick_device
from headway.nn.int8 import quantize_model
from headway.nn.linear import pack, unpack
from headway.settings.decode import DecodeSettings
from headway.settings.ensemble import check_device_and_precision, check_ensemble
from headway.settings.folder import IMPORTED, TOKENIZER, WEIGHTS, file_in, load_run, run_folders
from headway.settings.model import (
    AudioEncoderSettings,
    ImageEncoderSettings,
    ModelSettings,
    Seq2SeqSettings,
)
from headway.settings.run import Resolved
from headway.settings.task_rows import spec_of
from headway.specs.tasks import Spec
from headway.storage import read_json
from headway.tasks.engines import engine_of
from headway.tokens.tokenizer import Tokenizer, Vocabularies

if TYPE_CHECKING:  # classifiers do not decode, so they import no search
    from headway.decode.engine import Engine
    from headway.decode.search.searcher import SearchCache

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LoadedRun:
    folders: tuple[Path, ...]
    """Folders of the runs; more than one is an ensemble."""

    runs: tuple[Resolved, ...]
    """Settings of each run, in the order of `folders`."""

    words: Vocabularies | None
    """Vocabularies that all runs share; None if there are none, as in models of images."""

    device: torch.device = CPU
    precision: str = "fp32"
    """Data type of the weights: `fp32`, `bf16` or `int8`."""

    engine: Engine | None = None
    """Inference engine; None: torch."""

    in_memory_models: tuple[nn.Module, ...] | None = None
    """Models in memory, which are used instead of those in the folders. None: load from the
    folders."""

    lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    """Lock that a thread holds while the models compute, because several threads share them."""

    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, folder: Path, settings: Resolved, model: nn.Module, words: Vocabularies | None
    ) -> LoadedRun:
        """Wrap a model in memory, so that it can be used like a run loaded from a folder."""
        return cls((folder,), (settings,), words, in_memory_models=(model,))

    @property
    def folder(self) -> Path:
        """Folder of the first run."""
        return self.folders[0]

    @property
    def settings(self) -> Resolved:
        """Settings of the first run."""
        return self.runs[0]

    @property
    def spec(self) -> Spec:
        """Row of the task table (`specs/tasks.py`) that defines the run's task."""
        return spec_of(self.settings)

    @property
    def models(self) -> list[nn.Module]:
        """Models in eval mode. They are loaded on first use and then cached."""
        return list(
            self.cached("models", self._load)
            if self.in_memory_models is None
            else self.in_memory_models
        )

    @property
    def writers(self) -> list[nn.Module]:
        """Models for step-by-step decoding, with packed copies of the weights. The copies make the
        matrix products of a few tokens fast. Empty if an engine decodes."""
        return [] if self.engine is not None else list(self.cached("writers", self._pack))

    @property
    def model(self) -> nn.Module:
        """Model of the first run."""
        return self.models[0]

    @property
    def vocab(self) -> Vocabularies:
        """Vocabularies of the runs. A model without vocabularies raises an error."""
        assert self.words is not None
        return self.words

    @property
    def output_tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the output text; None for models without a vocabulary."""
        return None if self.words is None else self.words.target

    @property
    def shape(self) -> ModelSettings:
        """Model settings of the first run; a finished run always has them."""
        return self.settings.model

    @property
    def imported(self) -> dict[str, Any] | None:
        """Metadata of the original files, written by `headway import`; None for runs that were not
        imported."""
        return self.cached("imported", lambda: _imported(self.folder))

    @property
    def search_cache(self) -> SearchCache:
        """Cache of search objects, by their decoding settings. On a GPU these hold CUDA graphs."""
        from headway.decode.search.searcher import SearchCache

        return self.cached("searches", SearchCache)

    def cached(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the value that is cached under a name. If there is none, compute it with `make`
        and cache it."""
        if name not in self._cache:
            with self.lock:
                if name not in self._cache:
                    self._cache[name] = make()
        return cast(T, self._cache[name])

    def release_lock(self, done: int = 0, total: int = 0) -> None:
        """Let other threads use the models. The thread that holds the lock calls this between two
        batches."""
        try:
            self.lock.release()
        except RuntimeError:  # called from a reader thread, which does not hold the lock
            return
        time.sleep(0)  # without it this thread would take the lock again before others wake up
        self.lock.acquire()

    def with_model(self, model: nn.Module, settings: Resolved | None = None) -> LoadedRun:
        """Return a copy of the run with another model."""
        runs = self.runs[:1] if settings is None else (settings,)
        return replace(self, folders=self.folders[:1], runs=runs, in_memory_models=(model,))

    def to(self, device: str) -> LoadedRun:
        """Return a copy on another device. The models of this object are not moved."""
        place = pick_device(device)
        if place == self.device:
            return self
        given = self.in_memory_models and tuple(
            copy.deepcopy(model).to(place) for model in self.in_memory_models
        )
        return replace(self, device=place, in_memory_models=given)

    def inspection_copy(self) -> LoadedRun:
        """Return a copy for inspection and modification.

        It has modules of its own, so hooks and gradients do not affect this object. It shares the
        weights if they are in fp32 on the CPU; otherwise it loads them again.
        """
        if self.engine is not None:
            raise UserError(
                f"models opened with {Option('engine', self.engine.name)} cannot be inspected. "
                f"Use the original run with {Option('engine', 'torch')}."
            )
        if self.device == CPU and self.precision == "fp32":
            return replace(self, in_memory_models=tuple(map(_sharing, self.models)))
        plain = self if self.device == CPU else self.to("cpu")
        return replace(plain, precision="fp32")

    def _pack(self) -> list[nn.Module]:
        for model in self.models:
            pack(model)
        return self.models

    def _load(self) -> list[nn.Module]:
        if self.engine is not None:
            return [self.engine.model().eval()]
        models = []
        for folder, run in zip(self.folders, self.runs, strict=True):
            model = load_model(folder, self.device, run.model).eval()
            cast_weights(model, self.precision)
            models.append(model)
        return models


def open_run(
    *names: str | Path,
    device: str = "auto",
    precision: str = "auto",
    engine: str = "torch",
    settings: Resolved | None = None,
    words: bool = True,
) -> LoadedRun:
    """Open run folders, or shipped models by name. Everything but the weights is read and checked
    here.

    Args:
        *names: Folders or names; several form an ensemble.
        device: Device of the models.
        precision: `fp32`, `bf16`, `int8`, or `auto` for `decode.precision`.
        engine: Inference engine. Engines other than torch run an exported folder.
        settings: Settings of the first run, if they are already loaded.
        words: Whether to load the vocabularies; copying or distilling weights does not need them.
    """
    check_device_and_precision("auto", precision)
    place = pick_device(device) if engine == "torch" else CPU
    folders = tuple(run_folders(names))
    runs = (load_run(folders[0]) if settings is None else settings, *map(load_run, folders[1:]))
    check_ensemble(folders, runs)
    pairs = zip(folders, runs, strict=True)
    vocabs = [_words(folder, run) if words else None for folder, run in pairs]
    for folder, other in zip(folders[1:], vocabs[1:], strict=True):
        if not _same(other, vocabs[0]):
            raise FolderError(
                f"{folder / TOKENIZER} differs from the vocabulary of {folders[0]}. The models of "
                "an ensemble must have the same vocabulary."
            )
    held: Any = runs[0].decode.precision if precision == "auto" else precision
    runtime = _engine(engine, folders, replace(runs[0].decode, precision=held), runs[0])
    return LoadedRun(folders, runs, vocabs[0], place, held, runtime)


def open_plain(name: str | Path, settings: Resolved | None = None) -> LoadedRun:
    """Open a run for inspection or export: on the CPU, in fp32, with its weights loaded.

    Args:
        name: Folder or name of the run.
        settings: Settings of the run, if they were read before.

    Example:
        >>> from headway.inside import load
        >>> load("tatoeba-de-en").settings.task
        'translate'
    """
    run = open_run(name, device="cpu", precision="fp32", settings=settings)
    run.models, run.imported  # noqa: B018  damaged files raise errors here
    return run


def compute_in_type(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of a model to this type, and compute in it, including the residual stream.
    Norms, softmax and log-probabilities are still computed in fp32."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    set_compute_dtype(model, dtype)  # images and audio come in fp32


def cast_weights(model: nn.Module, precision: str) -> None:
    """Convert the weights to the data type that `decode.precision` specifies."""
    if precision == "bf16":
        compute_in_type(model, torch.bfloat16)
    if precision == "int8":
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            raise UserError(
                "decode.precision=int8 works only on a CPU. Use decode.precision=bf16, or run "
                f"the model on the CPU with {Option('device', 'cpu')}."
            )
        quantize_model(model)


def _engine(
    name: str, folders: Sequence[Path], decode: DecodeSettings, run: Resolved
) -> Engine | None:
    if name != "torch" and len(folders) > 1:
        raise UserError(
            f"{Option('engine', name)} supports only a single model, but {len(folders)} models "
            f"were given. Ensembles need {Option('engine', 'torch')}."
        )
    found = engine_of(name, folders[0], replace(run, decode=decode))
    for folder in folders if found is None else ():
        file_in(folder, WEIGHTS)
    return found


def _words(folder: Path, run: Resolved) -> Vocabularies | None:
    model = run.model
    if isinstance(model, ImageEncoderSettings | AudioEncoderSettings) and not (
        (folder / TOKENIZER).is_file()
    ):
        return None
    vocab = Vocabularies.load(file_in(folder, TOKENIZER))
    if isinstance(model, ImageEncoderSettings):
        return vocab
    sides = [("", vocab.target, model.vocab_size)]
    if isinstance(model, Seq2SeqSettings):
        sides = [("source ", vocab.source, model.source_vocab), ("target ", *sides[0][1:])]
    for side, tokenizer, rows in sides:
        remedy = "Use the tokenizer that the model was trained with."
        check_fits(folder / TOKENIZER, tokenizer.vocab_size, f"{side}tokens", rows, remedy)
    return vocab


def check_fits(path: Path, n: int, what: str, rows: int, remedy: str) -> None:
    """Raise FolderError if a file, such as a vocabulary, does not have as many entries as the
    model."""
    if n != rows:
        raise FolderError(
            f"{path} does not match the model in its folder: the file has {n:,} {what}, but the "
            f"model has {rows:,}. {remedy}"
        )


def _same(one: Vocabularies | None, other: Vocabularies | None) -> bool:
    if one is other or one is None or other is None:
        return one is other
    return (one.source.to_json(), one.target.to_json()) == (
        other.source.to_json(),
        other.target.to_json(),
    )


def _sharing(model: nn.Module) -> nn.Module:
    """Return a copy of the modules that shares parameters and buffers with the original."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
    copied = copy.deepcopy(model, memo)
    unpack(copied)
    return copied


def _imported(folder: Path) -> dict[str, Any] | None:
    path = folder / IMPORTED
    if not path.is_file():
        return None
    try:
        facts = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"cannot read {path}: {error}.") from error
    kinds = {
        "model_type": str,
        "config": dict,
        "generation": dict,
        "tensors": dict,
        "ignored": dict,
    }
    if not isinstance(facts, dict) or any(
        not isinstance(facts.get(key), kind) for key, kind in kinds.items()
    ):
        raise FolderError(
            f"{path} is damaged: it does not have the format that `headway import` writes. Import "
            "the model again."
        )
    return facts
