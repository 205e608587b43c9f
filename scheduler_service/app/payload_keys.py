"""Which requests carry a payload or metadata, and when that is kept and dropped.

A payload is kept under the sequence of its acceptance, in the group of the acceptance, and dropped
in the group of what ends the request.  A dead letter keeps it, since it may be queued again.
"""

from collections.abc import Iterable
from typing import Any, Final

from scheduler_service.app.commit import GroupCommitter
from scheduler_service.app.ports import Payload
from scheduler_service.core import decisions as d

_ACCEPTED: Final = d.Accepted
_ENDS_A_REQUEST: Final = frozenset({d.Completed, d.Ended, d.DeadLetterDropped})


class PayloadKeys:
    """Follows decisions with what becomes of payloads.

    Args:
        log: Where payloads are kept.
        keys: What is kept already.

    Attributes:
        new_bytes: Bytes of payloads that were noted and not kept yet.
    """

    def __init__(self, log: GroupCommitter, keys: Iterable[int]) -> None:
        self._log = log
        self._keys = set(keys)
        self._new: dict[int, Payload] = {}
        self.new_bytes: int = 0

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def note(self, before: int, decisions: list[d.Decision], payload: Payload) -> None:
        """Notes the payload of the acceptance among these decisions, if one is; `follow` keeps it.

        Args:
            before: Sequence before the first of them.
            decisions: What one command decided.
            payload: What came with it.
        """
        for sequence, decision in enumerate(decisions, before + 1):
            if type(decision) is _ACCEPTED:
                self._new[sequence] = payload
                self.new_bytes += len(payload.payload)

    def follow(self, before: int, decisions: list[d.Decision]) -> None:
        """Keeps and drops payloads with the group that these decisions have just joined."""
        if not (self._new or self._keys):
            return
        decision: Any
        for sequence, decision in enumerate(decisions, before + 1):
            kind = type(decision)  # `isinstance` takes long for records
            if kind is _ACCEPTED:
                payload = self._new.pop(sequence, None)
                if payload is not None:
                    self.new_bytes -= len(payload.payload)
                    self._log.put_payload(sequence, payload)
                    self._keys.add(sequence)
            elif kind in _ENDS_A_REQUEST:
                self._drop(decision)

    def _drop(self, decision: d.Completed | d.Ended | d.DeadLetterDropped) -> None:
        if type(decision) is d.Ended and decision.state is d.RequestState.DEAD_LETTERED:
            return
        key = decision.request_sequence
        if key in self._keys:
            self._keys.remove(key)
            self._log.delete_payload(key)
