"""The commands about who may do what on the broker: access plan, apply, check, definitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.command_group import CommandGroup
from delivery.terminal import Terminal, show_json

if TYPE_CHECKING:
    from delivery.access import Access
    from delivery.config import Config
    from delivery.management import Management

__all__ = ["access_app", "register"]

access_app = typer.Typer(
    cls=CommandGroup,
    help="A user for each service, with the least rights.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
Passwords = Annotated[
    Path | None,
    typer.Option(help="Folder of the password files; default: access in the data folder."),
]
Generate = Annotated[bool, typer.Option("--generate", help="Make up what passwords are missing.")]


def register(app: typer.Typer) -> None:
    """Add the group ``access`` to the command line."""
    app.add_typer(access_app, name="access")


@access_app.command()
def plan(context: typer.Context, as_json: Json = False) -> None:
    """Say which users there should be, and what each may do; asks no broker.

    Example: delivery access plan
    """
    users = _planned(context)
    if as_json:
        show_json([_fields(each) for each in users])
        return
    for each in users:
        typer.echo(each.user + (f"  (tags: {', '.join(each.tags)})" if each.tags else ""))
        for kind in ("configure", "write", "read"):
            names = ", ".join(getattr(each, kind)) or "nothing"
            typer.echo(f"  {kind:9} {names}")


@access_app.command("apply")
def apply_command(
    context: typer.Context,
    passwords: Passwords = None,
    generate: Generate = False,
    as_json: Json = False,
) -> None:
    """Create the users on the broker, or set their passwords and rights anew.

    A password comes from DELIVERY_AMQP_PASSWORD_<ROLE>, or from <ROLE>.password in the folder.
    Needs an administrator's login in DELIVERY_AMQP_URL, or in DELIVERY_MANAGEMENT_URL.

    Example: delivery access apply --generate
    """
    from delivery.passwords import only_writer, passwords_for
    from delivery.users import apply, vhost_of

    users, folder = _planned(context), _folder(context, passwords)
    config, management = _broker(context)
    terminal: Terminal = context.obj
    roles = [each.role for each in users]
    with only_writer(folder):
        known = passwords_for(roles, terminal.environ, folder, generate=generate)
        apply(management, vhost_of(config.broker.url), users, known)
    if as_json:
        show_json({"applied": [each.user for each in users], "broker": config.broker.address})
        return
    for each in users:
        typer.echo(f"{each.user} may do its work on {config.broker.address}, and nothing else")


@access_app.command()
def check(context: typer.Context, passwords: Passwords = None, as_json: Json = False) -> None:
    """Compare the broker's users with the plan, right by right; exit 1 if anything differs.

    Example: delivery access check
    """
    from delivery.passwords import file_for, passwords_for
    from delivery.users import differences, vhost_of

    users, folder = _planned(context), _folder(context, passwords)
    config, management = _broker(context)
    terminal: Terminal = context.obj
    here = [each.role for each in users if file_for(folder, each.role).exists()]
    known = passwords_for(here, terminal.environ, folder)
    found = differences(management, vhost_of(config.broker.url), users, known)
    if as_json:
        show_json({"differences": found})
    else:
        for each in found or ["every user has the planned rights, and no other"]:
            typer.echo(each)
    raise typer.Exit(1 if found else 0)


@access_app.command("definitions")
def definitions_command(
    context: typer.Context,
    vhost: Annotated[str, typer.Option(help="The virtual host that they are for.")] = "/",
    passwords: Passwords = None,
    generate: Generate = False,
) -> None:
    """Print a definitions file with the users for RabbitMQ to import; it holds hashes only.

    Example: delivery access definitions --generate > users.json
    """
    from delivery.passwords import passwords_for
    from delivery.users import definitions

    users, terminal = _planned(context), context.obj
    roles, folder = [each.role for each in users], _folder(context, passwords)
    known = passwords_for(roles, terminal.environ, folder, generate=generate)
    show_json(definitions(vhost, users, known))


def _planned(context: typer.Context) -> list[Access]:
    from delivery.access import accesses
    from delivery.config import Config, retries_of
    from delivery.connection import BrokerSettings
    from delivery.routes import routes_of

    terminal: Terminal = context.obj
    config = Config(
        broker=BrokerSettings(url=""),
        stores=terminal.stores,
        namespace=terminal.namespace,
        retries_ms=retries_of(terminal.retries_ms),
        shape=terminal.shape,  # where a queue leads on to is a right of who declares it
    )
    return accesses(config.namespace, config.topology(), routes_of(config.namespace))


def _broker(context: typer.Context) -> tuple[Config, Management]:
    terminal: Terminal = context.obj
    config = terminal.config()
    return config, config.need_management("users are created through")


def _folder(context: typer.Context, passwords: Path | None) -> Path:
    terminal: Terminal = context.obj
    return passwords or terminal.data / "access"


def _fields(access: Access) -> dict[str, object]:
    return {
        "role": access.role,
        "user": access.user,
        "tags": access.tags,
        "configure": access.configure,
        "write": access.write,
        "read": access.read,
        "patterns": access.patterns,
    }
