"""An audit tail that resumes where it stopped, also after its own restart.

python clients/python/samples/audit_tail.py 127.0.0.1:50051 position.txt
"""

import pathlib
import sys

import fairsched
from fairsched import audit
from fairsched.v1 import decision_pb2


def main(target: str, position: pathlib.Path) -> None:
    after = int(position.read_text()) if position.exists() else 0
    with fairsched.Fairsched(target) as scheduler:
        for page in audit.watch_in_thread(scheduler.audit, after):
            for decision in page.decisions:
                kind = decision_pb2.DecisionKind.Name(decision.kind)
                print(decision.sequence, kind, decision.user_id, decision.request_id, flush=True)
            position.write_text(str(page.scanned_sequence))  # everything up to here is done


if __name__ == "__main__":
    try:
        main(sys.argv[1], pathlib.Path(sys.argv[2]))
    except KeyboardInterrupt:
        pass
    except fairsched.TrimmedError as error:
        sys.exit(f"the log no longer goes back that far: {error}")
