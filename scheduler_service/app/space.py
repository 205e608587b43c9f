"""The reserve of disk space: below it nothing new is accepted, while running work goes on.

A request that waits or runs still needs records to end, and a log that cannot be written ends the
service; so new requests are refused while there is room for all of that.
"""

from scheduler_service.app.ports import Reporter

RECOVER_PERCENT = 125
"""Space counts as enough again at this part of the reserve, so that the answer does not flicker."""


class SpaceReserve:
    """Whether there is too little space.

    Args:
        reserve_bytes: Space to keep; 0 never refuses.
        report: Told when the answer changes.

    Attributes:
        low: Whether there is too little space now.
    """

    __slots__ = ("_report", "low", "reserve_bytes")

    def __init__(self, reserve_bytes: int, report: Reporter) -> None:
        assert reserve_bytes >= 0
        self.low = False
        self.reserve_bytes = reserve_bytes
        self._report = report

    def update(self, free_bytes: int) -> bool:
        """Takes the free space of now, -1 if there is no limit; returns whether it is too little.

        To be called about once a second with `Store.usage().free_bytes`.
        """
        wanted = self.reserve_bytes
        if self.low:
            wanted = wanted * RECOVER_PERCENT // 100
        low = 0 <= free_bytes < wanted
        if low is not self.low:
            self.low = low
            event = "log.space_low" if low else "log.space_recovered"
            self._report(event, free_bytes=free_bytes, reserve_bytes=self.reserve_bytes)
        return low
