"""Published model sizes by name. No counts are stored: `headway presets` builds and counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.errors import ConfigError, suggest
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    PictureEncoderSettings,
    PictureSeq2SeqSettings,
    PictureSettings,
    Seq2SeqSettings,
    SoundEncoderSettings,
    SoundSeq2SeqSettings,
    SoundSettings,
)


@dataclass(frozen=True, kw_only=True)
class Preset:
    settings: ModelSettings
    published: str
    """The size as its authors print it; '' where there is no publication."""

    source: str


TRANSFORMER = Seq2SeqSettings()
BERT = EncoderSettings()
GPT2 = DecoderSettings()
LLAMA = DecoderSettings(
    vocab_size=32_000,
    norm="rms",
    positions="rotary",
    activation="swiglu",
    attention_bias="",
    ff_bias=False,
    dropout=0.0,
    attention_dropout=0.0,
)

VIT = PictureEncoderSettings()
SMALL_VIT = replace(
    VIT,
    d_model=256,
    n_layers=7,
    n_heads=4,
    d_ff=512,
    norm_eps=1e-6,
    attention_bias="",
    init="small",
    picture=PictureSettings(
        height=32,
        width=32,
        patch=4,
        stem="conv",
        class_token=False,
        positions="sinusoidal",
    ),
    pooling="mean",
    n_labels=10,
)
WHISPER = SoundSeq2SeqSettings(
    vocab_size=51_865,
    d_model=384,
    n_layers=4,
    n_heads=6,
    d_ff=1536,
    norm_eps=1e-5,
    positions="learned",
    attention_bias="qvo",
    embedding_scale=False,
    dropout=0.0,
    init="bert",
    sound=SoundSettings(positions="whisper", pad_s=30.0),
)

PRESETS: dict[str, Preset] = {
    "transformer-base": Preset(
        settings=TRANSFORMER, published="65 M", source="Vaswani et al. 2017, table 3"
    ),
    "transformer-big": Preset(
        settings=replace(TRANSFORMER, d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
        published="213 M",
        source="Vaswani et al. 2017, table 3",
    ),
    "transformer-iwslt": Preset(
        settings=replace(TRANSFORMER, vocab_size=10_000, n_heads=4, d_ff=1024, dropout=0.3),
        published="",
        source="the size the field uses for IWSLT",
    ),
    "transformer-tiny": Preset(
        settings=replace(
            TRANSFORMER,
            vocab_size=10_000,
            d_model=128,
            n_layers=4,
            n_heads=4,
            d_ff=256,
            dropout=0.3,
        ),
        published="",
        source="the size the field uses for Multi30k",
    ),
    "transformer-small": Preset(
        settings=replace(
            TRANSFORMER, vocab_size=10_000, d_model=256, n_layers=4, n_heads=4, d_ff=1024
        ),
        published="",
        source="a larger corpus on two cores",
    ),
    "transformer-test": Preset(
        settings=replace(
            TRANSFORMER, vocab_size=100, d_model=32, n_layers=2, n_heads=4, d_ff=64, max_len=64
        ),
        published="",
        source="for tests",
    ),
    "bert-base": Preset(settings=BERT, published="110 M", source="Devlin et al. 2018, section 3"),
    "bert-large": Preset(
        settings=replace(BERT, d_model=1024, n_layers=24, n_heads=16, d_ff=4096),
        published="340 M",
        source="Devlin et al. 2018, section 3",
    ),
    "bert-mini": Preset(
        settings=replace(BERT, d_model=256, n_layers=4, n_heads=4, d_ff=1024),
        published="11.3 M",
        source="Turc et al. 2019",
    ),
    "bert-tiny": Preset(
        settings=replace(BERT, d_model=128, n_layers=2, n_heads=2, d_ff=512),
        published="4.4 M",
        source="Turc et al. 2019",
    ),
    "distilbert": Preset(
        settings=replace(BERT, n_layers=6, n_segments=0, heads=("words",)),
        published="66 M",
        source="Sanh et al. 2019, table 3",
    ),
    "minilm-l6": Preset(
        settings=replace(
            BERT, d_model=384, n_layers=6, d_ff=1536, heads=("pooled",), pooling="mean"
        ),
        published="22.7 M",
        source="all-MiniLM-L6-v2",
    ),
    "encoder-test": Preset(
        settings=replace(
            BERT, vocab_size=100, d_model=32, n_layers=2, n_heads=4, d_ff=64, max_len=64
        ),
        published="",
        source="for tests",
    ),
    "gpt": Preset(
        settings=replace(GPT2, vocab_size=40_478, max_len=512, wiring="post"),
        published="117 M",
        source="Radford et al. 2018",
    ),
    "gpt2": Preset(settings=GPT2, published="124 M", source="Radford et al. 2019"),
    "gpt2-medium": Preset(
        settings=replace(GPT2, d_model=1024, n_layers=24, n_heads=16, d_ff=4096),
        published="355 M",
        source="Radford et al. 2019",
    ),
    "gpt2-large": Preset(
        settings=replace(GPT2, d_model=1280, n_layers=36, n_heads=20, d_ff=5120),
        published="774 M",
        source="Radford et al. 2019",
    ),
    "gpt2-xl": Preset(
        settings=replace(GPT2, d_model=1600, n_layers=48, n_heads=25, d_ff=6400),
        published="1.5 B",
        source="Radford et al. 2019",
    ),
    "gpt3-small": Preset(
        settings=replace(GPT2, max_len=2048, dropout=0.0, attention_dropout=0.0),
        published="125 M",
        source="Brown et al. 2020, table 2.1",
    ),
    "shakespeare": Preset(
        settings=replace(
            GPT2,
            vocab_size=65,
            d_model=384,
            n_layers=6,
            n_heads=6,
            d_ff=1536,
            max_len=256,
            dropout=0.2,
            attention_dropout=0.2,
        ),
        published="",
        source="characters on one GPU",
    ),
    "shakespeare-laptop": Preset(
        settings=replace(
            GPT2,
            vocab_size=65,
            d_model=128,
            n_layers=4,
            n_heads=4,
            d_ff=512,
            max_len=64,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        published="",
        source="characters on two cores",
    ),
    "stories260K": Preset(
        settings=replace(
            LLAMA,
            vocab_size=512,
            d_model=64,
            n_layers=5,
            n_heads=8,
            n_kv_heads=4,
            d_ff=172,
            max_len=512,
        ),
        published="260 K",
        source="llama2.c",
    ),
    "stories15M": Preset(
        settings=replace(LLAMA, d_model=288, n_layers=6, n_heads=6, d_ff=768, max_len=256),
        published="15 M",
        source="llama2.c",
    ),
    "llama-laptop": Preset(
        settings=replace(
            LLAMA,
            vocab_size=8192,
            d_model=256,
            n_layers=6,
            n_heads=8,
            n_kv_heads=4,
            d_ff=688,
            max_len=512,
        ),
        published="",
        source="a modern decoder that trains on a laptop",
    ),
    "vit-base": Preset(
        settings=VIT, published="86 M", source="Dosovitskiy et al. 2020; patches of 16"
    ),
    "vit-large": Preset(
        settings=replace(VIT, d_model=1024, n_layers=24, n_heads=16, d_ff=4096),
        published="307 M",
        source="Dosovitskiy et al. 2020; patches of 16",
    ),
    "deit-tiny": Preset(
        settings=replace(VIT, d_model=192, n_heads=3, d_ff=768),
        published="5.7 M",
        source="Touvron et al. 2021; 5 M there",
    ),
    "deit-small": Preset(
        settings=replace(VIT, d_model=384, n_heads=6, d_ff=1536),
        published="22 M",
        source="Touvron et al. 2021",
    ),
    "vit-small-pictures": Preset(
        settings=SMALL_VIT, published="", source="a convolutional stem, for pictures of 32 × 32"
    ),
    "whisper-tiny": Preset(
        settings=WHISPER, published="39 M", source="Radford et al. 2022, table 1"
    ),
    "whisper-base": Preset(
        settings=replace(WHISPER, d_model=512, n_layers=6, n_heads=8, d_ff=2048),
        published="74 M",
        source="Radford et al. 2022, table 1",
    ),
    "whisper-small": Preset(
        settings=replace(WHISPER, d_model=768, n_layers=12, n_heads=12, d_ff=3072),
        published="244 M",
        source="Radford et al. 2022, table 1",
    ),
    "decoder-test": Preset(
        settings=replace(
            GPT2, vocab_size=100, d_model=32, n_layers=2, n_heads=4, d_ff=64, max_len=64
        ),
        published="",
        source="for tests",
    ),
    "picture-encoder-test": Preset(
        settings=replace(
            SMALL_VIT,
            d_model=32,
            n_layers=2,
            d_ff=64,
            picture=PictureSettings(height=16, width=16, patch=4),
            pooling="first",
        ),
        published="",
        source="for tests",
    ),
    "picture-seq2seq-test": Preset(
        settings=PictureSeq2SeqSettings(
            vocab_size=100,
            d_model=32,
            n_layers=2,
            d_ff=64,
            max_len=64,
            picture=PictureSettings(height=16, width=16, patch=4, class_token=False),
        ),
        published="",
        source="for tests",
    ),
    "sound-encoder-test": Preset(
        settings=SoundEncoderSettings(d_model=32, n_layers=2, d_ff=64),
        published="",
        source="for tests",
    ),
    "sound-seq2seq-test": Preset(
        settings=SoundSeq2SeqSettings(
            vocab_size=100, d_model=32, n_layers=2, d_ff=64, max_len=64, ctc=True
        ),
        published="",
        source="for tests",
    ),
}


def preset(name: str) -> ModelSettings:
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}.{suggest(name, PRESETS)}")
    return PRESETS[name].settings
