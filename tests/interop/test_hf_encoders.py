"""BERT and its kin of `transformers`, imported: the same words, classes, tags and vectors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.errors import UserError
from headway.interop.families import FAMILIES, family_named
from headway.interop.name_pairs import to_ours, to_theirs
from headway.interop.weights import open_weights
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings

from ..facts import missing
from .theirs import (
    LENGTHS,
    SIZE,
    architecture,
    check,
    flat,
    ours,
    padded,
    real,
    reference,
    saved,
    tokens,
)

BERT = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"intermediate_size": 40, "max_position_embeddings": 16}
ODD = {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 41, "vocab_size": 53}
ALBERT = {**BERT, "embedding_size": 20, "num_hidden_layers": 3}
DISTILBERT = {"vocab_size": SIZE, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
DISTILBERT |= {"max_position_embeddings": 16}
ODD_DISTILBERT = {"dim": 35, "n_heads": 5, "n_layers": 3, "hidden_dim": 41, "vocab_size": 53}
LABELS = {"num_labels": 5}

WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "bert, odd sizes": ("BertForMaskedLM", {**BERT, **ODD, "num_hidden_layers": 3}),
    "bert, one segment": ("BertForMaskedLM", {**BERT, "type_vocab_size": 1}),
    "bert, three segments": ("BertForMaskedLM", {**BERT, "type_vocab_size": 3}),
    "bert, untied": ("BertForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "bert, tanh gelu": ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new"}),
    "bert, relu, another eps": (
        "BertForMaskedLM", {**BERT, "hidden_act": "relu", "layer_norm_eps": 0.1}),
    "bert, as it was trained": ("BertForPreTraining", BERT),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "distilbert, odd sizes": (
        "DistilBertForMaskedLM", {**DISTILBERT, **ODD_DISTILBERT, "activation": "relu"}),
    "distilbert, untied": ("DistilBertForMaskedLM", {**DISTILBERT, "tie_word_embeddings": False}),
    "distilbert, sinusoids": (
        "DistilBertForMaskedLM", {**DISTILBERT, "sinusoidal_pos_embds": True}),
    "roberta": ("RobertaForMaskedLM", {**BERT, "type_vocab_size": 1}),
    "roberta, odd sizes": ("RobertaForMaskedLM", {**BERT, **ODD, "type_vocab_size": 2}),
    "roberta, untied": ("RobertaForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {**BERT, "type_vocab_size": 1}),
    "roberta, padding 0": ("RobertaForMaskedLM", {**BERT, "pad_token_id": 0}),
    "albert": ("AlbertForMaskedLM", ALBERT),
    "albert, odd sizes": ("AlbertForMaskedLM", {**ALBERT, **ODD, "embedding_size": 21}),
    "albert, wide embeddings": ("AlbertForMaskedLM", {**ALBERT, "embedding_size": 48}),
    "albert, as wide as the stream": ("AlbertForMaskedLM", {**ALBERT, "embedding_size": 32}),
    "albert, one layer": ("AlbertForMaskedLM", {**ALBERT, "num_hidden_layers": 1}),
    "albert, untied": ("AlbertForMaskedLM", {**ALBERT, "tie_word_embeddings": False}),
    "albert, as it was trained": ("AlbertForPreTraining", {**ALBERT, "hidden_act": "gelu"}),
}  # fmt: skip

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}, {kind}": (f"{name}{kind}", sizes | LABELS)
    for name, sizes in (
        ("Bert", {**BERT, **ODD}),
        ("DistilBert", {**DISTILBERT, **ODD_DISTILBERT}),
        ("Roberta", {**BERT, **ODD, "type_vocab_size": 1}),
        ("Albert", {**ALBERT, **ODD}),
    )
    for kind in ("ForSequenceClassification", "ForTokenClassification", "Model")
}


def with_segments(
    theirs: Any, batch: dict[str, torch.Tensor], inputs: tuple[Any, ...]
) -> tuple[dict[str, torch.Tensor], tuple[Any, ...]]:
    """Segments in turn, where a model has several kinds."""
    kinds = getattr(theirs.config, "type_vocab_size", 0)
    if kinds < 2:
        return batch, inputs
    segments_N = torch.arange(len(inputs[0])) % kinds
    segments_BT = torch.zeros_like(batch["input_ids"])
    segments_BT[batch["attention_mask"].bool()] = segments_N
    return {**batch, "token_type_ids": segments_BT}, (*inputs, segments_N)


def inputs_of(theirs: Any) -> tuple[dict[str, torch.Tensor], tuple[Any, ...]]:
    lengths = [length for length in LENGTHS if length + 2 <= 16]
    sequences = tokens(lengths, theirs.config.vocab_size)
    batch = padded(sequences)
    pad = theirs.config.pad_token_id or 0  # RoBERTa counts its positions by it
    batch["input_ids"] = batch["input_ids"].where(batch["attention_mask"].bool(), pad)
    return with_segments(theirs, batch, flat(sequences))


@pytest.mark.parametrize("name", WORDS)
@torch.no_grad()
def test_masked_words_have_the_scores_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = reference(*WORDS[name])
    model = ours(saved(theirs, tmp_path))
    batch, inputs = inputs_of(theirs)
    output = theirs(**batch)
    theirs_BTV = output.prediction_logits if "as it was" in name else output.logits
    check(model.scores(model(*inputs)), real(theirs_BTV, batch))


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_classes_tags_and_vectors_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = reference(*OTHERS[name])
    model = ours(saved(theirs, tmp_path))
    batch, inputs = inputs_of(theirs)
    x_ND, layout = model(*inputs), inputs[1]
    if name.endswith("SequenceClassification"):
        check(model.classes(x_ND, layout), theirs(**batch).logits)
    elif name.endswith("TokenClassification"):
        check(model.tags(x_ND), real(theirs(**batch).logits, batch))
    else:
        output = theirs(**batch)
        check(x_ND, real(output.last_hidden_state, batch))
        if "Distil" not in name:
            check(model.pooled(x_ND, layout), output.pooler_output)


@pytest.mark.parametrize("name", [*WORDS, *OTHERS])
def test_back_under_their_names_every_tensor_is_the_same_byte_for_byte(
    name: str, tmp_path: Path
) -> None:
    cls, sizes = (WORDS | OTHERS)[name]
    folder = saved(reference(cls, sizes), tmp_path)
    found, weights = architecture(folder), open_weights(folder)
    taken = to_ours(weights, found.pairs, found.ignored)
    back = to_theirs(taken.weights, found.pairs, taken.kept)
    for part in weights:
        assert torch.equal(back[part], weights[part]), part
    assert {pair.theirs for pair in found.pairs if not pair.tied} <= set(weights)


@pytest.mark.parametrize("name", [*(name for name in WORDS if "padding 0" not in name), *OTHERS])
def test_what_a_run_is_written_as_is_read_as_the_same_run(name: str, tmp_path: Path) -> None:
    """`write` after `read`: transformers takes the configuration, and its tensors are the same.
    (Our own runs are written with the usual padding.)"""
    theirs = reference(*(WORDS | OTHERS)[name])
    found = architecture(saved(theirs, tmp_path))
    family = family_named(theirs.config.model_type)
    config, result = family.write(
        RunSettings(task=found.task, model=found.model, labels=found.labels)
    )
    built = type(theirs).config_class(**config)
    for key in config:
        if key not in ("architectures", "id2label", "label2id", "pad_token_id"):
            assert getattr(built, key) == getattr(theirs.config, key), key
    assert isinstance(result.model, EncoderSettings)
    assert isinstance(found.model, EncoderSettings)
    assert set(result.model.heads) == set(found.model.heads)
    required = {pair.theirs for pair in result.pairs if not pair.tied}
    assert required <= set(open_weights(tmp_path))


@torch.no_grad()
def test_norms_with_gamma_and_beta_are_read(tmp_path: Path) -> None:
    """As in the published bert-base-uncased, which was made from TensorFlow's."""
    theirs = reference("BertForMaskedLM", BERT)
    path = saved(theirs, tmp_path) / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): t
        for name, t in load_file(path).items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(16)[None]
    save_file(old, path)
    batch, inputs = inputs_of(theirs)
    model = ours(tmp_path)
    check(model.scores(model(*inputs)), real(theirs(**batch).logits, batch))
    taken = to_ours(open_weights(tmp_path), *_table(tmp_path))
    assert taken.ignored == {"bert.embeddings.position_ids": "counts 0, 1, 2 ..."}


def _table(folder: Path) -> tuple[Any, Any]:
    found = architecture(folder)
    return found.pairs, found.ignored


@pytest.mark.parametrize("first", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
@torch.no_grad()
def test_the_bias_of_words_is_found_under_either_name(first: str, tmp_path: Path) -> None:
    theirs = reference("BertForMaskedLM", BERT)
    path = saved(theirs, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    bias = theirs.cls.predictions.decoder.bias.detach().clone()
    for name in ("cls.predictions.bias", "cls.predictions.decoder.bias"):
        tensors.pop(name, None)
    save_file({**tensors, first: bias}, path)
    batch, inputs = inputs_of(theirs)
    model = ours(tmp_path)
    check(model.scores(model(*inputs)), real(theirs(**batch).logits, batch))
    save_file({**tensors, "cls.predictions.bias": bias, "cls.predictions.decoder.bias": bias + 1},
              path)  # fmt: skip
    names = r"cls\.predictions\.decoder\.bias\b.*\bheads\.words\.words\.linear\.bias\b"
    with pytest.raises(UserError, match=rf"{names}.*\btie_word_embeddings\b"):
        ours(tmp_path)


def test_a_pooler_that_the_class_does_not_use_is_kept(tmp_path: Path) -> None:
    path = saved(reference("AlbertForMaskedLM", ALBERT), tmp_path) / "model.safetensors"
    more = {"albert.pooler.weight": torch.ones(32, 32), "albert.pooler.bias": torch.ones(32)}
    save_file(load_file(path) | more, path)
    found = architecture(tmp_path)
    assert isinstance(found.model, EncoderSettings)
    assert found.model.heads == ("words", "pooled")


def test_labels_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = {"1": "one", "0": "nought", "2": "two"}
    sizes = {**BERT, "id2label": {int(k): v for k, v in names.items()}}
    folder = saved(reference("BertForSequenceClassification", sizes), tmp_path)
    assert architecture(folder, id2label=names).labels == ("nought", "one", "two")
    for wrong in ({"0": "a", "2": "b"}, {"x": "a"}, {"0": "a", "1": "a"}, [1]):
        with pytest.raises(UserError, match=rf"\bid2label\b.*{re.escape(repr(wrong))}"):
            architecture(folder, id2label=wrong)


def test_without_a_class_the_tensors_say_what_the_model_does(tmp_path: Path) -> None:
    for name, task in (("BertForMaskedLM", "fill"), ("BertModel", "embed")):
        folder = saved(reference(name, BERT), tmp_path / name)
        assert architecture(folder, architectures=None).task == task
    folder = saved(reference("BertForTokenClassification", BERT), tmp_path / "tags")
    with pytest.raises(UserError, match=r'config\.json\b.*"architectures"'):
        architecture(folder, architectures=None)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention"),
    ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("bert", {"hidden_act": "mish"}, "hidden_act"),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}, "architectures"),
    ("bert", {"architectures": ["BertForNextSentencePrediction"]}, "architectures"),
    ("bert", {"architectures": ["RobertaForMaskedLM"]}, "architectures"),
    ("bert", {"architectures": "BertModel"}, "architectures"),
    ("bert", {"architectures": ["BertForSequenceClassification"],
              "problem_type": "regression", "id2label": {"0": "x", "1": "y"}}, "problem_type"),
    ("bert", {"architectures": ["BertForSequenceClassification"], "problem_type": "ranking"},
     "problem_type"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups"),
    ("albert", {"inner_group_num": 2}, "inner_group_num"),
    ("roberta", {"hidden_act": "relu"}, "hidden_act"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "key"), REFUSED, ids=str)
def test_unsupported_keys_are_an_error_with_their_name(
    kind: str, changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    cls = {"bert": "Bert", "albert": "Albert", "roberta": "Roberta"}[kind]
    sizes = ALBERT if kind == "albert" else BERT
    folder = saved(reference(f"{cls}ForMaskedLM", sizes), tmp_path)
    pattern = rf"config\.json\b.*\b{key}\b.*{re.escape(repr(changes[key]))}"
    with pytest.raises(UserError, match=pattern):
        architecture(folder, **changes)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not changed."""
    return saved(reference("BertForMaskedLM", BERT), tmp_path_factory.mktemp("bert"))


ABSURD = [-1, 0, 10**9, 10**12, 2**63, "32", 1.5, float("nan"), float("inf"), True, [], {}]


@pytest.mark.parametrize("value", ABSURD, ids=repr)
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers",
                                 "num_attention_heads", "max_position_embeddings"])  # fmt: skip
def test_absurd_sizes_are_an_error_before_memory_is_taken(key: str, value: Any, bert: Path) -> None:
    with pytest.raises(UserError, match=rf"config\.json\b.*\b{key}\b.*{re.escape(repr(value))}"):
        architecture(bert, **{key: value})


@pytest.mark.parametrize(("key", "value"), [("vocab_size", 10**7), ("hidden_size", 4000),
                                            ("intermediate_size", 10**7)])  # fmt: skip
def test_sizes_that_are_not_those_of_the_tensors_are_an_error(
    key: str, value: int, bert: Path
) -> None:
    with pytest.raises(UserError, match=rf"\(\d+, 32\).*\b{value}\b"):
        ours(bert, **{key: value})


def test_a_missing_tensor_and_one_without_a_place_are_named(tmp_path: Path) -> None:
    path = saved(reference("BertModel", BERT), tmp_path) / "model.safetensors"
    tensors = load_file(path)
    tensors["stranger.weight"] = tensors.pop("encoder.layer.1.output.dense.weight")
    save_file(tensors, path)
    with pytest.raises(UserError) as caught:
        ours(tmp_path)
    assert not missing(caught.value, "encoder.layer.1.output.dense.weight", "stranger.weight")


def test_the_table_of_families_names_what_exists() -> None:
    for name in FAMILIES:
        assert hasattr(family_named(name), "read"), name
    with pytest.raises(UserError, match=r"\balbert\b.*\bbart\b.*\bxlm-roberta\b") as error:
        family_named("mamba")
    assert re.findall(r"'([\w-]+)'", str(error.value)) == ["mamba"]  # no suggestion


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("BertForSequenceClassification", "bert.pooler.dense."),
        ("AlbertForSequenceClassification", "albert.pooler."),
    ],
)
def test_a_classifier_without_its_pooler_is_an_error(
    name: str, missing: str, tmp_path: Path
) -> None:
    saved(reference(name, {**BERT, "num_labels": 3}), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({n: t for n, t in tensors.items() if not n.startswith(missing)}, path)
    with pytest.raises(UserError, match=rf"\b{re.escape(missing)}weight\b"):
        ours(tmp_path)


def test_a_format_rejects_unsupported_settings() -> None:
    def written(name: str, **changes: Any) -> Any:
        model = EncoderSettings(**{"heads": ("words",), **changes})
        return family_named(name).write(RunSettings(task="fill", model=model))

    assert written("bert")[0]["num_hidden_layers"] == 12
    for name, changes, facts in (
        ("bert", {"n_segments": 0}, ("model.n_segments", "0")),
        ("bert", {"block_layout": "pre"}, ("model.block_layout", "'pre'", "'post'")),
        ("bert", {"activation": "swiglu"}, ("activation='swiglu'",)),
        ("bert", {"d_head": 16}, ("model.d_head", "16", "64")),
        (
            "bert",
            {"heads": ("words", "tags"), "n_labels": 3},
            ("BertForTokenClassification", "'tags'", "'words'"),
        ),
        ("distilbert", {}, ("model.n_segments", "2", "0")),
        ("distilbert", {"n_segments": 0, "norm_eps": 1e-5}, ("model.norm_eps", "1e-05", "1e-12")),
        ("albert", {}, ("model.d_embedding", "None", "768")),
    ):
        with pytest.raises(UserError) as caught:
            written(name, **changes)
        assert not missing(caught.value, *facts)
