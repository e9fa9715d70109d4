"""Stop a message that kills the process each time, in PostgreSQL."""

from __future__ import annotations

from delivery.consumer import Guard
from delivery.postgres import Connection, transaction
from delivery.store import Schema
from delivery.strikes import Strikes, guarding

__all__ = ["SCHEMA", "limit_deaths"]

# By the recipient, too: several may share a database, and each has processes of its own.
SCHEMA = Schema(
    "strikes",
    1,
    """
CREATE TABLE strike (
    recipient text NOT NULL,
    message text NOT NULL,
    begun integer NOT NULL,
    PRIMARY KEY (recipient, message)
)
""",
)


def limit_deaths(recipient: str, limit: int = 3) -> Guard[Connection]:
    """Return the guard that strikes.limit_deaths returns, for *recipient*'s consumers.

    Of any number of them: whoever takes the message after a death knows of it.
    """
    name = "'" + recipient.replace("'", "''") + "'"
    strikes: Strikes[Connection] = Strikes(
        transaction,
        f"INSERT INTO strike VALUES ({name}, %s, 2) ON CONFLICT (recipient, message)"  # noqa: S608
        " DO UPDATE SET begun = strike.begun + %s RETURNING begun",
        f"DELETE FROM strike WHERE recipient = {name} AND message = %s",  # noqa: S608
    )
    return guarding(strikes, limit)
