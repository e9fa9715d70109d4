"""Show each command of a group with its whole first sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["CommandGroup"]

WHOLE = 500  # letters: click cuts at what is left of one line


class CommandGroup(TyperGroup):
    """A group whose help wraps what click would cut off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line or two for each command."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        lines = [
            (name, command.get_short_help_str(limit=WHOLE))
            for name, command in commands
            if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(lines)
