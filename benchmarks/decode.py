"""Translation with a Transformer of base size beside its peers: same weights, same tokens out.

Weights are random, lengths forced: the end token has no chance, so that every system writes the
same number of tokens. What they write is compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import alternating, pick_device, save
from benchmarks.sentences import pair_lengths
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.models.seq2seq import Seq2Seq
from headway.nn.linear import pack
from headway.settings.decode import DecodeSettings
from tests.references.convert import converted

PAD, EOS = 0, 1
NEVER = -1e4
"""Added to the scores of both, which so never come."""


@dataclass(frozen=True)
class Case:
    beam: int
    batch: int

    @property
    def name(self) -> str:
        search = f"beam {self.beam}" if self.beam > 1 else "greedy"
        return f"{search}, batch {self.batch}"


CASES = [Case(4, 32), Case(4, 1), Case(1, 32)]

Work = Callable[[], list[list[int]]]


def marian(vocab_size: int, layers: int, width: int = 512) -> Any:
    """Hugging Face's model, its weights drawn anew: its own start makes all words almost alike."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )
    model = MarianMTModel(config).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed_positions" not in name:
                weight.copy_(torch.randn(weight.shape, generator=draw) * weight.shape[1] ** -0.5)
        model.final_logits_bias[0, [PAD, EOS]] = NEVER
    return model


def same_weights(theirs: Any) -> Seq2Seq:
    ours = converted(theirs)
    assert isinstance(ours, Seq2Seq)
    return ours


def sources(case: Case, vocab_size: int) -> list[list[int]]:
    lengths = [length for length, _ in pair_lengths(case.batch)]
    draw = torch.Generator().manual_seed(1)
    return [
        [*torch.randint(2, vocab_size, (length,), generator=draw).tolist(), EOS]
        for length in lengths
    ]


def headway(model: Seq2Seq, batch: list[list[int]], case: Case, n_tokens: int) -> Work:
    settings = DecodeSettings(beam=case.beam, max_len=n_tokens, extra_len=512, unknown="keep")

    searcher = Searcher([model], settings, SpecialTokens(bos=PAD, eos=EOS, unk=PAD))

    def work() -> list[list[int]]:
        found = searcher(batch)
        return [of_source[0].tokens for of_source in found]

    return work


def hugging_face(
    model: Any, batch: list[list[int]], case: Case, n_tokens: int, device: torch.device
) -> Work:
    rows = [torch.tensor(source) for source in batch]
    ids_BS = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
    real_BS = _real(batch, device)

    @torch.inference_mode()
    def work() -> list[list[int]]:
        out_BT = model.generate(
            input_ids=ids_BS,
            attention_mask=real_BS,
            num_beams=case.beam,
            max_new_tokens=n_tokens,
            do_sample=False,
        )
        return out_BT[:, 1:].tolist()  # the first is the start token

    return work


def ctranslate2(model: Any, folder: str, threads: int, compute_type: str = "float32") -> Any:
    """CTranslate2's copy of the model, if it is installed; None otherwise."""
    try:
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader, MarianMTLoader
    except ImportError:
        return None

    class Loader(MarianMTLoader):
        """Theirs for published Marian models, which have a pad token that is no real one."""

        def _remove_pad_weights(self, spec: Any) -> None:
            pass

        def set_decoder(self, spec: Any, decoder: Any) -> None:
            BartLoader.set_decoder(self, spec, decoder)

    spec = Loader().get_model_spec(model)
    words = [str(token) for token in range(model.config.vocab_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.unk_token = spec.config.decoder_start_token = words[PAD]
    spec.config.eos_token, spec.config.add_source_eos = words[EOS], False
    spec.validate()
    spec.save(folder)
    return ctranslate2.Translator(
        folder, device="cpu", intra_threads=threads, compute_type=compute_type
    )


def ctranslate2_work(translator: Any, batch: list[list[int]], case: Case, n_tokens: int) -> Work:
    words = [[str(token) for token in source] for source in batch]

    def work() -> list[list[int]]:
        found = translator.translate_batch(
            words,
            beam_size=case.beam,
            max_decoding_length=n_tokens,
            min_decoding_length=n_tokens,
            max_batch_size=0,
        )
        return [[int(word) for word in result.hypotheses[0]] for result in found]

    return work


def _real(batch: list[list[int]], device: torch.device) -> Tensor:
    longest = max(len(source) for source in batch)
    lengths_B1 = torch.tensor([len(source) for source in batch])[:, None]
    return (torch.arange(longest) < lengths_B1).long().to(device)


def agreement(one: list[list[int]], other: list[list[int]]) -> float:
    """The share of outputs that are alike from the first token to the last."""
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one)


def measure(
    case: Case,
    ours: Seq2Seq,
    theirs: Any,
    other: Any,
    args: argparse.Namespace,
    device: torch.device,
) -> dict[str, Any]:
    batch = sources(case, args.vocab)
    works: dict[str, Work] = {
        "headway": headway(ours, batch, case, args.tokens),
        "HF generate": hugging_face(theirs, batch, case, args.tokens, device),
    }
    if other is not None:
        works["CTranslate2"] = ctranslate2_work(other, batch, case, args.tokens)
    if args.only:
        works = {args.only: works[args.only]}
    outputs = {name: work() for name, work in works.items()}
    assert all(len(out) == args.tokens for found in outputs.values() for out in found)
    n_tokens = case.batch * args.tokens
    table = {
        name: {
            "tokens_per_s": n_tokens / time_s,
            "same_as_headway": agreement(outputs[name], next(iter(outputs.values()))),
        }
        for name, time_s in alternating(works, device, args.rounds).items()
    }
    slowest = table.get("HF generate", next(iter(table.values())))["tokens_per_s"]
    print(case.name)
    for name, row in table.items():
        ratio, same = row["tokens_per_s"] / slowest, row["same_as_headway"]
        print(f"  {name:14s} {row['tokens_per_s']:10,.1f} tok/s {ratio:5.2f} × ({same:.0%} alike)")
    return table


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--tokens", type=int, default=32, help="that each output has")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="this system alone, for a profile")
    parser.add_argument("--case", type=int, help="this case alone, from 0")
    args = parser.parse_args(words)
    device = torch.device(args.device) if args.device else pick_device()
    torch.set_num_threads(args.threads)
    theirs = marian(args.vocab, args.layers, args.width).to(device)
    ours = same_weights(theirs).to(device)
    pack(ours)
    cases = CASES if args.case is None else [CASES[args.case]]
    with tempfile.TemporaryDirectory() as folder:
        other = ctranslate2(theirs, folder, args.threads) if device.type == "cpu" else None
        results = {c.name: measure(c, ours, theirs, other, args, device) for c in cases}
    about = {"model": "transformer-base", "vocabulary": args.vocab, "tokens": args.tokens}
    if args.case is None and not args.only:
        print(save("decode-base", device, {"work": about, "cases": results}))


if __name__ == "__main__":
    main()
