"""Who calls: tokens, certificates, the credentials file and its changes."""

import os
from pathlib import Path

import pytest

from scheduler_service.core.errors import Denied, Unauthenticated
from scheduler_service.rpc.identity import EVERYBODY, ROLES_BY_RPC, Identity, Role
from scheduler_service.rpc.security import (
    Access,
    CredentialsError,
    digest_of,
    new_token,
    parse,
)
from scheduler_service.rpc.user_ids import UserIdMode, UserIds

TOKEN, DIGEST = new_token()


class Call:
    """A call with this metadata and these names on its certificate."""

    def __init__(self, authorization=None, common_name=(), names=()):
        self._metadata = [("user-agent", "test")]
        if authorization is not None:
            self._metadata.append(("authorization", authorization))
        self._context = {
            "x509_common_name": list(common_name),
            "x509_subject_alternative_name": list(names),
        }

    def invocation_metadata(self):
        return self._metadata

    def auth_context(self):
        return self._context


def _entry(digest: str = DIGEST, name: str = "gate", roles: str = '["gateway"]', more: str = ""):
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nroles = {roles}\n{more}\n'


class Events:
    """Collects what is reported."""

    def __init__(self):
        self.seen = []

    def __call__(self, event, /, **values):
        self.seen.append(event)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "credentials.toml"
    path.write_text(_entry() + '[[certificate]]\ncommon_name = "w7"\nroles = ["worker"]\n')
    return path


def test_a_token_is_long_and_kept_as_a_digest():
    """A token has 256 random bits; only its digest stands in the file."""
    other, _ = new_token()

    assert other != TOKEN
    assert len(TOKEN) >= 43
    assert digest_of(TOKEN) == DIGEST
    assert TOKEN not in _entry()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_known_token(file, scheme):
    """The right token names its caller."""
    access = Access(file, Events())

    assert access.caller(Call(f"{scheme} {TOKEN}"), "Enqueue").name == "gate"


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (None, "TOKEN_MISSING"),
        ("Bearer", "TOKEN_UNKNOWN"),
        ("Bearer ", "TOKEN_UNKNOWN"),
        ("Basic eDp5", "TOKEN_UNKNOWN"),
        (f"Bearer {TOKEN}x", "TOKEN_UNKNOWN"),
        (f"Bearer {TOKEN[:-1]}", "TOKEN_UNKNOWN"),
        (f"Bearer {DIGEST}", "TOKEN_UNKNOWN"),
        (b"Bearer \xff\xfe", "TOKEN_UNKNOWN"),
    ],
    ids=["none", "empty", "blank", "basic", "longer", "shorter", "digest", "bytes"],
)
def test_nobody_else_gets_in(file, authorization, reason):
    """Without the right token a call is refused, and the digest is no token."""
    access = Access(file, Events())

    with pytest.raises(Unauthenticated) as caught:
        access.caller(Call(authorization), "Enqueue")
    assert caught.value.reason == reason
    assert TOKEN[:-1] not in str(caught.value)


def test_certificates(file):
    """A client certificate names its caller by common name or DNS name; a token wins over it."""
    access = Access(file, Events())

    assert access.caller(Call(None, [b"w7"]), "NextDispatch").name == "w7"
    assert access.caller(Call(None, [b"x"], [b"y", b"w7"]), "NextDispatch").name == "w7"
    assert access.caller(Call(f"Bearer {TOKEN}", [b"w7"]), "Enqueue").name == "gate"
    with pytest.raises(Unauthenticated):
        access.caller(Call(None, [b"w8"]), "NextDispatch")


def test_without_a_file_everybody_is_let_in():
    """Without credentials nobody is asked; the caller has no name."""
    access = Access(None, Events())

    assert access.open
    assert access.caller(Call(), "ForgetUser") is EVERYBODY
    assert EVERYBODY.name == ""


@pytest.mark.parametrize("role", list(Role))
def test_role_matrix(role):
    """A caller may call exactly what the table grants its role."""
    identity = Identity("x", frozenset({role}))
    for rpc, allowed in ROLES_BY_RPC.items():
        if role in allowed:
            identity.require_role(rpc)
        else:
            with pytest.raises(Denied) as caught:
                identity.require_role(rpc)
            assert caught.value.reason == "ROLE_MISSING"


def test_limits_of_a_caller():
    """A confined caller names only its pools, users and endpoints."""
    caller = Identity(
        "x", frozenset({Role.GATEWAY}), frozenset({"chat"}), ("acme/",), ("http://10.",)
    )
    caller.require_pool("chat")
    caller.require_user("acme/alice")
    caller.require_endpoint("http://10.0.0.7:8000")
    caller.require_endpoint("")
    for check, value, reason in (
        (caller.require_pool, "code", "POOL_DENIED"),
        (caller.require_user, "acm", "USER_DENIED"),
        (caller.require_user, "other/acme/", "USER_DENIED"),
        (caller.require_endpoint, "http://11.0.0.7", "ENDPOINT_DENIED"),
    ):
        with pytest.raises(Denied) as caught:
            check(value)
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[token]", "not TOML"),
        ("[tokens]\n", "unknown tables: tokens"),
        (_entry(digest="abc"), "64 hexadecimal digits"),
        (_entry(digest=DIGEST.upper()), "64 hexadecimal digits"),
        (_entry(name=""), "every token needs a name"),
        (_entry(roles="[]"), "has no role"),
        (_entry(roles='["root"]'), "roles are gateway, worker, auditor, admin"),
        (_entry(more="pool = ['x']"), "unknown keys: pool"),
        (_entry(more="pools = 'x'"), "pools must be a list"),
        (_entry(more="user_prefixes = ['']"), "user_prefixes must be a list"),
        (_entry() + _entry(), "is there twice"),
        (_entry() + _entry(digest="0" * 64), "is there twice"),
        ("[[certificate]]\nroles = ['worker']\n", "needs a common_name"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, problem):
    """A file that is not understood is refused whole, with the reason."""
    with pytest.raises(CredentialsError, match=problem):
        parse(text)
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(CredentialsError):
        Access(path, Events())


def _touch(path: Path, text: str) -> None:
    path.write_text(text)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_a_changed_file_is_followed_and_a_bad_one_is_not(file):
    """A changed file is in force at once; a bad one leaves the old one, and is told of once."""
    events = Events()
    access = Access(file, events)
    other, digest = new_token()

    assert not access.reload()
    _touch(file, _entry(digest, "other"))
    assert access.reload()
    with pytest.raises(Unauthenticated):
        access.caller(Call(f"Bearer {TOKEN}"), "Enqueue")
    assert access.caller(Call(f"Bearer {other}"), "Enqueue").name == "other"

    _touch(file, "junk")
    assert not access.reload()
    assert not access.reload()
    file.unlink()
    assert not access.reload()
    assert access.caller(Call(f"Bearer {other}"), "Enqueue").name == "other"
    assert events.seen[:4] == [
        "credentials.read",
        "credentials.read",
        "credentials.refused",
        "credentials.refused",
    ]


# -- user ids -----------------------------------------------------------------------------------

KEY = b"k" * 32


def test_plain_ids_stay():
    """By default ids are as callers state them."""
    assert UserIds().inside("acme/Ünï") == "acme/Ünï"


def test_pseudonyms():
    """With a key an id becomes the same pseudonym each time, with another key another one."""
    ids, others = UserIds(UserIdMode.HMAC, KEY), UserIds(UserIdMode.HMAC, b"x" * 32)

    assert ids.inside("alice") == ids.inside("alice")
    assert ids.inside("alice") != others.inside("alice")
    assert len({ids.inside(f"user{number}") for number in range(1000)}) == 1000
    assert "alice" not in ids.inside("alice")
    assert len(ids.inside("x" * 256)) == 26
    with pytest.raises(ValueError, match="at least 16 bytes"):
        UserIds(UserIdMode.HMAC, b"short")


def test_confined_callers_stay_confined_behind_pseudonyms():
    """Whoever is confined to "acme/" sees the pseudonyms of acme's users and of nobody else."""
    ids = UserIds(UserIdMode.HMAC, KEY)
    caller = Identity("x", frozenset({Role.GATEWAY}), user_prefixes=("acme/",))

    assert ids.sees(caller, ids.inside("acme/alice"))
    assert ids.sees(caller, ids.inside("acme/a/b"))
    for other in ("acm/alice", "acme", "bob", "other/acme/alice"):
        assert not ids.sees(caller, ids.inside(other))
    assert ids.sees(EVERYBODY, ids.inside("bob"))


@pytest.mark.parametrize("prefix", ["acme", "acme/team/", "a/b"])
def test_prefixes_must_survive_pseudonyms(prefix):
    """A prefix that pseudonyms cannot keep apart is refused when the credentials are read."""
    ids = UserIds(UserIdMode.HMAC, KEY)
    credentials = parse(_entry(more=f"user_prefixes = ['{prefix}']"))

    with pytest.raises(CredentialsError, match="must end at its first /"):
        ids.check(credentials)
    UserIds().check(credentials)
