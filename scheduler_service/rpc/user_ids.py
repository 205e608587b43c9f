"""User ids at the edge: as they are, or replaced by pseudonyms before anything sees them.

With `hmac` the core, the log, metrics and exports see only

    pseudonym = base32(HMAC-SHA-256(key, user_id))[:26]            130 bits

It is the same for the same id and key, so fairness is not touched, and it leads back to the id only
for who has the key and guesses the id.  Nothing that leads back is stored.  A changed key makes
every user a new one.

An id with a "/" keeps its first part apart, `P("acme/") / P("acme/alice")`, so that callers that
are confined to the prefix "acme/" stay confined: their prefixes must be such first parts.
"""

import enum
import hmac
from base64 import b32encode
from hashlib import sha256

from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.security import Credentials, CredentialsError

KEY_BYTES_MIN = 16
_LENGTH = 26


class UserIdMode(enum.StrEnum):
    """What becomes of a user id at the edge."""

    PLAIN = "plain"
    HMAC = "hmac"


class UserIds:
    """Turns the user ids of callers into those the core sees.

    Args:
        mode: Whether ids are replaced.
        key: With HMAC: at least 16 secret bytes.
    """

    def __init__(self, mode: UserIdMode = UserIdMode.PLAIN, key: bytes = b"") -> None:
        if mode is UserIdMode.HMAC and len(key) < KEY_BYTES_MIN:
            message = f"the key for user ids must have at least {KEY_BYTES_MIN} bytes"
            raise ValueError(message)
        self.mode = mode
        self._key = key

    def inside(self, user_id: str) -> str:
        """Returns what the core calls this user."""
        if self.mode is UserIdMode.PLAIN or not user_id:
            return user_id
        first, slash, _ = user_id.partition("/")
        if not slash:
            return self._pseudonym(user_id)
        return f"{self._pseudonym(first + slash)}/{self._pseudonym(user_id)}"

    def prefixes_of(self, caller: Identity) -> tuple[str, ...]:
        """Returns how the ids begin, in the core, of the users `caller` is confined to."""
        if self.mode is UserIdMode.PLAIN:
            return caller.user_prefixes
        return tuple(self._pseudonym(prefix) + "/" for prefix in caller.user_prefixes)

    def sees(self, caller: Identity, inside: str) -> bool:
        """Whether `caller` may look at what belongs to the user the core calls `inside`."""
        return not caller.user_prefixes or inside.startswith(self.prefixes_of(caller))

    def check(self, credentials: Credentials) -> None:
        """Checks that callers can be confined as their credentials say.

        Raises:
            CredentialsError: A prefix is not the first part of an id up to a "/".
        """
        if self.mode is UserIdMode.PLAIN:
            return
        for caller in credentials.identities:
            for prefix in caller.user_prefixes:
                if prefix.find("/") != len(prefix) - 1:
                    message = (
                        f"{caller.name!r}: with hmac, prefix {prefix!r} must end at its first /"
                    )
                    raise CredentialsError(message)

    def _pseudonym(self, text: str) -> str:
        code = hmac.new(self._key, text.encode(), sha256).digest()
        return b32encode(code).decode().lower()[:_LENGTH]
