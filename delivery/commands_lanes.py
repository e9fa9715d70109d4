"""The commands about what no queue wanted: declare, list, replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from delivery.command_group import CommandGroup
from delivery.errors import DeliveryError
from delivery.terminal import PARKINGS, Terminal, operator, show_json

if TYPE_CHECKING:
    from delivery.config import Config
    from delivery.management import Management
    from delivery.parking import Parking
    from delivery.unrouted import Unrouted

__all__ = ["register", "unrouted_app"]

unrouted_app = typer.Typer(
    cls=CommandGroup,
    help="Messages that no queue wanted: catch them, look, replay.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PATIENCE = 10.0  # seconds until a policy is seen on its exchange
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def register(app: typer.Typer) -> None:
    """Add the group ``unrouted`` to the command line, and its queue to what is looked at."""
    app.add_typer(unrouted_app, name="unrouted")
    PARKINGS[:] = [_parking]


def _parking(exchange: str, command: str) -> Parking:
    from delivery.unrouted import parking_of

    return parking_of(exchange, command)


@unrouted_app.command("declare")
def declare_command(context: typer.Context, as_json: Json = False) -> None:
    """Give the events exchange an alternate: from now on, what no queue wants is parked.

    By a policy, because an exchange that exists can't be declared with another argument. Its
    publishers get no return any more. The parking queue is of the kind that --queues says. Needs
    the management plugin, and a user who may declare and set a policy.

    Example: delivery unrouted declare
    """
    from delivery.connection import connect
    from delivery.lanes import parking_topology, unrouted_queue
    from delivery.topology import declare

    config: Config = context.obj.config(start_broker=True)
    management = config.need_management("the policy needs")
    name = unrouted_queue(config.exchange)
    with connect(config.named("operator")) as connection:
        declare(connection, config.topology())
        caught = _caught(management, config.exchange, name)
        declare(connection, config.shape(parking_topology(config.exchange)))
    if not caught:
        _catch(management, config.exchange, name)
    if as_json:
        show_json({"exchange": config.exchange, "parking": name})
    else:
        typer.echo(f"what no queue of {config.exchange} wants is kept in {name} from now on")


def _caught(management: Management, exchange: str, alternate: str) -> bool:
    """Say whether a policy names *alternate* already; DeliveryError if one says something else."""
    told, _ = management.get(f"/api/exchanges/{management.vhost}/{quote(exchange, safe='')}")
    policy = told.get("policy")
    if not policy:
        return False
    rule, _ = management.get(f"/api/policies/{management.vhost}/{quote(policy, safe='')}")
    if rule["definition"].get("alternate-exchange") == alternate:
        return True
    raise DeliveryError(
        f"{exchange} has the policy {policy!r}; only one holds:"
        f" add alternate-exchange = {alternate} there"
    )


def _catch(management: Management, exchange: str, alternate: str) -> None:
    import time

    management.put(
        f"/api/policies/{management.vhost}/{quote(alternate, safe='')}",
        {
            "pattern": f"^{exchange.replace('.', '[.]')}$",
            "definition": {"alternate-exchange": alternate},
            "apply-to": "exchanges",
        },
    )
    end = time.monotonic() + PATIENCE
    while not _caught(management, exchange, alternate):
        if time.monotonic() > end:
            raise DeliveryError(f"{exchange} does not follow the policy {alternate!r}")
        time.sleep(0.1)


@unrouted_app.command("list")
def list_command(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="End with 1 if there is any.")] = False,
    as_json: Json = False,
) -> None:
    """List what is parked, oldest first, and whether a queue wants it now. Nothing is changed.

    Example: delivery unrouted list --check
    """
    from delivery.connection import connect
    from delivery.unrouted import look

    config: Config = context.obj.config()
    with connect(config.named("operator")) as connection:
        found = look(connection, config.topology(), config.exchange)
    _show(found, as_json=as_json)
    raise typer.Exit(1 if check and found else 0)


@unrouted_app.command()
def replay(
    context: typer.Context,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the trail.")],
    ids: Annotated[list[str] | None, typer.Option("--id", help="May be repeated.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that a queue wants now.")] = False,
    as_json: Json = False,
) -> None:
    """Declare the topology, and publish again what it has a queue for; the rest stays parked.

    A user who may not declare sees only that all of it is there. If the bindings of several
    recipients are missing, stop the relay first: they come back one after the other.

    Example: delivery unrouted replay --all --reason "the queue is bound now"
    """
    from contextlib import closing

    from delivery.connection import connect
    from delivery.pipeline import ConfirmedChannel
    from delivery.unrouted import look, replay_unrouted

    if bool(ids) == every:
        raise DeliveryError("say which messages: --id KEY (may be repeated), or --all")
    terminal: Terminal = context.obj
    config, acts = terminal.config(), []
    about = {"operator": operator(), "reason": reason}
    topology, exchange = config.topology(), config.exchange
    with (
        connect(config.named("operator")) as connection,
        ConfirmedChannel(config.named("operator")) as publisher,
        closing(terminal.sides.publisher()) as store,
    ):

        def record(message: Unrouted) -> None:
            acts.extend(store.begin("replay", "unrouted", [(message.key, "unrouted")], **about))

        chosen = _chosen(look(connection, topology, exchange), ids, exchange)
        sent = replay_unrouted(connection, publisher, topology, exchange, chosen, record=record)
        store.conclude([(act, "sent") for act in acts])
    _show(sent, as_json=as_json)


def _chosen(found: list[Unrouted], ids: list[str] | None, exchange: str) -> set[str]:
    """Return the keys named by *ids*; without any, all. DeliveryError for what would not go."""
    if not ids:
        return {each.key for each in found}
    if strangers := sorted(set(ids) - {each.key for each in found}):
        raise DeliveryError(f"not parked in {exchange!r}: {', '.join(strangers)}")
    if stay := sorted(set(ids) - {each.key for each in found if each.wanted}):
        raise DeliveryError(f"no queue wants it, so it stays parked: {', '.join(stay)}")
    return set(ids)


def _show(messages: list[Unrouted], *, as_json: bool) -> None:
    if as_json:
        names = ("key", "exchange", "routing_key", "wanted")
        show_json([{name: getattr(each, name) for name in names} for each in messages])
        return
    from delivery.visible import visible

    for each in messages:
        now = "a queue wants it now" if each.wanted else "no queue wants it"
        typer.echo(f"{visible(each.key)}  {each.exchange} {each.routing_key!r}: {now}")
    typer.echo(f"{len(messages)} message(s)")
