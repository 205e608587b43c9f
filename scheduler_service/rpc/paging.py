"""Page tokens and page sizes: what a list call and its next page share.

A token says where the page before ended, and in which list; it is opaque to callers and holds no
state of the service, so it never expires.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from scheduler_service.app.limits import PAGE_DEFAULT, PAGE_MAX
from scheduler_service.rpc.validate import Checks

_SEPARATOR = "\n"
"""No id holds a control character, so this one parts the list from the place in it."""


def page_size(value: int, checks: Checks) -> int:
    """Checks a page size and returns it; 0 is the default."""
    return checks.count("page_size", value, PAGE_MAX, PAGE_DEFAULT)


NUMBER_DIGITS_MAX = 19
"""Digits of the largest sequence."""


def token_of(listed: str, place: str) -> str:
    """Returns the token of the page behind `place` in the list called `listed`."""
    return urlsafe_b64encode(f"{listed}{_SEPARATOR}{place}".encode()).decode()


def place_of(token: str, listed: str, checks: Checks) -> str:
    """Checks a page token and returns the place it stands for; empty is the beginning."""
    if not token:
        return ""
    try:
        name, _, place = urlsafe_b64decode(token.encode()).decode().partition(_SEPARATOR)
    except (Base64Error, UnicodeError, ValueError):
        name = place = ""
    if name != listed or not place:
        checks.bad("page_token", "is not one that this list gave")
    return place


def number_of(token: str, listed: str, checks: Checks) -> int:
    """Checks a page token of a numbered list and returns its number; 0 is the beginning."""
    place = place_of(token, listed, checks)
    if place.isascii() and place.isdecimal() and len(place) <= NUMBER_DIGITS_MAX:
        return int(place)
    if place:
        checks.bad("page_token", "is not one that this list gave")
    return 0
