"""The commands of the course: demo, stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delivery.terminal import Terminal, say

__all__ = ["demo", "stage"]


def demo(
    context: typer.Context,
    file: Annotated[Path, typer.Option(help="The publications to play with.")] = Path(
        "data/materials.jsonl"
    ),
) -> None:
    """Play the whole exchange with real processes and real failures; exit 1 if it does not add up.

    Example: delivery demo
    """
    from delivery.demo import play

    terminal: Terminal = context.obj
    raise typer.Exit(0 if play(terminal.environ, terminal.data, file) else 1)


def stage(
    lesson: Annotated[int, typer.Argument(help="0 to 12")],
    folder: Annotated[Path, typer.Argument(help="An empty or new folder.")],
) -> None:
    """Write the package as it stands after a lesson.

    Example: delivery stage 5 /tmp/after-lesson-5
    """
    from delivery.stages import cut_after

    names = cut_after(lesson, folder)
    say(f"{folder}/delivery: {len(names)} modules")
    typer.echo("\n".join(names))
