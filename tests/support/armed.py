"""``python -m delivery`` that dies at the point DELIVERY_KILL_AT, whatever the command is."""

from __future__ import annotations

import os

from delivery.cli import main
from delivery.points import arm_from

if __name__ == "__main__":
    arm_from(os.environ)
    main()
