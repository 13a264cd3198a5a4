"""Names that people know from other tools, and what the same is called here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import fields

SETTINGS = {
    "learning_rate": "train.lr", "max_lr": "train.lr", "peak_lr": "train.lr",
    "batch_size": "train.batch_tokens", "bs": "train.batch_tokens",
    "max_tokens": "train.batch_tokens", "per_device_train_batch_size": "train.batch_tokens",
    "max_steps": "train.steps", "iterations": "train.steps", "max_iters": "train.steps",
    "num_epochs": "train.epochs", "n_epochs": "train.epochs", "epoch": "train.epochs",
    "num_train_epochs": "train.epochs", "max_epochs": "train.epochs",
    "warmup_steps": "train.warmup", "warmup_updates": "train.warmup",
    "lr_scheduler": "train.schedule", "scheduler": "train.schedule",
    "label_smoothing": "train.smoothing", "wd": "train.weight_decay",
    "grad_clip": "train.clip", "max_grad_norm": "train.clip", "clip_norm": "train.clip",
    "early_stopping": "train.patience", "dtype": "train.precision", "fp16": "train.precision",
    "bf16": "train.precision", "eval_steps": "train.eval_every", "save_steps": "train.save_every",
    "optim": "train.optimizer", "optimiser": "train.optimizer", "seed": "train.seed",
    "hidden_size": "model.d_model", "d_hidden": "model.d_model", "embedding_size": "model.d_model",
    "n_embd": "model.d_model", "dim": "model.d_model", "width": "model.d_model",
    "num_layers": "model.n_layers", "layers": "model.n_layers",
    "depth": "model.n_layers", "num_hidden_layers": "model.n_layers",
    "num_heads": "model.n_heads", "heads": "model.n_heads",
    "num_attention_heads": "model.n_heads", "ffn_dim": "model.d_ff", "n_inner": "model.d_ff",
    "intermediate_size": "model.d_ff", "block_size": "model.max_len",
    "encoder": "model.n_layers, model.n_heads and model.d_ff",
    "decoder": "model.n_decoder_layers, model.n_decoder_heads and model.d_decoder_ff",
    "encoder_layers": "model.n_layers", "decoder_layers": "model.n_decoder_layers",
    "num_decoder_layers": "model.n_decoder_layers", "encoder_ffn_dim": "model.d_ff",
    "decoder_ffn_dim": "model.d_decoder_ff", "encoder_attention_heads": "model.n_heads",
    "decoder_attention_heads": "model.n_decoder_heads", "n_encoder_heads": "model.n_heads",
    "n_encoder_layers": "model.n_layers", "d_encoder_ff": "model.d_ff",
    "vocab": "tokenizer.vocab_size", "tokenizer_type": "tokenizer.kind",
    "max_seq_length": "data.max_len", "num_beams": "decode.beam", "beam_size": "decode.beam",
    "max_length": "decode.max_len", "max_new_tokens": "decode.max_len",
    "temp": "decode.temperature",
    "do_sample": "decode.sample", "num_return_sequences": "decode.n_best",
    "no_repeat_ngram_size": "decode.no_repeat_ngram", "text_column": "data.text_field",
    "label_column": "data.label_field",
    "class_weight": "classify.balance", "class_weights": "classify.balance",
    "balanced": "classify.balance", "weighted_loss": "classify.balance",
    "freeze": "start.freeze", "freeze_layers": "start.freeze", "frozen_layers": "start.freeze",
    "freeze_encoder": "start.freeze", "freeze_base": "start.freeze", "llrd": "start.layer_decay",
    "lora": "lora.rank", "lora_rank": "lora.rank", "lora_r": "lora.rank", "peft": "lora.rank",
    "lora_alpha": "lora.alpha",
}  # fmt: skip
"""Each with the setting that does it."""

REMARKS = {
    "train.batch_tokens": "tokens of a step, not examples; it may be left out",
    "decode.temperature": "with decode.sample=true",
    "train.precision": "bf16 or fp32",
    "classify.balance": "each class weighs the same",
    "start.freeze": "the first layers, as a number; -1: all but the head",
    "lora.rank": "the rank of the low-rank changes",
}
"""Differences to know before a value from another tool is taken over."""

VALUES = {"classify.balance": "true"}
"""Values that replace one of another kind in other tools."""

NUMBERS = frozenset({"start.freeze", "lora.rank"})
"""Settings that are numbers, where other tools have a switch or a name."""

NOTHING = "nothing: "
"""Begins what says why an option is not needed."""

SEVERAL_GPUS = (
    "--device cuda for one GPU; for several: torchrun --nproc-per-node N -m headway train …"
)
FOLDS = (
    f"{NOTHING}a run has one split. Train once for each fold, with --valid FOLD and an --out of "
    "its own, or set data.valid_size"
)
PROBABILITIES = "--scores for the probability of the answer, or --top N for the likeliest classes"

OPTIONS = {
    "output": "--out", "output_dir": "--out", "out_dir": "--out", "save_dir": "--out",
    "o": "--out", "gpu": "--device cuda", "gpus": "--device cuda", "cuda": "--device cuda",
    "cpu": "--device cpu", "no_cuda": "--device cpu",
}  # fmt: skip

BEHIND_TASK = "the file behind the task: headway train TASK FILE"
OF_TRAIN = {
    "config": "--recipe FILE.toml", "config_file": "--recipe FILE.toml",
    "train": BEHIND_TASK, "train_file": BEHIND_TASK, "input": BEHIND_TASK, "file": BEHIND_TASK,
    "val": "--valid FILE", "dev": "--valid FILE",
    "src": "--source", "tgt": "--target", "images": BEHIND_TASK, "column": "--text NAME",
    "path": "--image NAME (or --video, --audio)",
    "model": "model.preset=NAME (`headway presets`), or --from RUN",
    "resume": f"{NOTHING}the same command goes on where it stopped",
    "checkpoint": "--from RUN", "pretrained": "--from RUN", "init": "--from RUN",
    "time": "--budget", "max_time": "--budget", "overwrite": "--restart", "force": "--restart",
    **dict.fromkeys(("gpus", "n_gpus", "num_gpus", "gpu_ids", "nproc_per_node"), SEVERAL_GPUS),
    **dict.fromkeys(("cv", "k_fold", "kfold", "folds", "n_folds", "cross_validation"), FOLDS),
    **dict.fromkeys(
        ("proba", "probs", "probabilities", "predict_proba"),
        f"{NOTHING}probabilities come with answers: headway predict RUN --top N",
    ),
}  # fmt: skip

OF_USE = {
    "config": f"{NOTHING}the run has its settings; others are words, as decode.beam=4",
    "model": f"{NOTHING}the run is the first word",
    "checkpoint": f"{NOTHING}the run is the first word",
    "input": f"{NOTHING}the file is the second word",
    "file": f"{NOTHING}the file is the second word",
    "batch_size": "--batch-tokens", "num_beams": "--beam", "beam_size": "--beam",
    "beams": "--beam", "num_return_sequences": "--n-best", "nbest": "--n-best",
    **dict.fromkeys(
        ("proba", "probs", "probabilities", "predict_proba", "return_proba", "confidence",
         "return_all_scores", "top_labels"), PROBABILITIES
    ),
}  # fmt: skip

IN_PYTHON = dict.fromkeys(
    ("gpus", "n_gpus", "num_gpus", "gpu_ids"),
    ' Use device="cuda" for one GPU; several GPUs need the command line: torchrun --nproc-per-node '
    "N -m headway train …",
)
"""What does the work of an argument that other libraries have."""


def remark_on(argument: str) -> str:
    """The end of an error about an unknown argument; empty where nothing is known of it."""
    return IN_PYTHON.get(argument, "")


OF_RUN = {
    "predict": "call it: run(texts)",
    "predict_proba": "run(texts) has .probabilities on each answer",
    "generate": "call it: run(text), or run.write(text) for pieces while they are written",
    "transform": "call it: run(texts); vectors are in .vector of each answer",
    "encode": "call it: run(texts); tokens are in run.tokenizer.encode(text)",
    "fit": "headway.train(task, data, out=…) makes a run; run.train(data, out=…) starts from one",
    "save": "it is in run.folder already; run.export writes other formats",
    "save_pretrained": 'run.export("hf", folder)',
    "eval": "run.evaluate(data)",
    "test": "run.evaluate(data)",
    "score_on": "run.evaluate(data)",
    "explain": "run.look(text)",
    "parameters": "run.model.parameters()",
    "state_dict": "run.model.state_dict()",
    "cuda": 'run.to("cuda")',
    "cpu": 'run.to("cpu")',
}
"""Methods that people expect of a run, each with what does it here."""

OF_EVALUATE = dict.fromkeys(
    ("input", "file", "test"), "the file behind the run: headway evaluate RUN FILE"
)


def training_setting(name: str) -> str | None:
    """`epochs` is `train.epochs`: a setting of training may be typed without its section."""
    from headway.settings.train import TrainSettings

    short = name.lstrip("-").replace("-", "_")
    return f"train.{short}" if short in {one.name for one in fields(TrainSettings)} else None


def setting_here(name: str) -> str | None:
    """`learning_rate` is `train.lr`."""
    return SETTINGS.get(name.lower().replace("-", "_"))


def setting_with(name: str, value: object) -> str:
    """`"classify.balance": True`, as a mapping in Python has it."""
    key = str(setting_here(name))
    known = {"true": True}.get(VALUES.get(key, ""), value)
    is_other = key == "train.batch_tokens" or (key in NUMBERS and type(value) is not int)
    shown = "…" if is_other else repr(known)
    return f'"{key}": {shown}'


def option_here(
    command: str,
    option: str,
    value: str,
    own: Mapping[str, list[str]],
    options: Container[str],
) -> str | None:
    """What to write for an option that `command` does not have: another option or a setting.

    `own`: names of settings by section, those that the command takes; `options`: its own.
    """
    name = option.lstrip("-").lower().replace("-", "_")
    known = OPTIONS | (OF_TRAIN if command in ("train", "check") else OF_USE)
    known |= OF_EVALUATE if command == "evaluate" else {}
    here = known.get(name)
    if here is not None and (not here.startswith("-") or here.split()[0] in options):
        return here
    key = setting_here(name)
    section = next((s for s, names in own.items() if name in names), None)
    key = f"{section}.{name}" if section else key
    if key is None or key.partition(".")[0] not in own:
        return None
    if key == "train.batch_tokens" or (key in NUMBERS and not value.lstrip("-").isdecimal()):
        value = ""  # another quantity
    value = VALUES.get(key, value)
    remark = f" ({REMARKS[key]})" if key in REMARKS else ""
    return f"{key}={value or '…'}{remark}"
