"""Synthetic scenes: one to five coloured shapes and digits on a 3 x 3 grid.

A scene holds everything that its picture depends on, so ``render`` is a pure function. Shapes and
digits are drawn with NumPy masks: no font and no drawing library can change a pixel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IMAGE_SIZE = 64
GRID_PITCH = 24
MAX_OBJECTS = 5
DIGIT_SCENE_SHARE = 0.6

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (225, 40, 40),
    "green": (40, 190, 60),
    "blue": (50, 90, 240),
    "yellow": (240, 220, 50),
    "purple": (170, 60, 210),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "cross")
DIGITS = tuple("0123456789")
POSITIONS = (
    "top left",
    "top center",
    "top right",
    "middle left",
    "center",
    "middle right",
    "bottom left",
    "bottom center",
    "bottom right",
)

# Lit segments: a top, b upper right, c lower right, d bottom, e lower left, f upper left, g middle.
_SEGMENTS = {
    "0": "abcdef",
    "1": "bc",
    "2": "abdeg",
    "3": "abcdg",
    "4": "bcfg",
    "5": "acdfg",
    "6": "acdefg",
    "7": "abc",
    "8": "abcdefg",
    "9": "abcdfg",
}
_ROWS, _COLUMNS = np.mgrid[0:IMAGE_SIZE, 0:IMAGE_SIZE]


@dataclass(frozen=True)
class SceneObject:
    """One drawn object.

    Attributes:
        kind: A name from ``SHAPES`` or one digit.
        color: A name from ``COLORS``.
        cell: Grid cell, 0 to 8, row by row from the top left.
        shift: Offset (right, down) from the centre of the cell, in pixels.
        radius: Half of the height, in pixels.
    """

    kind: str
    color: str
    cell: int
    shift: tuple[int, int] = (0, 0)
    radius: int = 7

    @property
    def is_digit(self) -> bool:
        """Whether the object is a digit rather than a shape."""
        return self.kind in DIGITS

    @property
    def center(self) -> tuple[int, int]:
        """Centre (x, y) in pixels."""
        row, column = divmod(self.cell, 3)
        return (
            IMAGE_SIZE // 2 + (column - 1) * GRID_PITCH + self.shift[0],
            IMAGE_SIZE // 2 + (row - 1) * GRID_PITCH + self.shift[1],
        )


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn.

    Attributes:
        objects: The objects, sorted by cell; at most one of them is a digit.
        background: Background colour, RGB, 0 to 255.
        noise_seed: Seed of the pixel noise and of the small colour variations.
    """

    objects: tuple[SceneObject, ...]
    background: tuple[int, int, int] = (20, 20, 20)
    noise_seed: int = 0

    @property
    def shapes(self) -> tuple[SceneObject, ...]:
        """The objects that are not digits."""
        return tuple(item for item in self.objects if not item.is_digit)

    @property
    def digits(self) -> tuple[SceneObject, ...]:
        """The objects that are digits (none or one)."""
        return tuple(item for item in self.objects if item.is_digit)


def sample_scene(rng: np.random.Generator) -> Scene:
    """Draw a random scene.

    Args:
        rng: Source of all randomness.

    Returns:
        A scene of one to five objects.
    """
    count = int(rng.integers(1, MAX_OBJECTS + 1))
    cells = rng.permutation(9)[:count]
    digit_index = int(rng.integers(count)) if rng.random() < DIGIT_SCENE_SHARE else -1
    color_names = list(COLORS)
    objects = []
    for index, cell in enumerate(cells):
        kinds = DIGITS if index == digit_index else SHAPES
        objects.append(
            SceneObject(
                kind=kinds[int(rng.integers(len(kinds)))],
                color=color_names[int(rng.integers(len(color_names)))],
                cell=int(cell),
                shift=(int(rng.integers(-1, 2)), int(rng.integers(-1, 2))),
                radius=int(rng.integers(6, 9)),
            )
        )
    red, green, blue = (int(value) for value in rng.integers(0, 60, 3))
    return Scene(
        objects=tuple(sorted(objects, key=lambda item: item.cell)),
        background=(red, green, blue),
        noise_seed=int(rng.integers(2**31)),
    )


def render(scene: Scene) -> NDArray[np.uint8]:
    """Draw a scene.

    Args:
        scene: The scene to draw.

    Returns:
        RGB picture of shape (64, 64, 3).
    """
    rng = np.random.default_rng(scene.noise_seed)
    picture = np.empty((IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.float32)
    picture[:] = scene.background
    for item in scene.objects:
        picture[_mask(item)] = np.asarray(COLORS[item.color]) + rng.integers(-15, 16, 3)
    picture += rng.standard_normal(picture.shape, dtype=np.float32) * 5
    return np.clip(picture, 0, 255).astype(np.uint8)


def caption(scene: Scene) -> str:
    """Describe every object of a scene, cell by cell.

    Args:
        scene: The scene to describe.

    Returns:
        One sentence such as ``a red circle at the top left , a blue digit 7 at the center .``
    """
    phrases = [
        f"a {item.color} {'digit ' * item.is_digit}{item.kind} at the {POSITIONS[item.cell]}"
        for item in scene.objects
    ]
    return " , ".join(phrases) + " ."


def _mask(item: SceneObject) -> NDArray[np.bool_]:
    """Return the pixels that an object covers, shape (64, 64)."""
    center_x, center_y = item.center
    x, y, radius = _COLUMNS - center_x, _ROWS - center_y, item.radius
    inside: NDArray[np.bool_] = (np.abs(x) <= radius) & (np.abs(y) <= radius)
    match item.kind:
        case "circle":
            inside &= x**2 + y**2 <= radius**2
        case "square":
            pass
        case "triangle":
            inside &= 2 * np.abs(x) <= y + radius
        case "cross":
            inside &= (np.abs(x) <= 2) | (np.abs(y) <= 2)
        case digit:
            inside &= _digit_mask(_SEGMENTS[digit], x, y, radius)
    return inside


def _digit_mask(
    segments: str, x: NDArray[np.int64], y: NDArray[np.int64], height: int
) -> NDArray[np.bool_]:
    """Return the pixels of a seven-segment digit, shape (64, 64)."""
    width, thickness = height - 2, 2
    box: NDArray[np.bool_] = (np.abs(x) <= width) & (np.abs(y) <= height)
    left, right = x <= thickness - width, x >= width - thickness
    parts = {
        "a": y <= thickness - height,
        "b": right & (y <= 0),
        "c": right & (y >= 0),
        "d": y >= height - thickness,
        "e": left & (y >= 0),
        "f": left & (y <= 0),
        "g": np.abs(y) <= 1,
    }
    lit: NDArray[np.bool_] = np.zeros_like(box)
    for name in segments:
        lit |= parts[name]
    lit &= box
    return lit
