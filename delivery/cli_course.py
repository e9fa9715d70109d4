"""The commands of the course: demo, lesson, stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delivery.terminal import Terminal, parking_for, say

__all__ = ["demo", "lesson", "stage"]


def demo(
    context: typer.Context,
    file: Annotated[Path, typer.Option(help="The publications to play with.")] = Path(
        "data/materials.jsonl"
    ),
    live: Annotated[
        bool, typer.Option("--live", help="A page to watch it and to break it, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the live page; 0: any.")] = 8088,
    browser: Annotated[bool, typer.Option(help="Open the live page.")] = True,
) -> None:
    """Play the whole exchange with real processes and real failures; exit 1 if it does not add up.

    Example: delivery demo --live
    """
    terminal: Terminal = context.obj
    if live:
        from delivery.live_demo import play_live

        play_live(terminal.environ, terminal.data, parking_for, port=port, open_browser=browser)
        return
    from delivery.demo import play

    raise typer.Exit(0 if play(terminal.environ, terminal.data, file) else 1)


def lesson(
    context: typer.Context,
    number: Annotated[int | None, typer.Argument(help="Which lesson; none: the list.")] = None,
    every: Annotated[bool, typer.Option("--list", help="List the lessons.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what was run.")] = False,
    step: Annotated[bool, typer.Option("--step", help="Show each scene's code first.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="Delays as stated.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Delays a tenth as long.")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="Measure what the cure costs.")] = False,
) -> None:
    """Run one lesson: the failure first, then the cure; exit 1 if a fact is not as stated.

    Example: delivery lesson 7 --step
    """
    from delivery import course

    terminal: Terminal = context.obj
    progress = course.Progress(terminal.data / "progress.json")
    if reset:
        progress.reset()
        say("forgotten: no lesson counts as run")
    if number is not None:
        wanted = {"--step": step, "--slow": slow, "--fast": fast, "--cost": cost}
        options = [option for option, on in wanted.items() if on]
        raise typer.Exit(course.run(course.find(number), options, progress))
    if not reset or every:
        done = progress.seconds()
        for title in course.titles():
            ran = f"ran in {done[title.number]:.1f} s" if title.number in done else "not run yet"
            typer.echo(f"{title.number:02}  {title.title}  [{ran}]\n    {title.promise}")


def stage(
    lesson: Annotated[int, typer.Argument(help="Which lesson the package is cut after.")],
    folder: Annotated[Path, typer.Argument(help="An empty or new folder.")],
) -> None:
    """Write the package as it stands after a lesson.

    Example: delivery stage 5 /tmp/after-lesson-5
    """
    from delivery.stages import cut_after

    names = cut_after(lesson, folder)
    say(f"{folder}/delivery: {len(names)} modules; from {folder}, `import delivery.{names[-1]}`")
    typer.echo("\n".join(names))
