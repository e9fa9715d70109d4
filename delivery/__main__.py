"""Run the command line: ``python -m delivery``, and the program ``delivery``."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while its modules are still being imported is no traceback."""
    try:
        from delivery.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
