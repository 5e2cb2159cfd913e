"""Signatures of plans: Ed25519, by the package ``cryptography``.

``signature.json`` lies beside the files that it signs: those whose digests name all the rest of a
folder (its manifest, the digests of its weights). A key is trusted where the user lists it, a line
for each, in ``~/.config/irc/trusted-keys`` or the file that ``IRC_TRUSTED_KEYS`` names::

    ed25519:6b1f...e0 the build machine
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.files import SIGNATURE, read_file
from irc.plan.version import check_format

FORMAT = 1
KEYS_VARIABLE = "IRC_TRUSTED_KEYS"
ROOTS = ("manifest.json", "host.json", "parts.json", "entries.json", "weights.json",
         "weights.digests.json")  # fmt: skip
"""The files of a folder that a signature covers, as far as the folder has them."""
PREFIX = "ed25519:"
KEY = re.compile(rf"{PREFIX}([0-9a-f]{{64}})(?:\s.*)?")
MAX_SIGNATURE_BYTES = 1 << 20


@dataclass(frozen=True)
class Signature:
    """The content of signature.json.

    Attributes:
        files: SHA-256 of each file that is signed, by name.
        key: the public key, 64 hexadecimal digits.
        signature: of :func:`_message`, 128 hexadecimal digits.
    """

    files: Mapping[str, str]
    key: str
    signature: str


def new_key(path: Path) -> str:
    """Write a new private key into a new file and return its public key, as a list has it.

    Raises:
        IrcError: ``package-missing``; ``key-invalid`` where the file cannot be written.
    """
    ed25519, serialization = _cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    text: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
    except OSError as error:
        raise IrcError(
            "key-invalid",
            f"cannot write a key to '{path}': {error.strerror}",
            help="name a file that does not exist yet; a key is never overwritten",
        ) from None
    return PREFIX + _public(key)


def sign(folder: Path, key: Any) -> tuple[str, int]:
    """Sign a folder and those within it; a signature that is there is replaced.

    Args:
        folder: of a plan, of one of several programs, of a host program, or of several plans.
        key: what :func:`signing_key` gave.

    Returns:
        The public key, as a list has it, and how many folders were signed.

    Raises:
        IrcError: ``plan-missing`` where nothing is a plan.
    """
    places = sorted(path for path in (folder, *folder.rglob("*")) if path.is_dir())
    signed = 0
    for place in places:
        files = {name: _digest(place, name) for name in ROOTS if (place / name).is_file()}
        if not files:
            continue
        signature = Signature(files, _public(key), key.sign(_message(files)).hex())
        text = json_text.dump({"format": FORMAT, **json_text.encode(signature)})
        part = place / f".{SIGNATURE}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(place / SIGNATURE)
        signed += 1
    if not signed:
        raise IrcError("plan-missing", f"no plan in '{folder}'", help="name the folder of a plan")
    return PREFIX + _public(key), signed


def is_signed(folder: Path, name: str, digest: str) -> bool:
    """True where a key that the user trusts has signed this content of a file.

    Args:
        folder: where signature.json lies.
        name: of the file.
        digest: SHA-256 of its content.

    Raises:
        IrcError: ``package-missing`` where there is a signature to be checked; ``key-invalid`` for
            a list of keys that cannot be used; ``signature-invalid`` where a trusted key did not
            sign this.
    """
    if not (folder / SIGNATURE).is_file() or not (trusted := trusted_keys()):
        return False
    signature = read_signature(folder)
    if signature.key not in trusted:
        return False
    ed25519, _ = _cryptography()
    where = str(folder / SIGNATURE)
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key))
        key.verify(bytes.fromhex(signature.signature), _message(signature.files))
    except Exception as error:  # the package's own, which nothing here can name
        if type(error).__name__ != "InvalidSignature" and not isinstance(error, ValueError):
            raise
        raise _invalid(f"it is no signature of key {PREFIX}{signature.key[:16]}", where) from None
    if signature.files.get(name) != digest:
        raise _invalid(f"it is of another {name} than the one beside it", where)
    return True


def read_signature(folder: Path) -> Signature:
    """Read signature.json.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    where = str(folder / SIGNATURE)
    data = json_text.parse_object(read_file(folder, SIGNATURE, MAX_SIGNATURE_BYTES), where)
    check_format(data.pop("format", None), where, FORMAT, "the signature")
    return json_text.decode(Signature, data, where)


def keys_file() -> Path | None:
    """Return the list of trusted keys; None where there can be none."""
    if named := os.environ.get(KEYS_VARIABLE):
        return Path(named)
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        return None
    return home / "irc" / "trusted-keys"


def trusted_keys() -> frozenset[str]:
    """Return the public keys that the user trusts, as hexadecimal digits.

    Raises:
        IrcError: ``key-invalid``: the list is not the user's own, or has a line that is no key.
    """
    path = keys_file()
    if path is None or not path.is_file():
        if path is not None and os.environ.get(KEYS_VARIABLE):
            raise IrcError("key-invalid", f"{KEYS_VARIABLE} names no file: '{path}'")
        return frozenset()
    status = path.stat()
    foreign = hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid())
    if foreign or status.st_mode & 0o022:
        raise IrcError(
            "key-invalid",
            f"others can write the list of trusted keys '{path}'",
            because=f"user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}",
            help=f"chmod 600 '{path}'",
        )
    keys: set[str] = set()
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not (text := line.strip()) or text.startswith("#"):
            continue
        if not (match := KEY.fullmatch(text)):
            raise IrcError(
                "key-invalid",
                f"'{text[:80]}' is no public key",
                where=f"{path}:{number}",
                help=f"a line is {PREFIX} and 64 hexadecimal digits, as irc sign prints them",
            )
        keys.add(match[1])
    return frozenset(keys)


def _message(files: Mapping[str, str]) -> bytes:
    return b"irc signature\n" + json_text.dump([FORMAT, sorted(files.items())]).encode()


def _digest(folder: Path, name: str) -> str:
    return hashlib.sha256(read_file(folder, name)).hexdigest()


def signing_key(path: Path) -> Any:
    """Read an Ed25519 private key, PEM.

    Raises:
        IrcError: ``package-missing``, ``key-invalid``.
    """
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise IrcError("key-invalid", f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise IrcError(
            "key-invalid",
            f"'{path}' holds no private key that can be read: {error}",
            help="irc sign --new-key FILE writes one; a key with a password is not read",
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise IrcError("key-invalid", f"'{path}' holds a key of another kind than Ed25519")
    return key


def _public(key: Any) -> str:
    return key.public_key().public_bytes_raw().hex()


def _invalid(message: str, where: str) -> IrcError:
    return IrcError(
        "signature-invalid", message, where=where, help="fetch the plan again, or sign it again"
    )


def _cryptography() -> tuple[Any, Any]:
    try:
        return (
            import_module("cryptography.hazmat.primitives.asymmetric.ed25519"),
            import_module("cryptography.hazmat.primitives.serialization"),
        )
    except ImportError:
        raise IrcError(
            "package-missing",
            "signatures need the package cryptography",
            help="pip install 'irc-compiler[sign]'",
        ) from None
