"""What a backlog costs."""

from bench.scene import Curve, Row, Scene


def rows(scene: Scene) -> list[Row]:
    return []


def curves(scene: Scene) -> list[Curve]:
    return []
