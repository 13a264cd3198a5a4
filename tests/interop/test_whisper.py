"""Whisper, from `transformers` folders and OpenAI's files: the same scores and transcripts."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

import headway
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.errors import UserError
from headway.interop.exporting import export_run
from headway.interop.importing import import_run
from headway.interop.proof_inputs import proof_audio
from headway.nn.layout import Layout
from headway.settings.audio import AudioSeq2SeqSettings
from headway.tasks.loaded_run import open_plain

from ..facts import missing
from .theirs import architecture, check, ours, reference, saved

SPECIALS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>",
            "<|nospeech|>", "<|notimestamps|>", "<|0.00|>"]  # fmt: skip
LETTERS = sorted(ByteLevel.alphabet())
PIECES = [*LETTERS, "Ġt", "he", "Ġthe"]
END, START, NO_TIMES = (len(PIECES) + SPECIALS.index(name) for name in
                        ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"))  # fmt: skip
SIZE = len(PIECES) + len(SPECIALS)

WHISPER: dict[str, Any] = {"vocab_size": SIZE, "num_mel_bins": 12, "d_model": 32}
WHISPER |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128}
WHISPER |= {"decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
WHISPER |= {"max_source_positions": 50, "max_target_positions": 20, "pad_token_id": END}
WHISPER |= {"bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}

MODELS: dict[str, dict[str, Any]] = {
    "small": WHISPER,
    "fewer layers that write": {**WHISPER, "decoder_layers": 1, "scale_embedding": True},
    "other sides": {
        **WHISPER, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 40},
    "softmax apart, relu": {
        **WHISPER, "tie_word_embeddings": False, "activation_function": "relu"},
}  # fmt: skip
RATE = 16_000


def model_of(name: str = "small") -> Any:
    theirs = reference("WhisperForConditionalGeneration", MODELS[name])
    # Attention of the random words is so sharp that the last digits of the audio would choose.
    with torch.no_grad():
        theirs.model.encoder.embed_positions.weight.normal_(0.0, 0.5)
    return theirs


def hears(folder: Path) -> Any:
    """Their way from samples to frames, of windows of one second."""
    found = transformers.WhisperFeatureExtractor(feature_size=12, chunk_length=1)
    found.save_pretrained(folder)
    return found


def audio() -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(5)
    return [(draw.normal(size=n) * 3000).astype(np.int16) for n in (RATE, 7001, 400)]


def features(extractor: Any, waves: list[Any]) -> Tensor:
    floats = [wave.astype(np.float32) / 32768 for wave in waves]
    found = extractor(floats, sampling_rate=RATE, return_tensors="pt")
    return found.input_features


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_scores_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = model_of(name)
    mine, waves = ours(saved(theirs, tmp_path)), audio()
    tokens_BT = torch.randint(0, SIZE, (3, 7), generator=torch.Generator().manual_seed(2))
    expected = theirs(features(hears(tmp_path), waves), decoder_input_ids=tokens_BT).logits
    x_ND = mine(*mine.source_front.collate(waves), tokens_BT.flatten(), Layout.of([7] * 3))
    check(mine.scores(x_ND), expected.flatten(0, 1), tolerance=1e-4)


def write_words(folder: Path) -> None:
    """GPT-2's files, with Whisper's special tokens as its folders have them."""
    merges = ["#version: 0.2", "Ġ t", "h e", "Ġt he"]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    vocab = json.dumps({piece: i for i, piece in enumerate(PIECES)}, ensure_ascii=False)
    (folder / "vocab.json").write_text(vocab, encoding="utf-8")
    special = {str(len(PIECES) + i): {"content": name, "special": True}
               for i, name in enumerate(SPECIALS)}  # fmt: skip
    facts = {"added_tokens_decoder": special, "tokenizer_class": "WhisperTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))


def whisper_folder(folder: Path) -> Any:
    theirs = model_of()
    facts = {"suppress_tokens": [START, 5, 9, NO_TIMES], "begin_suppress_tokens": [220, END]}
    facts |= {"forced_decoder_ids": [[1, NO_TIMES]], "no_timestamps_token_id": NO_TIMES}
    facts |= {"is_multilingual": False, "return_timestamps": False, "max_length": 20}
    ids = {key: WHISPER[key] for key in WHISPER if key.endswith("_token_id")}
    theirs.generation_config = transformers.GenerationConfig(**facts, **ids)
    saved(theirs, folder)
    write_words(folder)
    hears(folder)
    return theirs


@torch.no_grad()
def test_transcripts_are_those_of_generate(tmp_path: Path) -> None:
    theirs = whisper_folder(tmp_path / "theirs")
    import_run(str(tmp_path / "theirs"), tmp_path / "run")
    run = open_plain(str(tmp_path / "run"))
    words = run.vocab.target
    assert (words.bos, words.eos, words.target_begin) == (START, END, NO_TIMES)
    waves = audio()
    transformers.logging.set_verbosity_error()
    given = features(hears(tmp_path), waves)
    expected = [theirs.generate(given[i : i + 1])[0].tolist() for i in range(3)]
    found = Searcher([run.model], run.settings.decode, SpecialTokens.of(words))(waves)
    mine = [best.tokens[1:] for best, *_ in found]
    ends = [ids[: ids.index(END)] if END in ids else ids for ids in expected]
    assert mine == ends
    assert len({tuple(ids) for ids in mine}) == 3


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@torch.no_grad()
def test_segments_have_whispers_own_signs_of_doubt(engine: str, tmp_path: Path) -> None:
    """Mean log-probability, zlib ratio, and the probability of the no-speech token."""
    theirs = whisper_folder(tmp_path / "theirs")
    folder = import_run(str(tmp_path / "theirs"), tmp_path / "run").folder
    if engine == "onnx":
        export_run(str(folder), "onnx", tmp_path / "onnx")
        folder = tmp_path / "onnx"
    waves = audio()
    files = []
    for number, wave in enumerate(waves):
        files.append(str(tmp_path / f"{number}.wav"))
        soundfile.write(files[-1], wave, RATE)
    # Three times as long as a window; each window is a segment.
    files.append(str(tmp_path / "long.wav"))
    soundfile.write(files[-1], np.concatenate([waves[0]] * 3), RATE)
    run = headway.load(str(folder), device="cpu", engine=engine)
    answers = run(files)
    given = features(hears(tmp_path), waves)
    start = torch.full((len(waves), 1), START)
    expected_BV = theirs(given, decoder_input_ids=start).logits[:, 0].softmax(-1)
    no_speech = len(PIECES) + SPECIALS.index("<|nospeech|>")
    for answer, expected_V in zip(answers[:3], expected_BV, strict=True):
        [segment] = answer.segments
        assert segment.no_speech_prob == pytest.approx(float(expected_V[no_speech]), abs=1e-5)
        raw = segment.text.encode()
        assert segment.compression_ratio == pytest.approx(len(raw) / len(zlib.compress(raw)))
        assert segment.log_prob == pytest.approx(answer.log_prob, abs=1e-6)
        [facts] = answer.to_dict()["segments"]
        assert facts["no_speech_prob"] == pytest.approx(segment.no_speech_prob, abs=1e-4)
        assert facts["log_prob"] == pytest.approx(segment.log_prob, abs=1e-4)
    long = answers[3]
    assert len(long.segments) > 2
    counts = [len(one.tokens) for one in long.segments]
    means = [one.log_prob for one in long.segments]
    assert len(set(means)) > 1
    assert min(means) < long.log_prob < max(means)
    assert all(counts)


@pytest.mark.parametrize("what", ["suppress_tokens", "begin_suppress_tokens"])
def test_tokens_that_the_folder_suppresses_are_never_written(what: str, tmp_path: Path) -> None:
    whisper_folder(tmp_path / "theirs")
    import_run(str(tmp_path / "theirs"), tmp_path / "run")
    run, waves = open_plain(str(tmp_path / "run")), audio()
    plain = Searcher([run.model], run.settings.decode, SpecialTokens.of(run.vocab.target))(waves)
    first = plain[0][0].tokens[1]
    generation = {"suppress_tokens": [START, 5, 9, NO_TIMES], "begin_suppress_tokens": [220, END]}
    changed = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    changed[what] = [*generation[what], first]
    (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps(changed))
    import_run(str(tmp_path / "theirs"), tmp_path / "again")
    again = open_plain(str(tmp_path / "again"))
    found = Searcher([again.model], again.settings.decode, SpecialTokens.of(again.vocab.target))(
        waves
    )
    tokens = found[0][0].tokens
    assert tokens[0] == NO_TIMES
    assert tokens[1] != first
    if what == "suppress_tokens":
        assert all(first not in best.tokens for best, *_ in found)


def test_words_are_cut_after_a_space_and_special_ones_cannot_be_spelled(tmp_path: Path) -> None:
    whisper_folder(tmp_path / "theirs")
    import_run(str(tmp_path / "theirs"), tmp_path / "run")
    words = open_plain(str(tmp_path / "run")).vocab.target
    assert words.tokens(words.encode("the")) == ["▁the"]
    assert words.decode(words.encode("the <|en|>")).strip() == "the <|en|>"
    assert END not in words.encode("<|endoftext|>")


def test_an_import_goes_back_with_the_same_bytes(tmp_path: Path) -> None:
    folder, back = tmp_path / "theirs", tmp_path / "back"
    whisper_folder(folder)
    done = import_run(str(folder), tmp_path / "run")
    assert (done.settings.task, done.settings.transcribe.ctc) == ("transcribe", 0.0)
    proof = export_run(str(tmp_path / "run"), "hf", back)
    assert proof.passed, proof.text()
    assert proof.sentences == 4
    assert not missing(proof.text().splitlines()[0], "4")
    before, after = load_file(folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("config", "generation_config", "preprocessor_config", "tokenizer_config"):
        assert (folder / f"{name}.json").is_file()
        assert json.loads((folder / f"{name}.json").read_text()) == json.loads(
            (back / f"{name}.json").read_text()
        )


# OpenAI's files

OPENAI = {"fc1": "mlp.0", "fc2": "mlp.2", "final_layer_norm": "mlp_ln", "layers": "blocks"}
OPENAI |= {"self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm": "cross_attn_ln"}
OPENAI |= {"self_attn": "attn", "encoder_attn": "cross_attn", "q_proj": "query", "k_proj": "key"}
OPENAI |= {"v_proj": "value", "out_proj": "out"}
DIMS = {"n_mels": 12, "n_vocab": SIZE, "n_audio_ctx": 50, "n_audio_state": 32, "n_audio_head": 4}
DIMS |= {"n_audio_layer": 2, "n_text_ctx": 20, "n_text_state": 32, "n_text_head": 4}
DIMS |= {"n_text_layer": 2}


def openai_file(path: Path, theirs: Any, **dims: int) -> Path:
    """What OpenAI's program would have saved, in fp16."""
    tensors = {}
    for name, tensor in theirs.model.state_dict().items():
        parts = [OPENAI.get(part, part) for part in name.split(".")]
        new = ".".join(parts).replace("embed_tokens", "token_embedding")
        new = new.replace("embed_positions.weight", "positional_embedding")
        new = new.replace("encoder.layer_norm", "encoder.ln_post")
        tensors[new.replace("decoder.layer_norm", "decoder.ln")] = tensor.half()
    torch.save({"dims": DIMS | dims, "model_state_dict": tensors}, path)
    return path


def gpt2_folder(folder: Path) -> Path:
    folder.mkdir()
    write_words(folder)
    facts = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    facts |= {name: len(PIECES) + i for i, name in enumerate(SPECIALS)}
    (folder / "encoder.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    (folder / "vocab.json").unlink()
    return folder


@torch.no_grad()
def test_a_file_of_openai_scores_as_the_same_weights_there(tmp_path: Path) -> None:
    theirs = model_of()
    source = openai_file(tmp_path / "small.pt", theirs)
    done = import_run(str(source), tmp_path / "run", tokenizer=gpt2_folder(tmp_path / "words"))
    assert "Whisper" in done.kind
    assert done.ignored == {}
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "hf")
    assert proof.passed, proof.text()
    theirs.half().float()
    run, waves = open_plain(str(tmp_path / "run")), audio()
    back = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    tokens = torch.tensor([[START, NO_TIMES, 3, 7]])
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path / "hf")
    given = features(extractor, waves[:1])
    model: Any = run.model
    x_ND = model(*model.source_front.collate(waves[:1]), tokens[0], Layout.of([4]))
    for other in (theirs, back):
        check(model.scores(x_ND), other(given, decoder_input_ids=tokens).logits[0], tolerance=1e-4)


def test_a_file_of_openai_needs_a_vocabulary(tmp_path: Path) -> None:
    source = openai_file(tmp_path / "small.pt", model_of())
    with pytest.raises(UserError, match="tokenizer="):
        import_run(str(source), tmp_path / "run")


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ({"n_text_state": 64}, r"\bn_text_state\b.*\b64\b.*\b32\b"),
        ({"n_audio_layer": 10**6}, r"\bn_audio_layer\b.*\b1000000\b.*\b2000\b"),
        ({"n_audio_layer": 3}, r"\bencoder\.blocks\.2\.attn\.query\.weight\b"),
        ({"n_mels": 13}, r"\bsource_front\..*\(32, 36\).*\(32, 39\)"),
        ({"n_vocab": 5}, r"\btarget_front\.tokens\.weight\b.*\(266, 32\).*\(5, 32\)"),
    ],
)
def test_sizes_that_are_not_those_of_the_tensors_are_an_error(
    dims: dict[str, int], reason: str, tmp_path: Path
) -> None:
    source = openai_file(tmp_path / "small.pt", model_of(), **dims)
    words = gpt2_folder(tmp_path / "words")
    with pytest.raises(UserError, match=reason):
        import_run(str(source), tmp_path / "run", tokenizer=words)


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"dims": DIMS, "model_state_dict": {"a": Evil()}}, r"bad\.pt\b.*\bprint'"),
        ({"weights": {}}, r"bad\.pt\b.*'dims'.*'model_state_dict'"),
        (
            {"dims": {"n_mels": "80"}, "model_state_dict": {}},
            r"bad\.pt\b(?!.*model_state_dict).*'dims'",
        ),
        ({"dims": DIMS, "model_state_dict": {"a": 3}}, r"bad\.pt\b.*'a'"),
    ],
)
def test_a_file_that_is_not_one_of_whisper_is_an_error(
    value: Any, reason: str, tmp_path: Path
) -> None:
    torch.save(value, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=reason):
        import_run(str(tmp_path / "bad.pt"), tmp_path / "run", tokenizer=tmp_path)


# Errors


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["WhisperForAudioClassification"]},
            r"'WhisperForAudioClassification'.*\bWhisperForConditionalGeneration\b",
        ),
        ({"decoder_ffn_dim": 0}, r"\bdecoder_ffn_dim\b.*\b0\b"),
        ({"activation_function": "mish"}, r"\bactivation_function\b.*'mish'"),
        ({"num_mel_bins": 0}, r"\bnum_mel_bins\b.*\b0\b"),
    ],
)
def test_what_is_not_supported_is_named(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    saved(model_of(), tmp_path)
    with pytest.raises(UserError, match=reason):
        architecture(tmp_path, **changes)


def test_windows_longer_than_the_positions_are_an_error(tmp_path: Path) -> None:
    whisper_folder(tmp_path / "theirs")
    path = tmp_path / "theirs" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chunk_length": 30}))
    with pytest.raises(UserError, match=r"\bchunk_length\b.*\b30\b.*\b1,500\b.*\b50\b"):
        import_run(str(tmp_path / "theirs"), tmp_path / "run")


def test_proof_audio_fits_the_window(tmp_path: Path) -> None:
    whisper_folder(tmp_path / "theirs")
    done = import_run(str(tmp_path / "theirs"), tmp_path / "run")
    assert isinstance(done.settings.model, AudioSeq2SeqSettings)
    assert done.settings.model.audio.pad_s == 1.0
    longest = max(map(len, proof_audio(done.settings.model.audio)))
    assert longest == RATE


# The real weights, where someone has put them


REAL, WORDS, PROMPTS = Path("data/tiny.en.pt"), Path("data/gpt2-tokenizer"), Path("data/asterisk")


@pytest.mark.slow
@pytest.mark.skipif(not (REAL.is_file() and PROMPTS.is_dir()), reason="data/ has no tiny.en.pt")
def test_tiny_en_transcribes_real_prompts_as_generate_does(tmp_path: Path) -> None:
    from headway.data.media.audio import read_audio

    import_run(str(REAL), tmp_path / "run", tokenizer=WORDS)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "hf")
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4
    run = open_plain(str(tmp_path / "run"))
    transformers.logging.set_verbosity_error()
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path / "hf")
    search = Searcher([run.model], run.settings.decode, SpecialTokens.of(run.vocab.target))
    for name in ("agent-alreadyon", "auth-incorrect", "vm-toforward"):
        samples = (32767 * read_audio(PROMPTS / f"{name}.wav", RATE)).astype(np.int16)
        given = features(extractor, [samples])
        [[best, *_]] = search([samples])
        assert best.tokens[1:] == theirs.generate(given)[0].tolist(), name
        assert len(best.tokens) > 5
