"""Inference engine that runs CTranslate2 with headway's pre- and post-processing: `headway predict
DIR --engine ctranslate2`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from headway.decode.batching import batches
from headway.decode.engine import Engine, EngineEncoder, TokenLists
from headway.decode.logits_processors import SpecialTokens
from headway.errors import FolderError, needs
from headway.interop.ctranslate2.exportable import positions_of
from headway.interop.ctranslate2.search import (
    RERANKING_NOTE,
    Ctranslate2PromptSearcher,
    Ctranslate2Searcher,
    reranks,
)
from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.settings.folder import file_in
from headway.settings.model import DecoderSettings, EncoderSettings, Seq2SeqSettings, TextSettings
from headway.settings.run import RunSettings
from headway.tasks.loaded_run import check_fits

HEADS = "heads.safetensors"
"""File with the output heads of an exported encoder, because CTranslate2 stores only the layers
below them."""

VOCABULARIES = ("shared_vocabulary.json", "vocabulary.json")
"""File names of a vocabulary that source and target share. Without a shared vocabulary, there is
one file for each: `source_vocabulary.json` and `target_vocabulary.json`."""


def ctranslate2_engine(folder: Path, settings: RunSettings) -> Ctranslate2Engine:
    """Return the engine for an exported folder. This function implements `tasks.engines.Make`."""
    return Ctranslate2Engine(folder, settings)


class Ctranslate2Engine(Engine):
    name = "ctranslate2"

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        self.settings, self.folder = settings, folder
        assert isinstance(settings.model, TextSettings)
        self.shape: TextSettings = settings.model
        self.reach = positions_of(self.shape)
        self.known: dict[str, list[str]] = {}
        library = needs("ctranslate2", "ctranslate2")
        kind, several = library.Generator, False
        if isinstance(self.shape, Seq2SeqSettings):
            # One worker per core is fastest, but sampling is reproducible only with one worker.
            kind, several = library.Translator, not settings.decode.sample
        elif isinstance(self.shape, EncoderSettings):
            kind = library.Encoder
        cores = torch.get_num_threads()
        library.set_random_seed(settings.decode.seed)
        try:
            self.runner = kind(
                str(folder),
                inter_threads=cores if several else 1,
                intra_threads=1 if several else cores,
                max_queued_batches=-1,  # submitting a batch never blocks
            )
        except (RuntimeError, ValueError) as error:
            raise FolderError(f"CTranslate2 cannot read {folder}: {error}.") from error
        finally:
            torch.set_num_threads(cores)  # CTranslate2 changes the number of threads of torch
        if reranks(settings.decode) and not isinstance(self.shape, EncoderSettings):
            self.notes = (RERANKING_NOTE,)

    def searcher(
        self,
        settings: DecodeSettings,
        specials: SpecialTokens,
        *,
        context: int | None = None,
        detail: bool = False,
    ) -> Ctranslate2Searcher | Ctranslate2PromptSearcher:
        target = self.vocabulary("target")
        if isinstance(self.shape, DecoderSettings):
            return Ctranslate2PromptSearcher(
                self.runner, settings, specials, target, context, detail
            )
        both = self.vocabulary("source"), target
        return Ctranslate2Searcher(self.runner, settings, specials, both, self.reach, detail)

    def vocabulary(self, side: str) -> list[str]:
        """Return the tokens of one side, `source` or `target`, in the order of their ids."""
        if side not in self.known:
            present = (name for name in VOCABULARIES if (self.folder / name).is_file())
            path = file_in(self.folder, next(present, f"{side}_vocabulary.json"))
            self.known[side] = self._read_vocabulary(path, side)
        return self.known[side]

    def _read_vocabulary(self, path: Path, side: str) -> list[str]:
        rows = self.shape.vocab_size
        if side == "source" and isinstance(self.shape, Seq2SeqSettings):
            rows = self.shape.source_vocab
        try:
            words = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FolderError(f"cannot read {path}: {error}. Export the model again.") from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise FolderError(f"{path} must contain a JSON list of tokens. Export the model again.")
        check_fits(path, len(words), "words", rows, "Export the model again.")
        return words

    def attention(self, sources: TokenLists, targets: TokenLists, bos: int) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        lengths = [len(a) + len(b) for a, b in zip(sources, targets, strict=True)]
        for group in batches(lengths, self.settings.decode.batch_tokens):
            some = [sources[i] for i in group], [targets[i] for i in group]
            for i, result in zip(group, self._forced(*some, return_attention=True), strict=True):
                seen = np.asarray(result.attention[0], np.float32).reshape(-1, len(sources[i]))
                found[i] = torch.from_numpy(seen[: len(targets[i])])
        return [found[i] for i in range(len(sources))]

    def logits(self, source: Sequence[int], target: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits over the vocabulary after each token of `target`, which begins with the
        start token."""
        [result] = self._forced([source], [target], return_logits_vocab=True)
        return np.stack([np.array(row_V) for row_V in result.logits[0]])

    def _forced(self, sources: TokenLists, targets: TokenLists, **wanted: bool) -> list[Any]:
        """Return CTranslate2's results for given targets, computed by forced decoding. `wanted`
        names additional outputs, such as `return_attention`."""
        words, tokens = self.vocabulary("source"), self.vocabulary("target")
        results: list[Any] = self.runner.translate_batch(
            [[words[token] for token in source] for source in sources],
            target_prefix=[[tokens[token] for token in target] for target in targets],
            beam_size=1,
            max_decoding_length=max(map(len, targets)) + 1,
            min_decoding_length=0,
            max_input_length=0,
            **wanted,
        )
        return results

    def model(self) -> Encoder:
        if not isinstance(self.shape, EncoderSettings):
            self._cannot("compute hidden states of this model")
        whole = build_model(self.shape, device="meta")
        assert isinstance(whole, Encoder)
        path = file_in(self.folder, HEADS)
        try:
            weights = load_file(path)
            named = {name if name.startswith("ngrams.") else f"heads.{name}": weight
                     for name, weight in weights.items()}  # fmt: skip
            ngrams = nn.Identity() if whole.ngrams is None else whole.ngrams
            ours = nn.ModuleDict({"heads": whole.heads, "ngrams": ngrams})
            ours.load_state_dict(named, assign=True)
        except (
            SafetensorError,
            OSError,
            RuntimeError,
        ) as error:  # RuntimeError: wrong names or shapes
            reason = " ".join(str(error).split())
            raise FolderError(
                f"{path} is damaged or belongs to another model ({reason}). Export the model again."
            ) from error
        return EngineEncoder(self._read, whole.heads, whole.pooling, whole.ngrams)

    def _read(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None) -> Tensor:
        """Return the hidden states of a batch of texts. This method implements `EncodeFunction`."""
        assert isinstance(self.shape, EncoderSettings)
        lengths = layout.known_lengths()
        segments = None
        if self.shape.n_segments:
            numbers_N = torch.zeros_like(tokens_N) if segments_N is None else segments_N
            segments = [part.tolist() for part in numbers_N.split(lengths)]
        ids = [part.tolist() for part in tokens_N.split(lengths)]
        found = self.runner.forward_batch(ids, token_type_ids=segments)
        x_BTD = torch.from_numpy(np.array(found.last_hidden_state))
        rows = zip(x_BTD, lengths, strict=True)
        return torch.cat([x_TD[:length] for x_TD, length in rows])
