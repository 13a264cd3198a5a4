"""Files that mean harm: nothing of them runs, each gets one clear error, memory stays bounded."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import shutil
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.cli.main import main
from headway.errors import UserError
from headway.interop.folder_files import inside, read_json
from headway.interop.importing import import_run
from headway.interop.pickles import read_pickle
from headway.interop.weights import open_weights

from .folders import bert_folder, change
from .test_llama2c import tokenizer_file

MUCH = 400 << 20
"""Bytes that no rejected file may cost; what the files here claim is far more."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("model"))[0]


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """An honest folder, to be changed."""
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.fixture(autouse=True)
def memory_stays_bounded() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < MUCH


def import_error(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The one error of `headway import`: code 2, one message, no traceback, no folder left."""
    out = tmp_path / "out"
    assert main(["import", str(folder), "--out", str(out)]) == 2
    printed = capfd.readouterr().err
    lines = printed.splitlines()
    assert sum(line.startswith("headway import: error: ") for line in lines) == 1
    assert len(printed) < 2000
    assert "Traceback" not in printed
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    return printed


def test_the_honest_folder_is_imported(folder: Path, tmp_path: Path) -> None:
    """The tests below reject this folder only because of what they change."""
    import_run(str(folder), tmp_path / "out")
    assert (tmp_path / "out" / "config.toml").is_file()


# Pickles


class Payload:
    """Unpickling it calls a function of the attacker's choice."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


def payloads(marker: Path) -> dict[str, Any]:
    return {
        "os.system": Payload(os.system, f"touch {marker}"),
        "eval": Payload(eval, f"open({str(marker)!r}, 'w')"),
        "exec": Payload(exec, f"open({str(marker)!r}, 'w')"),
        "open": Payload(open, str(marker), "w"),
        "getattr": Payload(getattr, "text", "format"),
        "path": Payload(Path.touch, marker),
        "torch.load": Payload(torch.load, str(marker)),
    }


def zipped(pickled: bytes, **others: bytes) -> bytes:
    """A file as torch writes it, with this pickle."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", b"3\n")
        file.writestr("archive/byteorder", b"little")
        for name, value in others.items():
            file.writestr(f"archive/{name}", value)
    return stream.getvalue()


def legacy(pickled: bytes) -> bytes:
    """A file as torch wrote it before 1.6: five pickles."""
    magic = 0x1950A86A20F9469CFC6C
    parts = [pickle.dumps(part, 2) for part in (magic, 1001, {"little_endian": True})]
    return b"".join(parts) + pickled + pickle.dumps([], 2)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("form", [zipped, legacy])
@pytest.mark.parametrize("name", list(payloads(Path("x"))))
def test_a_pickle_with_a_payload_is_rejected_and_does_not_run(
    name: str, form: Callable[[bytes], bytes], protocol: int, folder: Path, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    marker = tmp_path / "marker"
    value = {"bert.embeddings.word_embeddings.weight": payloads(marker)[name]}
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(form(pickle.dumps(value, protocol)))
    message = import_error(folder, tmp_path, capfd)
    calls = {"os.system": "system", "path": "getattr", "torch.load": "load"}
    called = "STACK_GLOBAL" if protocol == 4 else calls.get(name, name)
    assert re.search(rf"pytorch_model\.bin\b.*\b{called}\b", message)
    assert not marker.exists()


def test_the_payload_runs_where_pickles_are_trusted(tmp_path: Path) -> None:
    """So that the test above tests something."""
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(payloads(marker)["os.system"]))
    assert marker.exists()


def test_the_second_protection_works_without_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.interop.pickles._check_names", lambda *args: None)
    marker = tmp_path / "marker"
    path = tmp_path / "pytorch_model.bin"
    for form in (zipped, legacy):
        path.write_bytes(form(pickle.dumps({"w": payloads(marker)["os.system"]}, 2)))
        with pytest.raises(UserError):
            read_pickle(path)
        assert not marker.exists()


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_an_honest_pickle_is_read(old: bool, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    state = OrderedDict((name, torch.nn.Parameter(tensor)) for name, tensor in tensors.items())
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    weights = open_weights(folder)
    assert set(weights) == set(tensors)
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)
    assert not any(weights[name].requires_grad for name in tensors)


def stretched() -> Any:
    """A million million numbers, of which the file has one."""
    return torch.zeros(1).expand(10**6, 10**6)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"w": stretched()}, r"pytorch_model\.bin\b.*'w'"),
        ({f"w{i}": "shared" for i in range(50)}, r"pytorch_model\.bin\b.*\b20,000,000\b"),
        ({"w": torch.eye(3).to_sparse()}, r"'torch\._utils\._rebuild_sparse_tensor'"),
        ({"w": [torch.ones(1)]}, r"pytorch_model\.bin\b.*'w'"),
        ({"w": 3}, r"pytorch_model\.bin\b.*'w'"),
        ({3: torch.ones(1)}, r"pytorch_model\.bin\b.*'3'"),
        ([torch.ones(1)], r"pytorch_model\.bin\b(?!.*').*\btensors\b"),
    ],
    ids=["stretched", "named again and again", "sparse", "list", "number", "key", "no table"],
)
def test_tensors_that_claim_more_than_they_have_are_rejected(
    value: Any, reason: str, tmp_path: Path
) -> None:
    shared = torch.zeros(100_000)
    if isinstance(value, dict):
        value = {name: shared if part == "shared" else part for name, part in value.items()}
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=reason):
        read_pickle(tmp_path / "pytorch_model.bin")


def test_a_legacy_file_that_claims_a_huge_storage_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    honest = path.read_bytes()
    claimed = honest.replace(b"M\xe8\x03", b"J\x00\x00\x00\x70")  # 1,000 as 1,879,048,192
    assert claimed != honest
    path.write_bytes(claimed)
    with pytest.raises(UserError, match=r"pytorch_model\.bin\b.*7516192768"):
        read_pickle(path)


def test_a_compressed_zip_and_one_whose_parts_overlap_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({}, 2))
        file.writestr("archive/data/0", bytes(50 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UserError, match=r"pytorch_model\.bin\b.*'archive/data\.pkl'"):
        read_pickle(path)
    path.write_bytes(bloated(zipped(pickle.dumps({}, 2), zero=bytes(4000))))
    with pytest.raises(UserError, match=r"pytorch_model\.bin\b.*\b4,026,531,854\b"):
        read_pickle(path)


def bloated(data: bytes) -> bytes:
    """The same zip, whose directory says that a part has four thousand million bytes."""
    place = data.rindex(struct.pack("<II", 4000, 4000))
    return data[:place] + struct.pack("<II", 0xF0000000, 0xF0000000) + data[place + 8 :]


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80", b"\x80\x02", b"PK\x03\x04", b"PK\x03\x04" + bytes(100), b"hello", bytes(5000),
     zipped(b"")[:-30], zipped(b"\x80\x02"), legacy(b"\x80\x02]"), os.urandom(2000),
     b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f", b"(" * 100_000, b"\x80\x02" + b"]" * 100_000],
)  # fmt: skip
def test_a_file_that_is_not_a_pickle_is_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{path}\b"):
        read_pickle(path)


# Safetensors with a false header


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


LIES: dict[str, bytes] = {
    "no header": b"",
    "half a length": b"\x08\x00",
    "header beyond the file": safetensors({}, length=10**6),
    "header of 2^63 bytes": safetensors({}, length=2**63),
    "header of 2^64-1 bytes": safetensors({}, length=2**64 - 1),
    "header of 90 MB": safetensors({}, length=90 << 20),
    "header of 20 MB, nearly all blank": safetensors(b"{}".ljust(20 << 20)),
    "no JSON": safetensors(b"{hello"),
    "deep JSON": safetensors(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "a list": safetensors([]),
    "offsets beyond the file": safetensors({"w": tensor([4], 0, 16)}, bytes(8)),
    "offsets backwards": safetensors({"w": tensor([4], 16, 0)}, bytes(16)),
    "negative offsets": safetensors({"w": tensor([4], -16, 0)}, bytes(16)),
    "overlapping": safetensors({"a": tensor([4], 0, 16), "b": tensor([4], 8, 24)}, bytes(24)),
    "a gap": safetensors({"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, bytes(12)),
    "more data than tensors": safetensors({"a": tensor([1], 0, 4)}, bytes(4000)),
    "shape and size differ": safetensors({"w": tensor([5], 0, 16)}, bytes(16)),
    "shape overflows": safetensors({"w": tensor([2**62, 4], 0, 16)}, bytes(16)),
    "shape overflows to the size": safetensors({"w": tensor([2**62, 2**62, 4], 0, 0)}),
    "negative shape": safetensors({"w": tensor([-4], 0, 16)}, bytes(16)),
    "strange type": safetensors({"w": tensor([4], 0, 16, "X32")}, bytes(16)),
    "quantised type": safetensors({"w": tensor([4], 0, 4, "F8_E4M3")}, bytes(4)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_false_header_is_rejected(
    name: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.safetensors").write_bytes(LIES[name])
    assert "model.safetensors" in import_error(folder, tmp_path, capfd)


def test_a_header_with_another_shape_than_the_configuration_is_rejected(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tensor without numbers may have any shape, at no cost."""
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"] = torch.zeros(0, 10**9)
    save_file(tensors, folder / "model.safetensors")
    message = import_error(folder, tmp_path, capfd)
    assert re.search(r"front\.tokens\.weight\b.*\(0, 1000000000\)", message)


# Configurations


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 38},
        {"vocab_size": 10**12},
        {"hidden_size": -32},
        {"intermediate_size": "40"},
        {"layer_norm_eps": float("nan")},
        {"hidden_dropout_prob": float("inf")},
        {"max_position_embeddings": 10**7},
        {"model_type": 3},
        {"model_type": None},
        {"model_type": "../../evil"},
        {"model_type": "os:system"},
        {"architectures": [["BertModel"]]},
        {"quantization_config": {"load_in_8bit": True}},
        {"id2label": {"0": ["x"] * 3}, "architectures": ["BertForTokenClassification"]},
    ],
    ids=str,
)
def test_an_absurd_configuration_is_rejected(
    values: dict[str, Any], folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change(folder / "config.json", **values)
    import_error(folder, tmp_path, capfd)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"3", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"{", b"1" * 5000,
     b'{"model_type": "bert", "vocab_size": ' + b"9" * 5000 + b"}"],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_a_configuration_that_is_not_a_table_is_rejected(
    content: bytes, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_bytes(content)
    assert "config.json" in import_error(folder, tmp_path, capfd)


def test_a_json_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # it has holes, and takes no disk
    with pytest.raises(UserError, match=rf"{path}\b.*\b10,737,418,240\b"):
        read_json(path)


# Names of files


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/secret.safetensors", "deep/down.safetensors", "..", ".", "",
     "..\\secret.safetensors", "C:\\secret.safetensors", "nul\0l.safetensors", "~/x.safetensors",
     "file:///x.safetensors", "model.safetensors/", "link.safetensors", "other.bin",
     "absent.safetensors", "x" * 5000 + ".safetensors"],
    ids=lambda name: name[:24],
)  # fmt: skip
@pytest.mark.parametrize("honest", [False, True])
def test_an_index_cannot_name_files_outside_of_its_folder(
    name: str, honest: bool, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor files of another kind; also where the file there would do."""
    whole = folder / "model.safetensors"
    outside = tmp_path / "secret.safetensors"
    whole.rename(outside)
    (folder / "link.safetensors").symlink_to(outside)
    names = list(load_file(outside))
    table = dict.fromkeys(names, name) if honest else {"w": name}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    import_error(folder, tmp_path, capfd)


@pytest.mark.parametrize(
    "index", [{}, [], {"weight_map": []}, {"weight_map": {"w": 3}},
              {"weight_map": {f"w{i}": f"{i}.safetensors" for i in range(2000)}}], ids=range(5)
)  # fmt: skip
def test_an_invalid_index_is_rejected(
    index: Any, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    import_error(folder, tmp_path, capfd)


def test_an_honest_index_is_read_and_must_be_right(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    table = {name: file for file, part in parts.items() for name in part}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": table}))
    weights = open_weights(folder)
    assert all(torch.equal(weights[name], tensors[name]) for name in names)
    other, strange = {names[0]: "b.safetensors"}, {"more": "a.safetensors"}
    for wrong, pattern in (
        (other, rf"a\.safetensors\b.*{re.escape(names[0])}.*{index.name}\b.*'b\.safetensors'"),
        (strange, rf"{index}\b.*\bmore\b"),
        ({"more": "c.bin"}, rf"{index}\b.*'c\.bin'.*(?<!\w)\.safetensors\b"),
    ):
        index.write_text(json.dumps({"weight_map": table | wrong}))
        with pytest.raises(UserError, match=pattern):
            open_weights(folder)


def test_links_lead_out_of_a_folder_only_in_the_store_of_the_hub(tmp_path: Path) -> None:
    store = tmp_path / "models--a--b"
    (store / "blobs").mkdir(parents=True)
    (store / "blobs" / "1234").write_text("{}")
    snapshot = store / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/1234")
    assert inside(snapshot, "config.json").read_text() == "{}"
    (tmp_path / "secret").write_text("{}")
    (snapshot / "vocab.txt").symlink_to("../../../secret")
    with pytest.raises(UserError, match=rf"{snapshot}/vocab\.txt\b"):
        inside(snapshot, "vocab.txt")


def test_the_tokenizer_of_a_folder_cannot_be_a_link_to_a_secret(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The originals are copied into the run folder; nothing else may come with them."""
    (folder / "vocab.txt").rename(tmp_path / "secret")
    (folder / "vocab.txt").symlink_to(tmp_path / "secret")
    assert str(folder / "vocab.txt") in import_error(folder, tmp_path, capfd)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("modules", [
    [], {}, [3], [{"type": "x"}],
    [{"type": "a.Transformer", "path": "../.."}, {"type": "a.Pooling", "path": "/etc"}],
    [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../1_Pooling"}],
    [{"type": "os.system", "path": ""}],
], ids=range(7))  # fmt: skip
def test_invalid_modules_are_rejected(
    modules: Any, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    import_error(folder, tmp_path, capfd)


# Files of llama2.c


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(27),
        bytes(28),
        struct.pack("<7i", *[2**31 - 1] * 7),
        struct.pack("<7i", 64, 172, 10**9, 8, 4, 512, 512),
        struct.pack("<7i", 64, 172, 5, 8, 4, -(2**31), 512),
        struct.pack("<7i", 64, 172, 5, 8, 4, 512, 2**31 - 1),
        struct.pack("<7i", -64, 172, 5, 8, 4, 512, 512),
        struct.pack("<7i", 64, 172, 5, 8, 4, 512, 512) + bytes(1000),
        struct.pack("<7i", 64, 172, 5, 7, 4, 512, 512),
        struct.pack("<Ii", 0x616B3432, 1),
        struct.pack("<Ii7i", 0x616B3432, 1, *[2**31 - 1] * 7) + bytes(220),
        struct.pack("<Ii7i", 0x616B3432, 2, 64, 172, 5, 8, 4, 512, 512) + bytes(220),
        pickle.dumps({"a": 1}),
        zipped(b""),
    ],
    ids=range(15),
)
def test_a_false_llama2c_file_is_rejected(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    tokenizer_file(tmp_path / "tok512.bin", 512)
    import_error(path, tmp_path, capfd)


def test_the_library_raises_the_same_errors(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(28))
    with pytest.raises(UserError):
        import_run(str(tmp_path / "model.bin"), tmp_path / "out")
    assert sys.getrecursionlimit() < 10_000
