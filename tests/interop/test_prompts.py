"""What is put around a prompt or a text is what the published tokenizer puts there, token for
token, and so the texts are those of `generate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, models, pre_tokenizers, processors

from headway.interop.exporting import export_run
from headway.interop.hf.proof import quiet
from headway.interop.importing import import_run
from headway.settings.decode import DecodeSettings
from headway.tasks.complete_answers import completer_of
from headway.tasks.loaded_run import LoadedRun, open_plain, open_run

from .ours import tokenizer_agrees
from .padded_runs import answers
from .theirs import GPT2, LLAMA, NEOX, SIZE, reference, saved

SPECIALS = ["<unk>", "<s>", "</s>", "<pad>"]
WORDS = [*SPECIALS, *(f"w{number}" for number in range(SIZE - len(SPECIALS)))]
PROMPTS = [
    " ".join(f"w{(7 * number + 5 * place) % 50}" for place in range(1 + number % 5))
    for number in range(10)
]
NEW = 6
TIE = 1e-3
"""A choice between scores this near to each other is left to rounding."""

BYTES = processors.ByteLevel(trim_offsets=False)


def rule(before: Sequence[str], behind: Sequence[str] = ()) -> Any:
    """A post-processor that puts tokens around a text."""
    single = " ".join([*before, "$A", *behind])
    numbers = [(name, WORDS.index(name)) for name in {*before, *behind}]
    return processors.TemplateProcessing(single=single, special_tokens=numbers)


def write_json(folder: Path, processor: Any, **config: Any) -> None:
    words = {word: number for number, word in enumerate(WORDS)}
    inner = tokenizers.Tokenizer(models.WordLevel(words, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    if processor is not None:
        inner.post_processor = processor
    inner.save(str(folder / "tokenizer.json"))
    write_config(folder, tokenizer_class="PreTrainedTokenizerFast", **config)


def write_pairs(folder: Path, _: Any, **config: Any) -> None:
    """GPT-2's two files: every word is a letter or two."""
    letters = [chr(ord("a") + number) for number in range(26)] + ["Ġ", *map(str, range(10))]
    merges = [f"{a} {b}" for a, b in pairwise(letters)][: SIZE - 4 - 37]
    pieces = [*SPECIALS, *letters, *(pair.replace(" ", "") for pair in merges)]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{m}\n" for m in merges))
    write_config(folder, **config)


def write_config(folder: Path, **config: Any) -> None:
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
GPT2_MODEL = ("GPT2", {**GPT2, **IDS, "n_positions": 32, "tie_word_embeddings": False})
LLAMA_MODEL = ("Llama", {**LLAMA, **IDS})
NEOX_MODEL = ("GPTNeoX", {**NEOX, **IDS})
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any], tuple[list[int], list[int]]]] = {
    "no rule": (GPT2_MODEL, write_json, None, {}, ([], [])),
    "no rule, but a setting that the JSON overrules":
        (NEOX_MODEL, write_json, None, {"add_bos_token": True}, ([], [])),
    "a rule about bytes alone": (GPT2_MODEL, write_json, BYTES, {}, ([], [])),
    "a beginning": (LLAMA_MODEL, write_json, rule(["<s>"]), {}, ([1], [])),
    "a beginning and an end": (LLAMA_MODEL, write_json, rule(["<s>"], ["</s>"]), {}, ([1], [2])),
    "the end token at the beginning": (GPT2_MODEL, write_json, rule(["</s>"]), {}, ([2], [])),
    "two tokens before": (NEOX_MODEL, write_json, rule(["<pad>", "<s>"]), {}, ([3, 1], [])),
    "GPT-2's files": (GPT2_MODEL, write_pairs, None, {}, ([], [])),
    "GPT-2's files and a beginning":
        (GPT2_MODEL, write_pairs, None, {"add_bos_token": True}, ([1], [])),
}  # fmt: skip


def folder_of(name: str, folder: Path, head: str) -> tuple[Path, Any]:
    """A published model, and the tokenizer that `transformers` makes of its folder."""
    (kind, sizes), write, processor, config, _ = CASES[name]
    if head != "LM":
        sizes = {**sizes, "num_labels": 3}
    end = {"LM": "LMHeadModel" if kind == "GPT2" else "ForCausalLM"}.get(head, head)
    theirs = reference(kind + end, sizes)
    saved(theirs, folder)
    write(folder, processor, **config)
    return folder, theirs


def cut(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    with quiet(transformers):
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    return [list(tokenizer(text)["input_ids"]) for text in texts]


def generated(
    model: Any, prompts: Sequence[list[int]], **options: Any
) -> list[tuple[list[int], int]]:
    """What `generate` writes greedily, and how much of it no near tie decides."""
    found = []
    for prompt in prompts:
        ids_1T = torch.tensor([prompt])
        out = model.generate(
            ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=NEW,
            output_scores=True, return_dict_in_generate=True, **(IDS | options),
        )  # fmt: skip
        best = [scores_1V[0].topk(2).values for scores_1V in out.scores]
        sure = [bool(first - second > TIE) for first, second in best]
        text = out.sequences[0].tolist()[len(prompt) :]
        found.append((text, sure.index(False) if False in sure else len(sure)))
    return found


def assert_same_texts(ours: Sequence[list[int]], theirs: Sequence[tuple[list[int], int]]) -> None:
    for mine, (other, sure) in zip(ours, theirs, strict=True):
        assert mine[:sure] == other[:sure]
    assert len({token for other, _ in theirs for token in other}) > 3
    assert sum(sure for _, sure in theirs) > 0.9 * sum(len(other) for other, _ in theirs)


def written(run: LoadedRun, prompts: Sequence[str]) -> list[list[int]]:
    """By us, with the end token where it came."""
    settings = DecodeSettings(beam=1, max_len=NEW, unknown="keep")
    completer = completer_of(open_run(run.folder, device="cpu"), settings)
    names = run.vocab.target.tokens(range(SIZE))
    assert len(set(names)) == SIZE
    best = [completion.outputs[0] for completion in completer.complete(prompts)]
    return [[*map(names.index, output.tokens), *[2] * output.finished] for output in best]


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_prompts_are_those_of_the_published_tokenizer_and_texts_those_of_generate(
    name: str, tmp_path: Path
) -> None:
    source, theirs = folder_of(name, tmp_path / "theirs", "LM")
    before, behind = CASES[name][-1]
    import_run(str(source), tmp_path / "run")
    run = open_plain(str(tmp_path / "run"))
    prompts = cut(source, PROMPTS)
    assert [
        run.vocab.target.as_prompt(run.vocab.target.encode(text)) for text in PROMPTS
    ] == prompts
    assert prompts[0][: len(before)] == before
    assert prompts[0][len(prompts[0]) - len(behind) :] == behind
    assert len(prompts[0]) > len(before) + len(behind)
    expected = generated(theirs, prompts)
    assert_same_texts(written(run, PROMPTS), expected)
    # The way back: the exported folder says the same, and its proof has seen whole sequences.
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()
    assert tokenizer_agrees(proof)
    assert cut(tmp_path / "back", PROMPTS) == prompts
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert_same_texts([text for text, _ in generated(again, prompts)], expected)


@torch.no_grad()
def test_every_end_that_the_folder_names_ends_a_text(tmp_path: Path) -> None:
    source, theirs = folder_of("a beginning", tmp_path / "theirs", "LM")
    prompts = cut(source, PROMPTS)
    free = [text for text, _ in generated(theirs, prompts)]
    more = max(range(4, SIZE), key=[text[2] for text in free].count)
    ends = [2, more]
    theirs.generation_config.eos_token_id = ends
    theirs.save_pretrained(source)
    found = import_run(str(source), tmp_path / "run")
    assert not found.notes
    run = open_plain(str(tmp_path / "run"))
    expected = generated(theirs, prompts, eos_token_id=ends)
    assert any(text[-1] == more for text, _ in expected)
    cut_at = [text[:-1] if text[-1] in ends else text for text, _ in expected]
    ours = [[*text] if text[-1:] != [2] else text[:-1] for text in written(run, PROMPTS)]
    pairs = zip(ours, cut_at, expected, strict=True)
    assert all(mine[:sure] == other[:sure] for mine, other, (_, sure) in pairs)


@pytest.mark.parametrize("name", ["no rule", "a beginning", "a beginning and an end"])
@torch.no_grad()
def test_classes_and_vectors_of_a_decoder_read_what_the_tokenizer_gives(
    name: str, tmp_path: Path
) -> None:
    texts = [*PROMPTS, ""]
    source, theirs = folder_of(name, tmp_path / "theirs", "ForSequenceClassification")
    import_run(str(source), tmp_path / "classes")
    given = [ids or [1] for ids in cut(source, texts)]
    theirs.config.pad_token_id = None
    expected = [theirs(torch.tensor([ids])).logits[0].softmax(-1) for ids in given]
    found = [
        list(facts["probabilities"].values()) for facts in answers(tmp_path / "classes", texts)
    ]
    torch.testing.assert_close(torch.tensor(found), torch.stack(expected), atol=1e-4, rtol=1e-3)
    proof = export_run(str(tmp_path / "classes"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()
    source, theirs = folder_of(name, tmp_path / "bare", "LM")
    import_run(str(source), tmp_path / "vectors", task="embed")
    body = theirs.base_model
    last = [body(torch.tensor([ids])).last_hidden_state[0, -1] for ids in given]
    vectors = [facts["vector"] for facts in answers(tmp_path / "vectors", texts)]
    cosine = torch.cosine_similarity(torch.tensor(vectors), torch.stack(last))
    assert cosine.min() > 0.9999


def test_tags_of_a_decoder_are_at_its_words(tmp_path: Path) -> None:
    for name in ("no rule", "a beginning and an end"):
        source, theirs = folder_of(name, tmp_path / name, "ForTokenClassification")
        import_run(str(source), tmp_path / f"{name} run")
        [ids] = cut(source, ["w1 w2 w3"])
        first = ids.index(WORDS.index("w1"))
        with torch.no_grad():
            scores_TC = theirs(torch.tensor([ids])).logits[0, first : first + 3]
        labels = open_plain(str(tmp_path / f"{name} run")).settings.labels
        [facts] = answers(tmp_path / f"{name} run", ["w1 w2 w3"])
        assert facts["tags"] == [labels[int(best)] for best in scores_TC.argmax(-1)]
