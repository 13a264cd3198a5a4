"""Names from other tools, with the corresponding settings, options and methods of headway."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import fields

from headway.settings.renamed import current

SETTINGS = {
    "learning_rate": "train.lr", "max_lr": "train.lr", "peak_lr": "train.lr",
    "batch_size": "train.batch_tokens", "bs": "train.batch_tokens",
    "max_tokens": "train.batch_tokens", "per_device_train_batch_size": "train.batch_tokens",
    "max_steps": "train.steps", "iterations": "train.steps", "max_iters": "train.steps",
    "num_epochs": "train.epochs", "n_epochs": "train.epochs", "epoch": "train.epochs",
    "num_train_epochs": "train.epochs", "max_epochs": "train.epochs",
    "warmup_steps": "train.warmup", "warmup_updates": "train.warmup",
    "lr_scheduler": "train.schedule", "scheduler": "train.schedule",
    "label_smoothing": "train.label_smoothing", "wd": "train.weight_decay",
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
    "decoder": "model.decoder.n_layers, model.decoder.n_heads and model.decoder.d_ff",
    "encoder_layers": "model.n_layers", "decoder_layers": "model.decoder.n_layers",
    "num_decoder_layers": "model.decoder.n_layers", "encoder_ffn_dim": "model.d_ff",
    "decoder_ffn_dim": "model.decoder.d_ff", "encoder_attention_heads": "model.n_heads",
    "decoder_attention_heads": "model.decoder.n_heads", "n_encoder_heads": "model.n_heads",
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
"""Settings that correspond to setting names of other tools."""

REMARKS = {
    "train.batch_tokens": "counted in tokens, not examples; chosen automatically if left out",
    "decode.temperature": "with decode.sample=true",
    "train.precision": "bf16 or fp32",
    "classify.balance": "gives all classes equal weight",
    "start.freeze": "the number of first layers; -1: all but the head",
    "lora.rank": "the rank of the LoRA updates",
}
"""Notes on settings whose meaning or unit differs from the corresponding setting of other tools."""

VALUES = {"classify.balance": "true"}
"""Values to suggest for settings whose type differs from that in other tools."""

NUMBERS = frozenset({"start.freeze", "lora.rank"})
"""Settings that take a number where other tools have a switch or a name."""

NOTHING = "nothing: "
"""Prefix of an explanation why an option is not needed."""

SEVERAL_GPUS = (
    "--device cuda for one GPU; for several: torchrun --nproc-per-node N -m headway train …"
)
FOLDS = (
    f"{NOTHING}cross-validation is not built in. Train once per fold, each with its own --valid "
    "FOLD and --out, or set data.valid_size"
)
PROBABILITIES = (
    "--scores for the probability of the prediction, or --top N for the N most likely classes"
)

OPTIONS = {
    "output": "--out", "output_dir": "--out", "out_dir": "--out", "save_dir": "--out",
    "o": "--out", "gpu": "--device cuda", "gpus": "--device cuda", "cuda": "--device cuda",
    "cpu": "--device cpu", "no_cuda": "--device cpu",
}  # fmt: skip

AFTER_TASK = "a file after the task: headway train TASK FILE"
OF_TRAIN = {
    "config": "--recipe FILE.toml", "config_file": "--recipe FILE.toml",
    "train": AFTER_TASK, "train_file": AFTER_TASK, "input": AFTER_TASK, "file": AFTER_TASK,
    "val": "--valid FILE", "dev": "--valid FILE",
    "src": "--source", "tgt": "--target", "images": AFTER_TASK, "column": "--text NAME",
    "path": "--image NAME (or --video, --audio)",
    "model": "model.preset=NAME (`headway presets`), or --from RUN",
    "resume": f"{NOTHING}the same command resumes where it stopped",
    "checkpoint": "--from RUN", "pretrained": "--from RUN", "init": "--from RUN",
    "time": "--budget", "max_time": "--budget", "overwrite": "--restart", "force": "--restart",
    **dict.fromkeys(("gpus", "n_gpus", "num_gpus", "gpu_ids", "nproc_per_node"), SEVERAL_GPUS),
    **dict.fromkeys(("cv", "k_fold", "kfold", "folds", "n_folds", "cross_validation"), FOLDS),
    **dict.fromkeys(
        ("proba", "probs", "probabilities", "predict_proba"),
        f"{NOTHING}prediction outputs probabilities: headway predict RUN --top N",
    ),
}  # fmt: skip

OF_USE = {
    "config": f"{NOTHING}the run has its settings; change one as in decode.beam=4",
    "model": f"{NOTHING}the run is the first argument",
    "checkpoint": f"{NOTHING}the run is the first argument",
    "input": f"{NOTHING}the file is the second argument",
    "file": f"{NOTHING}the file is the second argument",
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
"""Advice for arguments of other libraries that have no equivalent in Python."""


def remark_on(argument: str) -> str:
    """Return advice on an unknown argument, for the end of an error; empty if there is none."""
    return IN_PYTHON.get(argument, "")


OF_RUN = {
    "predict": "call it: run(texts)",
    "predict_proba": "run(texts) gives predictions with .probabilities",
    "generate": "call it: run(text), or run.write(text) to stream the output",
    "transform": "call it: run(texts); each prediction has a .vector",
    "encode": "call it: run(texts); for token numbers run.tokenizer.encode(text)",
    "fit": "headway.train(task, data, out=…); to fine-tune a run: run.train(data, out=…)",
    "save": "already saved in run.folder; run.export writes other formats",
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
"""Equivalent calls on a run, by the method names of other libraries."""

OF_EVALUATE = dict.fromkeys(
    ("input", "file", "test"), "a file after the run: headway evaluate RUN FILE"
)


def training_setting(name: str) -> str | None:
    """Return the full key of a training setting that was typed without its section, such as
    `train.epochs` for `epochs`. None if there is no such setting."""
    from headway.settings.train import TrainSettings

    key = f"train.{name.lstrip('-').replace('-', '_')}"
    known = {f"train.{one.name}" for one in fields(TrainSettings)}
    return key if key in known or current(key) in known else None


def setting_here(name: str) -> str | None:
    """Return the setting that corresponds to a name in another tool, such as `train.lr` for
    `learning_rate`. None if there is none."""
    return SETTINGS.get(name.lower().replace("-", "_"))


def setting_with(name: str, value: object) -> str:
    """Return the setting that corresponds to a name in another tool, as an item of a Python
    mapping, such as `"classify.balance": True`."""
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
    """Return the option or setting that corresponds to an option of another tool.

    `command`: the command to which it was given. `own`: names of the settings that the command
    accepts, by section. `options`: names of its options.
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
        value = ""  # the value counts something else in other tools
    value = VALUES.get(key, value)
    remark = f" ({REMARKS[key]})" if key in REMARKS else ""
    return f"{key}={value or '…'}{remark}"
