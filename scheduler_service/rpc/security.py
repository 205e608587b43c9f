"""Finds out who calls: bearer tokens and client certificates, from one file.

The file is TOML; it holds digests, never tokens:

    [[token]]
    name = "gateway-1"                  # kept with every decision it causes
    sha256 = "9f86d081…"                # of the token; `fairsched token new` makes both
    roles = ["gateway"]                 # gateway, worker, auditor, admin
    pools = ["chat"]                    # optional limits, see `identity.Identity`
    user_prefixes = ["acme/"]
    endpoints = ["http://10.0."]
    states_cost = false

    [[certificate]]                     # with mutual TLS
    common_name = "worker-7"            # or a DNS name of the certificate's
    roles = ["worker"]

Tokens are 256 random bits, so one round of SHA-256 is enough: there is nothing to guess.  A call's
token is hashed before it is looked up by a part of the digest, and the rest is compared in constant
time: timing tells nothing that helps to find a token.  The file is read again when it changes; a
bad file is refused whole and the one before stays in force.
"""

import asyncio
import hmac
import secrets
import tomllib
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from scheduler_service.app.ports import Reporter
from scheduler_service.core.errors import Unauthenticated
from scheduler_service.rpc.identity import EVERYBODY, Identity, Role

TOKEN_PREFIX = "fst_"  # noqa: S105 - lets secret scanners find a leaked token; is not one
TOKEN_BYTES = 32
FOLLOW_SECONDS = 5.0
"""How often the file is looked at."""

_START_HEX = 16
_ENTRY_KEYS = {"name", "roles", "pools", "user_prefixes", "endpoints", "states_cost"}


class CredentialsError(ValueError):
    """The credentials file is not one this version understands."""


class Call(Protocol):
    """What is read of a gRPC call."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Returns the metadata of the call."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Returns what the transport knows of the caller."""


def new_token() -> tuple[str, str]:
    """Returns a fresh token, to be shown once, and its digest for the credentials file."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, digest_of(token)


def digest_of(token: str) -> str:
    """Returns the digest of a token, as the credentials file keeps it."""
    return sha256(token.encode()).hexdigest()


class Credentials:
    """The callers that a credentials file names.

    Args:
        by_digest: Digest of its token -> caller.
        by_subject: Name on its certificate -> caller.

    Attributes:
        identities: Every caller it names.
    """

    def __init__(self, by_digest: dict[str, Identity], by_subject: dict[str, Identity]) -> None:
        self._by_start: dict[str, list[tuple[str, Identity]]] = {}
        for digest, identity in by_digest.items():
            start, rest = digest[:_START_HEX], digest[_START_HEX:]
            self._by_start.setdefault(start, []).append((rest, identity))
        self._by_subject = by_subject
        self.identities = (*by_digest.values(), *by_subject.values())

    def by_token(self, token: str) -> Identity | None:
        """Returns the caller with this token."""
        digest = digest_of(token)
        found = None
        for rest, identity in self._by_start.get(digest[:_START_HEX], ()):
            if hmac.compare_digest(rest, digest[_START_HEX:]):
                found = identity
        return found

    def by_certificate(self, names: Iterable[str]) -> Identity | None:
        """Returns the caller whose certificate carries one of these names."""
        return next((self._by_subject[name] for name in names if name in self._by_subject), None)


def parse(text: str) -> Credentials:
    """Returns the credentials that a file's text states.

    Raises:
        CredentialsError: Not TOML, an unknown key or role, a bad digest, or a name twice.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"not TOML: {error}"
        raise CredentialsError(message) from error
    unknown = set(document) - {"token", "certificate"}
    if unknown:
        message = f"unknown tables: {', '.join(sorted(unknown))}"
        raise CredentialsError(message)
    by_digest: dict[str, Identity] = {}
    by_subject: dict[str, Identity] = {}
    for entry in _entries(document, "token"):
        digest = entry.get("sha256", "")
        if len(digest) != sha256().digest_size * 2 or set(digest) - set("0123456789abcdef"):
            message = f"token {entry.get('name')!r}: sha256 must be 64 hexadecimal digits"
            raise CredentialsError(message)
        _keep(by_digest, digest, _identity(entry, "sha256", entry.get("name", "")))
    for entry in _entries(document, "certificate"):
        subject = entry.get("common_name", "")
        if not subject:
            message = "a certificate needs a common_name"
            raise CredentialsError(message)
        _keep(by_subject, subject, _identity(entry, "common_name", entry.get("name", subject)))
    return Credentials(by_digest, by_subject)


def _entries(document: dict[str, Any], table: str) -> list[dict[str, Any]]:
    """Returns the entries of a table; every single value of theirs is a text, or a list, or a flag.

    Raises:
        CredentialsError: The table is no list of tables, or a value is of another kind.
    """
    entries = document.get(table, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        message = f"{table} must be written as [[{table}]]"
        raise CredentialsError(message)
    for entry in entries:
        for key in ("name", "sha256", "common_name"):
            if not isinstance(entry.get(key, ""), str):
                message = f"{table}: {key} must be a text"
                raise CredentialsError(message)
        if not isinstance(entry.get("roles", []), list):
            message = f"{table}: roles must be a list"
            raise CredentialsError(message)
    return entries


def _keep(table: dict[str, Identity], key: str, identity: Identity) -> None:
    if key in table or any(identity.name == other.name for other in table.values()):
        message = f"{identity.name!r} is there twice"
        raise CredentialsError(message)
    table[key] = identity


def _identity(entry: dict[str, Any], key: str, name: str) -> Identity:
    unknown = set(entry) - _ENTRY_KEYS - {key}
    if unknown:
        message = f"{name!r}: unknown keys: {', '.join(sorted(unknown))}"
        raise CredentialsError(message)
    if not name:
        message = "every token needs a name"
        raise CredentialsError(message)
    try:
        roles = frozenset(Role(role) for role in entry.get("roles", ()))
    except ValueError as error:
        message = f"{name!r}: {error}; roles are {', '.join(Role)}"
        raise CredentialsError(message) from error
    if not roles:
        message = f"{name!r} has no role"
        raise CredentialsError(message)
    lists = {}
    for field in ("pools", "user_prefixes", "endpoints"):
        values = entry.get(field, [])
        if not isinstance(values, list) or not all(isinstance(v, str) and v for v in values):
            message = f"{name!r}: {field} must be a list of texts that are not empty"
            raise CredentialsError(message)
        lists[field] = tuple(values)
    return Identity(
        name,
        roles,
        frozenset(lists["pools"]),
        lists["user_prefixes"],
        lists["endpoints"],
        entry.get("states_cost", False) is True,
    )


class Access:
    """The gatekeeper that every servicer asks first.

    Args:
        path: The credentials file; None lets everybody do everything.
        report: Receives `credentials.read` and `credentials.refused`.
        check: Called with new credentials before they are taken; raises `CredentialsError`.

    Raises:
        CredentialsError: The file is bad.
        OSError: The file cannot be read.
    """

    def __init__(
        self,
        path: Path | None,
        report: Reporter,
        check: Callable[[Credentials], None] | None = None,
    ) -> None:
        self._path = path
        self._report = report
        self._check = check
        self._credentials: Credentials | None = None
        self._stamp: tuple[int, int, int] | None = None
        if path is not None:
            self._read(path)

    @property
    def open(self) -> bool:
        """Whether nobody is asked who it is."""
        return self._credentials is None

    def caller(self, call: Call, rpc: str) -> Identity:
        """Returns who makes this call, once it is known that it may call `rpc`.

        Raises:
            Unauthenticated: TOKEN_MISSING, TOKEN_UNKNOWN.
            Denied: ROLE_MISSING.
        """
        credentials = self._credentials
        if credentials is None:
            return EVERYBODY
        identity = _identify(credentials, call)
        identity.require_role(rpc)
        return identity

    def reload(self) -> bool:
        """Reads the file again if it has changed; returns whether new credentials are in force."""
        if self._path is None:
            return False
        try:
            if self._stamp == _stamp(self._path):
                return False
            self._read(self._path)
        except (OSError, CredentialsError) as error:
            self._report("credentials.refused", file=str(self._path), error=str(error))
            return False
        return True

    async def follow(self) -> None:
        """Follows changes of the file until cancelled."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            self.reload()

    def _read(self, path: Path) -> None:
        stamp = _stamp(path)
        # A refused file is not read again before it changes once more.
        self._stamp = stamp
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            message = f"not UTF-8: {error}"
            raise CredentialsError(message) from error
        credentials = parse(text)
        if self._check is not None:
            self._check(credentials)
        self._credentials = credentials
        count = len(credentials.identities)
        self._report("credentials.read", file=str(path), callers=count)


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _identify(credentials: Credentials, call: Call) -> Identity:
    token = _bearer_token(call)
    if token is not None:
        identity = credentials.by_token(token)
        if identity is None:
            raise Unauthenticated("TOKEN_UNKNOWN", "The token is not known.")
        return identity
    identity = credentials.by_certificate(_certificate_names(call))
    if identity is None:
        raise Unauthenticated(
            "TOKEN_MISSING",
            "The call carries neither a bearer token nor a certificate that is known.",
        )
    return identity


def _bearer_token(call: Call) -> str | None:
    for key, value in call.invocation_metadata() or ():
        if key == "authorization":
            text = value if isinstance(value, str) else value.decode("utf-8", "replace")
            scheme, _, token = text.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return None


def _certificate_names(call: Call) -> Iterable[str]:
    context = call.auth_context()
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        for name in context.get(key, ()):
            yield name.decode("utf-8", "replace")
