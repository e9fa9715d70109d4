"""Run the command line: ``python -m delivery``."""

from delivery.cli import main

main()
