"""Tokenizers of model folders give the ids of the programs that the folders come from."""

from __future__ import annotations

import base64
import binascii
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from headway.data.fingerprint import data_inputs
from headway.errors import DataError
from headway.settings.data import TokenizerSettings
from headway.settings.run import RunSettings
from headway.tokens import bytepairs
from headway.tokens.files import load_tokenizer, load_vocabularies
from headway.tokens.foreign import load_foreign
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_on_texts, train_vocabularies
from tests.facts import naming
from tests.tokens.spm_models import trained
from tests.tokens.torture import CORPUS, SPELLED, TIED, TORTURE

GPT2 = {"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0}
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"


def save(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def agree(ours: Tokenizer, theirs: Any, texts: dict[str, str] = TORTURE) -> None:
    again = Tokenizer.from_json(ours.to_json(), "again")
    assert again.to_json() == ours.to_json()
    for name, text in texts.items():
        wanted = theirs(text)
        assert ours.encode(text) == wanted, name
        assert again.encode(text) == wanted, name


def ids_of(theirs: Any) -> Any:
    return lambda text: theirs(text, add_special_tokens=False)["input_ids"]


def one(folder: Path, config: dict[str, Any], n_tokens: int) -> Tokenizer:
    vocab = load_foreign(folder, config, n_tokens)
    assert vocab.joint
    assert vocab.source.vocab_size == n_tokens
    return vocab.source


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    made = ByteLevelBPETokenizer()
    special = ["<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(
        CORPUS, vocab_size=900, min_frequency=1, special_tokens=special, show_progress=False
    )
    made.save_model(str(folder))
    return folder


def test_gpt2_files_give_its_ids(gpt2: Path) -> None:
    ours = one(gpt2, GPT2, 900)
    theirs: Any = transformers.GPT2Tokenizer(
        vocab=str(gpt2 / "vocab.json"), merges=str(gpt2 / "merges.txt")
    )
    agree(ours, ids_of(theirs))
    for name, text in (TORTURE | SPELLED).items():
        assert ours.decode(ours.encode(text)) == text, name
    assert (ours.bos, ours.eos, ours.prompt_ends) == (0, 0, ((), ()))
    assert ours.roles is not None
    assert ours.roles.bos == "<|endoftext|>"
    assert 0 not in ours.encode(SPELLED["gpt2"])
    assert 0 in ids_of(theirs)(SPELLED["gpt2"])
    assert (ours.as_prompt([5]), ours.as_prompt([])) == ([5], [0])


def test_roberta_and_bart_know_how_they_read(gpt2: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2 / name, tmp_path)
    names = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
             "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}  # fmt: skip
    save(tmp_path, special_tokens_map=names)
    roberta = one(tmp_path, {"model_type": "roberta"}, 900)
    theirs: Any = transformers.RobertaTokenizer(
        vocab=str(gpt2 / "vocab.json"), merges=str(gpt2 / "merges.txt")
    )
    agree(roberta, ids_of(theirs))
    assert (roberta.bos, roberta.eos, roberta.mask, roberta.pair_ends) == (1, 3, 5, 2)
    config = {"model_type": "bart", "decoder_start_token_id": 3, "forced_bos_token_id": 1}
    save(tmp_path, generation_config={"bad_words_ids": [[2], [7, 8]]})
    bart = one(tmp_path, config, 900)
    assert (bart.bos, bart.eos, bart.source_begin, bart.target_begin) == (3, 3, 1, 1)
    assert bart.as_source(bart.encode("a b")) == theirs("a b")["input_ids"]
    assert bart.banned == (2,)
    assert Tokenizer.from_json(bart.to_json(), "t").roles == bart.roles


def test_a_byte_level_vocabulary_may_need_a_leading_space(gpt2: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2 / name, tmp_path)
    save(tmp_path, tokenizer_config={"add_prefix_space": True, "eos_token": "</s>"})
    ours = one(tmp_path, {"model_type": "gpt2"}, 900)
    theirs: Any = transformers.GPT2Tokenizer(
        vocab=str(gpt2 / "vocab.json"), merges=str(gpt2 / "merges.txt"), add_prefix_space=True
    )
    agree(ours, ids_of(theirs))
    assert ours.eos == 3


def test_qwen_has_other_cuts_for_the_same_files(gpt2: Path) -> None:
    config = {"model_type": "qwen2", "bos_token_id": 0, "eos_token_id": 0}
    ours = one(gpt2, config, 900)
    theirs: Any = transformers.Qwen2Tokenizer(
        vocab=str(gpt2 / "vocab.json"), merges=str(gpt2 / "merges.txt")
    )
    agree(ours, ids_of(theirs))
    assert ours.as_prompt([7]) == [7]


def test_the_first_gpt_reads_lower_case_words(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.model.save(str(tmp_path))
    n = made.get_vocab_size()
    ours = one(tmp_path, {"model_type": "openai-gpt"}, n)
    theirs: Any = transformers.OpenAIGPTTokenizer(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt")
    )
    agree(ours, ids_of(theirs))
    assert (ours.prompt_ends, ours.eos, ours.unk) == (((), ()), 0, 0)
    assert (ours.as_prompt([4]), ours.as_prompt([])) == ([4], [0])
    assert ours.decode(ours.encode("The Cat sat")) == "the cat sat"
    words = ours.encode("the cat sat on the mat")
    assert ours.word_starts(words).sum() == 6


@pytest.mark.parametrize("lowercase", [True, False, None])
@pytest.mark.parametrize("accents", [True, False, None])
@pytest.mark.parametrize("chinese", [True, False])
def test_bert_files_give_its_ids(
    lowercase: bool | None, accents: bool | None, chinese: bool, tmp_path: Path
) -> None:
    small = lowercase is not False
    made = BertWordPieceTokenizer(
        lowercase=small, strip_accents=accents, handle_chinese_chars=chinese
    )
    made.train_from_iterator(CORPUS, vocab_size=800, min_frequency=2, show_progress=False)
    made.save_model(str(tmp_path))
    facts = {"do_lower_case": lowercase, "strip_accents": accents,
             "tokenize_chinese_chars": chinese}  # fmt: skip
    save(tmp_path, tokenizer_config={k: v for k, v in facts.items() if v is not None})
    ours = one(tmp_path, {"model_type": "bert"}, 800)
    facts["do_lower_case"] = small
    theirs: Any = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"), **facts)
    agree(ours, ids_of(theirs))
    assert ours.mask is not None
    assert not {ours.bos, ours.eos, ours.mask} & set(ours.encode(SPELLED["bert"]))
    a, b = ours.encode_batch(["the cat", "a dog"])
    assert theirs("the cat", "a dog")["input_ids"] == [ours.bos, *a, ours.eos, *b, ours.eos]


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
def test_a_tokenizer_json_is_taken_as_it_is(kind: str, gpt2: Path, tmp_path: Path) -> None:
    if kind == "Unigram":
        made: Any = tokenizers.SentencePieceUnigramTokenizer()
        made.train_from_iterator(
            CORPUS, vocab_size=700, special_tokens=["<unk>", "</s>", "<pad>"], unk_token="<unk>",
            show_progress=False,
        )  # fmt: skip
        made = made._tokenizer
    elif kind == "BPE":
        made = tokenizers.Tokenizer.from_str(one(gpt2, GPT2, 900).library_json())
    else:
        made = BertWordPieceTokenizer()
        made.train_from_iterator(CORPUS, vocab_size=800, show_progress=False)
        made = made._tokenizer
    made.save(str(tmp_path / "tokenizer.json"))
    n = made.get_vocab_size()
    kinds = {"Unigram": "t5", "BPE": "gpt2", "WordPiece": "bert"}
    ours = one(tmp_path, {"model_type": kinds[kind], "eos_token_id": 0}, n + 3)
    theirs: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json")
    )
    agree(ours, ids_of(theirs))
    assert ours.special(f"<|unused {n + 2}|>") == n + 2
    assert {n, n + 1, n + 2} < ours.specials


@pytest.mark.parametrize(
    "pads", [{}, {"pad_to_multiple_of": 8}, {"length": 16, "direction": "left"}]
)
def test_padding_in_a_file_does_not_change_how_texts_begin(
    pads: dict[str, Any], tmp_path: Path
) -> None:
    """And a model without an unknown token cannot cut every text by which the rule is found."""
    words = {"A": 0, "C": 1, "<b>": 2, "<pad>": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<b>", "<pad>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<b> $A", special_tokens=[("<b>", 2)]
    )
    if pads:
        made.enable_padding(pad_id=3, pad_token="<pad>", **pads)
    made.save(str(tmp_path / "tokenizer.json"))
    ours = one(tmp_path, {"model_type": "gpt2", "bos_token_id": 2, "eos_token_id": 2}, 4)
    assert ours.as_prompt([0, 1]) == [2, 0, 1]


def test_special_tokens_of_a_unigram_model_stay_text(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(trained(pad_id=3))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(pad_id=3))
    config = {"model_type": "t5", "decoder_start_token_id": 3}
    ours = one(tmp_path, config, theirs.vocab_size() + 128)
    texts = TORTURE | SPELLED
    agree(ours, theirs.encode, {name: texts[name] for name in texts.keys() - TIED})
    assert (ours.bos, ours.eos, ours.as_source([7])) == (3, 2, [7, 2])
    size = theirs.vocab_size()
    assert ours.special("<extra_id_0>") == size + 99
    assert ours.special("<extra_id_99>") == size


def test_albert_folds_before_its_model(tmp_path: Path) -> None:
    model = trained(control_symbols="[CLS],[SEP],[MASK]", pad_id=3)
    (tmp_path / "spiece.model").write_bytes(model)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    save(tmp_path, special_tokens_map=names)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    n = theirs.vocab_size()
    ours = one(tmp_path, {"model_type": "albert"}, n)
    for text in ("Ärger ``so'' ÉTÉ", "The Cat", "ΣΑΣ"):
        folded = ours.normalise(text)
        assert folded == folded.lower()
        assert ours.encode(text) == theirs.encode(folded)
    assert ours.normalise("Ärger ``so'' ÉTÉ") == 'arger "so" ete'
    save(tmp_path, tokenizer_config={"do_lower_case": False, "keep_accents": True})
    assert one(tmp_path, {"model_type": "albert"}, n).normalise("É ''") == 'É "'


def test_llama_reads_a_sentencepiece_model(tmp_path: Path) -> None:
    model = trained(
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    config = {"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 5]}
    ours = one(tmp_path, config, theirs.vocab_size())
    agree(ours, theirs.encode, TORTURE | SPELLED)
    assert (ours.as_prompt([5]), ours.eos) == ([1, 5], 2)
    save(tmp_path, tokenizer_config={"add_bos_token": False})
    assert one(tmp_path, config, theirs.vocab_size()).as_prompt([5]) == [5]
    fast: Any = transformers.LlamaTokenizer.from_pretrained(str(tmp_path), legacy=False)
    for name in ("English", "German", "Chinese", "emoji with joiners", "run of blanks", "tabs"):
        assert ours.encode(TORTURE[name]) == ids_of(fast)(TORTURE[name]), name


def marian(folder: Path, *, lacking: Sequence[str] = ()) -> tuple[Path, dict[str, int]]:
    sides = {
        "source": trained(vocab_size=1000),
        "target": trained(vocab_size=1050, character_coverage=0.98),
    }
    pieces: dict[str, None] = {"</s>": None, "<unk>": None, ">>de<<": None}
    for name, model in sides.items():
        (folder / f"{name}.spm").write_bytes(model)
        library = sentencepiece.SentencePieceProcessor(model_proto=model)
        found = [library.id_to_piece(i) for i in range(3, library.vocab_size())]
        pieces |= dict.fromkeys(piece for piece in found if piece not in lacking)
    numbers = {piece: i for i, piece in enumerate([*pieces, "<pad>"])}
    save(folder, vocab=numbers, tokenizer_config={"unk_token": "<unk>", "eos_token": "</s>"})
    return folder, numbers


def fewer_unknown(found: list[int], wanted: list[int]) -> bool:
    """Whether ids differ only in the place of unknown characters (id 1). The program takes a run of
    them for unknown unless the whole run is a piece; `tokenizers` finds pieces within the run."""
    rest = iter(found)
    return 1 in wanted and all(i in rest for i in wanted if i != 1)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_has_a_way_to_cut_for_each_side(tmp_path: Path) -> None:
    folder, numbers = marian(tmp_path, lacking=["▁the", "a"])
    pad = numbers["<pad>"]
    config = {"model_type": "marian", "decoder_start_token_id": pad, "bad_words_ids": [[pad]],
              "forced_eos_token_id": 0}  # fmt: skip
    vocab = load_foreign(folder, config, pad + 1)
    assert not vocab.joint
    vocab.save(tmp_path / "saved.json")
    again = Vocabularies.load(tmp_path / "saved.json")
    theirs: Any = transformers.MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json")
    )
    for read in (vocab, again):
        for name, text in TORTURE.items():
            wanted = theirs(text)["input_ids"]
            found = read.source.as_source(read.source.encode(text))
            assert found == wanted or name in TIED or fewer_unknown(found, wanted), name
            wanted = theirs(text_target=text)["input_ids"]
            found = [*read.target.encode(text), read.target.eos]
            assert found == wanted or name in TIED or fewer_unknown(found, wanted), name
        assert read.source.vocab_size == read.target.vocab_size == pad + 1
        assert (read.target.bos, read.target.eos, read.target.banned) == (pad, 0, (pad,))
        assert not {0, pad} & set(read.source.encode(SPELLED["sentencepiece"]))
        assert read.source.encode(">>de<< The cat")[0] == numbers[">>de<<"]
        assert read.source.encode("▁the") == theirs("▁the")["input_ids"][:-1]
    ids = [i for i in vocab.target.encode(TORTURE["German"]) if i != 1]
    assert vocab.target.decode(ids) == theirs.decode(ids)
    of_source = [i for i in vocab.source.encode(TORTURE["Chinese"]) if i != 1]
    assert vocab.target.decode(of_source) == theirs.decode(of_source)  # pieces of the other side
    (tmp_path / "saved.json").unlink()
    from_files = load_vocabularies(folder)
    assert from_files.source.encode("The dog") == vocab.source.encode("The dog")
    with pytest.raises(DataError, match=naming("vocab.json", 50, "'é'")):
        load_foreign(folder, config, 50)


CUTS = {
    "gpt2": (bytepairs.GPT2_CUTS, None),
    "cl100k": (
        bytepairs.CL100K_CUTS,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    "o200k": (bytepairs.O200K_CUTS, None),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, int]]:
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(CORPUS, vocab_size=900, min_frequency=2, show_progress=False)
    signs = {sign: byte for byte, sign in bytepairs.BYTE_SIGNS.items()}
    ordered = sorted(made.get_vocab().items(), key=lambda item: item[1])
    found = {bytes(signs[c] for c in piece): i for i, (piece, _) in enumerate(ordered)}
    found[b" qzx"] = len(found)  # no two pieces make it, but a word that is it becomes it
    path = tmp_path_factory.mktemp("tiktoken") / "x.tiktoken"
    path.write_text("".join(f"{base64.b64encode(p).decode()} {i}\n" for p, i in found.items()))
    return path, found


@pytest.mark.parametrize("name", CUTS)
def test_tiktoken_files_give_its_ids(name: str, ranks: tuple[Path, dict[bytes, int]]) -> None:
    path, found = ranks
    cuts, theirs_cuts = CUTS[name]
    theirs = tiktoken.Encoding(
        name, pat_str=theirs_cuts or cuts, mergeable_ranks=found,
        special_tokens={"<|endoftext|>": len(found)},
    )  # fmt: skip
    ours = Tokenizer(bytepairs.tiktoken_tokenizer(path, cuts), "t")
    agree(ours, theirs.encode_ordinary, TORTURE | SPELLED)
    assert ours.encode("a qzx") == theirs.encode_ordinary("a qzx")
    assert ours.encode(" qzx") == [found[b" qzx"]]
    for text in (TORTURE | SPELLED).values():
        assert ours.decode(ours.encode(text)) == text
    assert (ours.eos, ours.bos, ours.vocab_size) == (len(found), len(found), len(found) + 1)


def test_the_cuts_of_a_tiktoken_file_follow_from_its_size(
    ranks: tuple[Path, dict[bytes, int]], tmp_path: Path
) -> None:
    path, found = ranks
    assert [bytepairs.cuts_of(n) for n in (50_256, 100_256, 128_000, 199_998)] == [
        bytepairs.GPT2_CUTS, bytepairs.CL100K_CUTS, bytepairs.CL100K_CUTS, bytepairs.O200K_CUTS
    ]  # fmt: skip
    shutil.copy(path, tmp_path / "tokenizer.model")  # as Llama 3 calls it
    n = len(found)
    ours = one(tmp_path, {"model_type": "llama", "eos_token_id": n}, n + 5)
    assert ours.encode("The cat") == load_tokenizer(path).encode("The cat")
    assert ours.eos == n
    llama = bytepairs.tiktoken_specials(128_000)
    assert (llama["<|end_of_text|>"], llama["<|eot_id|>"], len(llama)) == (128_001, 128_009, 256)
    assert bytepairs.tiktoken_specials(100_256)["<|endofprompt|>"] == 100_276
    assert bytepairs.tiktoken_specials(199_998)["<|endoftext|>"] == 199_999
    assert bytepairs.tiktoken_specials(50_256) == {"<|endoftext|>": 50_256}


@pytest.mark.parametrize(
    ("line", "facts", "cause"),
    [
        ("IQ== x", "2", ValueError),
        ("IQ= 1", "2", binascii.Error),
        ("IQ==", "2", ValueError),
        ("AA== 1", "2", NoneType),
        ("IQ== -1", "0 1", NoneType),
        ("IQ== 99999999999999", "0 1", NoneType),
        ("IQ== 1", "1", NoneType),
        ("\udcff", "", UnicodeDecodeError),
    ],
)
def test_damaged_tiktoken_files_are_named(
    line: str, facts: str, cause: type, tmp_path: Path
) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_bytes(b"AA== 0\n" + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=naming(path, facts)) as caught:
        load_tokenizer(path)
    assert type(caught.value.__cause__) is cause


SMILES = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
    r"|\%[0-9]{2}|[0-9])"
)


def test_formulas_are_cut_into_atoms(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [*"CcNnOoSsPFIBb()=#-+.123456789/\\:~@?*$>", "Cl", "Br", ">>", "[nH]", "[O-]", "[K+]",
               "[C@@H]", "%12"]  # fmt: skip
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    numbers = {piece: i for i, piece in enumerate(pieces)}
    ours = one(tmp_path, {"model_type": "albert"}, len(pieces) + 2)
    texts = {"reaction": REACTION, "ring": "C%12CC[C@@H](N)C(=O)O", "unknown": "[Zz]C[13C]",
             "text": "hello wörld %1 Si"}  # fmt: skip
    for name, text in (texts | TORTURE).items():
        wanted = [numbers.get(token, 2) for token in SMILES.findall(text)]
        assert ours.encode(text) == wanted, name
    assert ours.decode(ours.encode(REACTION)) == REACTION
    assert ours.encode("C[MASK]C") == [6, 2, 6]  # stays text, and no known atom
    assert (ours.bos, ours.eos, ours.mask) == (3, 4, 5)
    assert load_tokenizer(tmp_path).encode(REACTION) == ours.encode(REACTION)


def test_proteins_are_cut_into_letters(tmp_path: Path) -> None:
    pieces = [
        "<cls>",
        "<pad>",
        "<eos>",
        "<unk>",
        *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
        "<null_1>",
        "<mask>",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    ours = one(tmp_path, {"model_type": "esm"}, len(pieces))
    theirs: Any = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    proteins = {"protein": "MKTAYIAKQR QISFVKSHFSRQ", "gaps": "M-K..T xx M\nK", "lower": "mKt*"}
    agree(ours, ids_of(theirs), proteins | TORTURE)
    assert ours.decode(ours.encode("MKTAY")) == "MKTAY"
    read = [ours.bos, *ours.encode("MK"), ours.eos]
    assert read == theirs("MK")["input_ids"]
    assert ours.mask == len(pieces) - 1
    assert ours.encode("M<mask>K") == [pieces.index("M"), 3, pieces.index("K")]


def test_rows_and_tokens_are_made_to_fit(gpt2: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2 / name, tmp_path)
    with pytest.raises(DataError, match=naming("vocab.json", 899, 500)):
        load_foreign(tmp_path, GPT2, 500)
    save(tmp_path, added_tokens={"<|im|>": 903, "<|hi|>": 900})
    ours = one(tmp_path, GPT2, 910)
    assert ours.special("<|im|>") == 903
    assert ours.special("<|unused 909|>") == 909
    assert ours.encode("The cat") == one(gpt2, GPT2, 900).encode("The cat")
    save(tmp_path, added_tokens={"<|im|>": 5})
    with pytest.raises(DataError, match=naming("vocab.json", "'<|im|>'", 5)):
        load_foreign(tmp_path, GPT2, 910)
    made = tokenizers.Tokenizer.from_str(one(gpt2, GPT2, 900).library_json())
    made.add_special_tokens(["[PAD]"])
    made.save(str(tmp_path / "tokenizer.json"))
    save(tmp_path, added_tokens={})
    assert one(tmp_path, GPT2, 900).special("[PAD]") is None  # it had no row
    made.add_tokens(["real"])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match=naming("tokenizer.json", 901, 900, "'real'")):
        load_foreign(tmp_path, GPT2, 900)


def test_files_that_are_not_a_tokenizer_are_named(gpt2: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming(tmp_path, "tokenizer.json vocab.txt")):
        load_foreign(tmp_path, GPT2, 5)
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=naming(tmp_path, "a.model b.model")):
        load_foreign(tmp_path, GPT2, 5)
    (tmp_path / "b.model").unlink()
    with pytest.raises(DataError, match=naming("a.model", 0, 1)):
        load_foreign(tmp_path, GPT2, 5)
    with pytest.raises(DataError, match=naming("a.model", "xlm-roberta", "tokenizer.json")):
        load_foreign(tmp_path, {"model_type": "xlm-roberta"}, 5)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 0}')
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(DataError, match=naming("vocab.json")) as repeated:
        load_foreign(tmp_path, GPT2, 5)
    (tmp_path / "vocab.json").write_text('{"a": -1}')
    with pytest.raises(DataError, match=naming("vocab.json")) as negative:
        load_foreign(tmp_path, GPT2, 5)
    assert str(repeated.value) != str(negative.value)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(DataError, match=naming("vocab.json eos_token special_tokens_map.json")):
        load_foreign(tmp_path, {"model_type": "gpt2"}, 5)
    (tmp_path / "merges.txt").unlink()
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\na\n")
    with pytest.raises(DataError, match=naming("vocab.txt", "'a'")):
        load_foreign(tmp_path, {"model_type": "bert"}, 5)
    (tmp_path / "vocab.txt").write_bytes("ä".encode("latin-1"))
    with pytest.raises(DataError, match=naming("vocab.txt")) as caught:
        load_foreign(tmp_path, {"model_type": "bert"}, 5)
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=naming("tokenizer.json")) as caught:
        load_foreign(tmp_path, GPT2, 5)
    assert isinstance(caught.value.__cause__, RecursionError)
    save(tmp_path, tokenizer_config=[])
    with pytest.raises(DataError, match=naming("tokenizer_config.json")):
        load_foreign(tmp_path, GPT2, 5)


def test_every_format_trains_a_new_model(
    gpt2: Path, ranks: tuple[Path, dict[bytes, int]], tmp_path: Path
) -> None:
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "spiece.model").write_bytes(trained())
    (tmp_path / "marian").mkdir()
    marian(tmp_path / "marian")
    for path in (gpt2, ranks[0], tmp_path / "pieces", tmp_path / "pieces" / "spiece.model"):
        given = TokenizerSettings(file=str(path))
        made = train_on_texts([], given, 0, ["<mask>"])
        assert made.mask is not None
        assert made.special("<mask>") == made.mask
        Vocabularies(made, made).save(tmp_path / "tokenizer.json")
        again = Vocabularies.load(tmp_path / "tokenizer.json").source
        for text in (TORTURE | SPELLED).values():
            assert again.encode(text) == made.encode(text)
            assert max(made.encode(text), default=0) < made.vocab_size
        assert data_inputs(RunSettings(task="complete", tokenizer=given))["tokenizer"]["file"]
    both = train_vocabularies([], [], TokenizerSettings(file=str(tmp_path / "marian")), 0)
    assert not both.joint
    with pytest.raises(DataError, match=naming(tmp_path / "marian")):
        load_tokenizer(tmp_path / "marian")
