"""Export a run's tokenizer for `transformers` as JSON, with a rule that adds special tokens to each
text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from headway.interop.folder_files import read_table
from headway.settings.folder import CHAT_TEMPLATE, OWN_TOKENIZER, TOKENIZER, file_in
from headway.settings.model import EncoderSettings, Seq2SeqSettings
from headway.storage import replace_text
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.tokenizer import Tokenizer

PADS = ("<pad>", "[PAD]", "<|pad|>", "<PAD>")
ORIGINALS = "tokenizer"
"""Folder of an imported run that contains the original tokenizer files."""

KNOWN_NAMES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",),
               ("source.spm", "target.spm", "vocab.json"), ("spiece.model",), ("tokenizer.model",),
               ("sentencepiece.bpe.model",))  # fmt: skip
"""Sets of file names by which `transformers` recognizes a tokenizer. One complete set is needed."""

TARGET = "target"
"""Folder of the target tokenizer, if source and target have separate tokenizers."""


def around(run: LoadedRun) -> tuple[list[int], list[int]]:
    """Return the special tokens that the run's task adds before and after a text."""
    tokenizer = run.vocab.source
    if run.spec.is_audio:  # of the output, since there is no input text
        return [tokenizer.bos, *_present(tokenizer.target_begin)], [tokenizer.eos]
    if isinstance(run.shape, Seq2SeqSettings):
        return _present(tokenizer.source_begin), [tokenizer.eos]
    if run.spec.continues:
        return [*tokenizer.prompt_ends[0]], [*tokenizer.prompt_ends[1]]
    return [*tokenizer.text_ends[0]], [*tokenizer.text_ends[1]]


def _present(token: int | None) -> list[int]:
    return [] if token is None else [token]


def special_ids(run: LoadedRun) -> dict[str, Any]:
    """Return the ids of special tokens for `config.json` and `generation_config.json`."""
    target = run.vocab.target
    ids: dict[str, Any] = {"bos_token_id": target.bos, "eos_token_id": target.eos}
    if target.more_ends:
        ids["eos_token_id"] = [target.eos, *target.more_ends]
    ids["pad_token_id"] = padding(target)
    if isinstance(run.shape, Seq2SeqSettings):
        ids |= {"decoder_start_token_id": target.bos, "forced_eos_token_id": target.eos}
        if target.target_begin is not None:
            ids["forced_bos_token_id"] = target.target_begin
    return ids


def padding(tokenizer: Tokenizer) -> int:
    """Return the id of the padding token for exports. headway itself does not pad.

    It must not be the end token, because `transformers` looks for the last token that is not
    padding. Without a padding token, the id of the unknown token is returned.
    """
    found = (tokenizer.special(name) for name in PADS)
    own = next((i for i in found if i is not None), None)
    return tokenizer.unk if own is None else own


def give_back_tokenizer(run: LoadedRun, out: Path) -> None:
    """Copy the original tokenizer files of an imported run.

    If `transformers` does not recognize their names, for example those of a user's own tokenizer,
    they are written in headway's format instead.
    """
    files = [p for p in sorted((run.folder / ORIGINALS).glob("*"))
             if p.is_file() and not p.is_symlink()]  # fmt: skip
    names = {path.name for path in files}
    alone = names == {TOKENIZER}
    if alone and read_table(files[0]).get("post_processor") is None:
        # In these folders only the tokenizer class of the model adds special tokens, and no file
        # names that class.
        write_tokenizer(run, out)
        return
    if not any(names.issuperset(together) for together in KNOWN_NAMES):
        write_tokenizer(run, out)
        return
    for path in files:
        shutil.copyfile(path, out / path.name)
    if alone:  # otherwise the tokenizer class of the model would split text differently
        _write_config(run, run.vocab.source, out)


def write_tokenizer(run: LoadedRun, out: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`. A second vocabulary is written to its own
    folder."""
    source, target = run.vocab.source, run.vocab.target
    before, behind = around(run)
    _write(run, source, out, (before, behind))
    if not run.vocab.joint:
        (out / TARGET).mkdir()
        _write(run, target, out / TARGET, (_present(target.target_begin), [target.eos]))
    if (run.folder / CHAT_TEMPLATE).is_file():
        shutil.copyfile(run.folder / CHAT_TEMPLATE, out / CHAT_TEMPLATE)


def write_library_tokenizer(run: LoadedRun, out: Path) -> None:
    """Write the tokenizer for exports to a runtime as two files.

    One is JSON for the library `tokenizers`, with a rule that adds special tokens. The other is
    headway's own file, which also contains the roles of special tokens.
    """
    shutil.copyfile(file_in(run.folder, TOKENIZER), out / OWN_TOKENIZER)
    source, target = run.vocab.source, run.vocab.target
    _write_json(run, source, out, around(run))
    if not run.vocab.joint:
        (out / TARGET).mkdir()
        _write_json(run, target, out / TARGET, (_present(target.target_begin), [target.eos]))


def _write(
    run: LoadedRun, tokenizer: Tokenizer, out: Path, ends: tuple[list[int], list[int]]
) -> None:
    _write_json(run, tokenizer, out, ends)
    _write_config(run, tokenizer, out)


def _write_json(
    run: LoadedRun, tokenizer: Tokenizer, out: Path, ends: tuple[list[int], list[int]]
) -> None:
    facts = json.loads(tokenizer.library_json())
    facts["post_processor"] = _post_processor(run, tokenizer, *ends)
    replace_text(out / TOKENIZER, json.dumps(facts, ensure_ascii=False))


def _write_config(run: LoadedRun, tokenizer: Tokenizer, out: Path) -> None:
    values = _config(run, tokenizer)
    replace_text(out / "tokenizer_config.json", json.dumps(values, indent=2) + "\n")


def _post_processor(
    run: LoadedRun, tokenizer: Tokenizer, before: list[int], behind: list[int]
) -> dict[str, Any]:
    """Return the post-processor of `tokenizers` that adds special tokens.

    In a pair, the second text and its end token have segment id 1.
    """

    def special(token: int, segment: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": name_of(tokenizer, token), "type_id": segment}}

    def text(which: str, segment: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": which, "type_id": segment}}

    single = [*map(special, before), text("A"), *map(special, behind)]
    second = 1 if getattr(run.shape, "n_segments", 0) > 1 else 0
    ends = behind * tokenizer.pair_ends
    if tokenizer.between is not None:
        ends = [*tokenizer.between]
    pair = [*map(special, before), text("A"), *map(special, ends), text("B", second)]
    pair += [special(token, second) for token in behind]
    tokens = {
        name_of(tokenizer, i): {"id": name_of(tokenizer, i), "ids": [i],
                                "tokens": [name_of(tokenizer, i)]}
        for i in (*before, *behind, *ends)
    }  # fmt: skip
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": tokens,
    }


def name_of(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.tokens([token])[0]


def _config(run: LoadedRun, tokenizer: Tokenizer) -> dict[str, Any]:
    fills = run.spec.fills_masks
    names = ["input_ids", "attention_mask"]
    if isinstance(run.shape, EncoderSettings) and run.shape.n_segments > 1:
        names.insert(1, "token_type_ids")
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name_of(tokenizer, tokenizer.bos),
        "eos_token": name_of(tokenizer, tokenizer.eos),
        "unk_token": name_of(tokenizer, tokenizer.unk),
        "pad_token": name_of(tokenizer, padding(tokenizer)),
        "model_max_length": run.shape.max_len,
        "model_input_names": names,
        "clean_up_tokenization_spaces": False,
        # Special tokens in a text are not recognized, except for the mask token in the task `fill`.
        "split_special_tokens": not fills,
    }
    if tokenizer.mask is not None:
        values["mask_token"] = name_of(tokenizer, tokenizer.mask)
    return values
