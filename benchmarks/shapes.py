"""Sizes of the layers that are measured, in named sets."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of one LSTM call."""

    batch: int
    steps: int
    input_size: int
    hidden_size: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Reads "B,T,I,H".

        Raises:
            ValueError: It is not four positive whole numbers.
        """
        parts = text.split(",")
        if len(parts) != 4 or not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
            raise ValueError(
                f"shape must be four positive whole numbers B,T,I,H "
                f"(batch, steps, input size, hidden size), got {text!r}"
            )
        return cls(*(int(p) for p in parts))

    def __str__(self) -> str:
        return ",".join(str(size) for size in astuple(self))


@dataclass(frozen=True)
class ShapeSet:
    """Shapes measured together, with the time spent on each peer, mode and shape."""

    shapes: tuple[Shape, ...]
    seconds: float


def _shapes(*texts: str) -> tuple[Shape, ...]:
    return tuple(Shape.parse(text) for text in texts)


SETS: dict[str, ShapeSet] = {
    "quick": ShapeSet(_shapes("1,64,128,128", "16,64,256,256"), 0.25),
    "cpu": ShapeSet(
        _shapes(
            "1,64,128,128",
            "1,64,256,256",
            "16,64,256,256",
            "32,64,512,512",
            "64,64,512,512",
            "1,64,1024,1024",
        ),
        1.5,
    ),
    "gpu": ShapeSet(
        _shapes(
            "1,64,128,128",
            "1,64,256,256",
            "16,64,256,256",
            "64,64,256,256",
            "64,64,512,512",
            "256,64,512,512",
            "64,128,1024,1024",
            "1,64,1024,1024",
        ),
        0.4,
    ),
    # Where fused kernels of others are slower than the vendor's: few units, few or many rows.
    "small": ShapeSet(
        tuple(Shape(b, 64, u, u) for b in (1, 32, 256) for u in (64, 256, 1024)),
        0.2,
    ),
    # Sizes of Keras models that users reported as slow.
    "keras": ShapeSet(
        _shapes("1,1,16,64", "1,50,16,32", "1,500,7,64", "32,100,64,128", "64,200,64,256"), 1.0
    ),
}
