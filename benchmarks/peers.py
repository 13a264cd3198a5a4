"""The models people would pick otherwise, in their best known configuration, as training steps."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sentences import PaddedBatch
from headway.config.model import Seq2SeqSettings
from headway.nn.positions import sinusoids


class TorchTransformer(nn.Module):
    """`nn.Transformer` with what it leaves to the user: embeddings, positions, a tied softmax."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        super().__init__()
        self.scale = settings.d_model**0.5
        self.tokens = nn.Embedding(settings.vocab_size, settings.d_model)
        nn.init.normal_(self.tokens.weight, std=settings.d_model**-0.5)
        self.register_buffer("positions", sinusoids(512, settings.d_model), persistent=False)
        self.drop = nn.Dropout(settings.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about nested tensors, which training does not use
            self.body = nn.Transformer(
                settings.d_model,
                settings.n_heads,
                settings.n_layers,
                settings.decoder_layers,
                settings.d_ff,
                settings.dropout,
                batch_first=True,
            )

    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.tokens(tokens_BT) * self.scale + self.positions[: tokens_BT.shape[1]]
        return self.drop(x_BTD)

    def forward(self, batch: PaddedBatch) -> Tensor:
        length = batch.target_BT.shape[1]
        later_TT = torch.ones(length, length, dtype=torch.bool, device=batch.target_BT.device)
        x_BTD = self.body(
            self.embed(batch.source_BS),
            self.embed(batch.target_BT),
            tgt_mask=later_TT.triu(1),
            src_key_padding_mask=~batch.source_real_BS,
            tgt_key_padding_mask=~batch.target_real_BT,
            memory_key_padding_mask=~batch.source_real_BS,
            tgt_is_causal=True,
        )
        return F.linear(x_BTD, self.tokens.weight)


class Marian(nn.Module):
    """Hugging Face's Marian with its fused attention."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=settings.vocab_size,
            d_model=settings.d_model,
            encoder_layers=settings.n_layers,
            decoder_layers=settings.decoder_layers,
            encoder_attention_heads=settings.n_heads,
            decoder_attention_heads=settings.n_heads,
            encoder_ffn_dim=settings.d_ff,
            decoder_ffn_dim=settings.d_ff,
            activation_function="relu",
            dropout=settings.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            use_cache=False,
            attn_implementation="sdpa",
        )
        self.model = MarianMTModel(config)

    def forward(self, batch: PaddedBatch) -> Tensor:
        out = self.model(
            input_ids=batch.source_BS,
            attention_mask=batch.source_real_BS,
            decoder_input_ids=batch.target_BT,
            decoder_attention_mask=batch.target_real_BT,
            use_cache=False,
        )
        return out.logits


def padded_loss(logits_BTV: Tensor, batch: PaddedBatch) -> Tensor:
    return F.cross_entropy(
        logits_BTV.flatten(0, 1), batch.labels_BT.flatten(), ignore_index=-100, label_smoothing=0.1
    )
