"""What the environment says to the demo's containers: `DEMO_…` variables, each with a default."""

import re
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOAD = re.compile(r"(?P<user_id>[^\s:]+):(?P<clients>\d+)x(?P<prompt>\d+)\+(?P<output>\d+)")


class UserLoad(BaseModel):
    """What one user of the demo asks for.

    Attributes:
        user_id: The fairness entity.
        clients: Clients of this user; each has one request at a time.
        prompt_tokens: Mean length of a prompt, tokens.
        output_tokens: Mean length of an output, tokens; the cap is four times that.
    """

    user_id: str
    clients: int = Field(ge=1, le=10_000)
    prompt_tokens: int = Field(ge=1, le=1_000_000)
    output_tokens: int = Field(ge=1, le=1_000_000)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the load that `bulk:60x1500+500` writes: 60 clients, 1500 in, 500 out.

        Raises:
            ValueError: The text is something else.
        """
        match = LOAD.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not USER:CLIENTSxPROMPT+OUTPUT, as in bulk:60x1500+500")
        return cls(
            user_id=match["user_id"],
            clients=int(match["clients"]),
            prompt_tokens=int(match["prompt"]),
            output_tokens=int(match["output"]),
        )


class ContainerSettings(BaseSettings):
    """What worker and gateway share.

    Attributes:
        target: Where the scheduler is.
        pool: Pool they use; whoever comes first creates it if it is not there.
        alive_file: Touched while all is well; the container's health check looks at its age.
        report_seconds: Time between two lines of numbers.
    """

    model_config = SettingsConfigDict(env_prefix="DEMO_")

    target: str = "127.0.0.1:50051"
    pool: str = "default"
    alive_file: Path = Path("/tmp/alive")  # noqa: S108 - a tmpfs of the container's own
    report_seconds: float = Field(default=10.0, gt=0)


class WorkerSettings(ContainerSettings):
    """A worker.

    Attributes:
        worker_id: Its stable id.
        slots: Requests at once.
        tokens_per_second: Speed of one slot.
        lease_seconds: Length of its leases: how long a silent worker keeps a request.
        grace_seconds: How long a stopped worker lets its requests run.
    """

    worker_id: str = Field(default_factory=socket.gethostname)
    slots: int = Field(default=4, ge=1, le=1000)
    tokens_per_second: float = Field(default=2000.0, gt=0)
    lease_seconds: float = Field(default=5.0, ge=1)
    grace_seconds: float = Field(default=5.0, ge=0)


class GatewaySettings(ContainerSettings):
    """A gateway.

    Attributes:
        users: Who asks for what, as in `bulk:60x1500+500 chat:3x200+150`.
        think_seconds: Mean pause of a client between two requests.
        seed: Makes lengths and pauses repeatable.
    """

    users: Annotated[list[UserLoad], NoDecode] = [
        UserLoad.parse("bulk:60x1500+500"),
        UserLoad.parse("chat:3x200+150"),
        UserLoad.parse("agent:6x600+200"),
    ]
    think_seconds: float = Field(default=0.5, gt=0)
    seed: int = 7

    @field_validator("users", mode="before")
    @classmethod
    def _parse_users(cls, value: object) -> object:
        if isinstance(value, str):
            return [UserLoad.parse(part) for part in value.split()]
        return value
