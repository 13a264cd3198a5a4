"""API keys of clients. Only their hashes are stored, and they are compared in constant time."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from headway.errors import UserError
from headway.storage import replace_text

LINE = re.compile(r"(?P<name>[\w.@-]{1,64}) sha256:(?P<hash>[0-9a-f]{64})")

HEAD = "# Keys of `headway serve`: a name and the SHA-256 of its key in each line.\n"


class Keys:
    """Names and hashes of API keys. A key has 256 random bits, so an unsalted hash is safe."""

    def __init__(self, hashes: Iterable[tuple[str, bytes]]) -> None:
        self._hashes = tuple(hashes)
        if not self._hashes:
            raise UserError(
                "there are no API keys, so every request would be rejected. Create a key with "
                "`headway serve --new-key NAME`."
            )

    @classmethod
    def of(cls, *keys: str) -> Keys:
        """Create the object from unhashed keys, such as `Keys.of("secret")`. Used in tests."""
        return cls((f"key-{n}", _hash(key)) for n, key in enumerate(keys, 1))

    @classmethod
    def read(cls, path: str | Path) -> Keys:
        """Read a key file that `headway serve --new-key` wrote."""
        return cls(_lines(Path(path)))

    def name_of(self, key: str) -> str | None:
        """Return the name of a key, or None if the key is unknown. The key is compared with all
        hashes, each in constant time."""
        given, found = _hash(key), None
        for name, one in self._hashes:
            if secrets.compare_digest(given, one):
                found = name
        return found


def new_key(path: str | Path, name: str) -> str:
    """Return a new key and append its hash to the file. The key itself is not stored."""
    path = Path(path)
    key = f"hw-{secrets.token_urlsafe(32)}"
    if not LINE.fullmatch(f"{name} sha256:{'0' * 64}"):
        raise UserError(
            f"{name!r} is not a valid key name. Use 1 to 64 characters: letters, digits and . @ - _"
        )
    known = _lines(path) if path.exists() else []
    if name in {one for one, _ in known}:
        raise UserError(f"{path} already has a key {name!r}. Remove its line or use another name.")
    before = path.read_text(encoding="utf-8") if path.exists() else HEAD
    before += "" if before.endswith("\n") or not before else "\n"
    try:
        replace_text(path, f"{before}{name} sha256:{_hash(key).hex()}\n")
        path.chmod(0o600)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from error
    return key


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _lines(path: Path) -> list[tuple[str, bytes]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot read the keys in {path}: {reason}. To create the file, run `headway serve "
            f"--key-file {path} --new-key NAME`."
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise UserError(
                f"{path}, line {number}: not a valid key entry. Each line must have the form NAME "
                "sha256:HASH, as written by `headway serve --new-key NAME`."
            )
        found.append((match["name"], bytes.fromhex(match["hash"])))
    return found
