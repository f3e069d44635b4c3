"""Mean cosines over pairs of tokens of one sample, formed pair by pair in float64 NumPy.

A token that is zero or not finite has no direction, and is in no pair. Tokens are ``[tokens,
hidden]``, of visual or of text tokens.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def unit(vectors: Array) -> Array:
    """Of length 1; the zero vector stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: Array = vectors / np.where(norms > 0, norms, 1.0)
    return units


def mean_direction(states: Array) -> Array:
    """The mean vector of finite tokens as a unit vector, ``[hidden]``."""
    finite = np.logical_and.reduce(np.isfinite(states), axis=-1)
    return unit(states[finite].mean(axis=0))


def within(states: Array) -> float:
    """Over pairs of different tokens; NaN where there are fewer than two."""
    pointing = unit(_pointing(states))
    first, second = np.triu_indices(len(pointing), k=1)
    return float((pointing @ pointing.T)[first, second].mean()) if len(first) else float("nan")


def crossed(visual: Array, text: Array) -> float:
    """Over (visual, text) pairs."""
    return _mean(unit(_pointing(visual)), unit(_pointing(text)))


def crossed_and_centered(visual: Array, text: Array) -> float:
    """``crossed`` without the mean of both modalities' mean unit vectors."""
    units = [unit(_pointing(states)) for states in (visual, text)]
    common = (units[0].mean(axis=0) + units[1].mean(axis=0)) / 2
    return _mean(unit(units[0] - common), unit(units[1] - common))


def turns(x: tuple[Array, Array], h: tuple[Array, Array]) -> list[float]:
    """Between turns and states: visual to text, text to visual, and between both turns.

    A turn is the part of the update that is orthogonal to x. One of zero counts as a cosine of 0.
    """
    visual, text = (unit(_pointing(states)) for states in x)
    turned_visual, turned_text = map(_turns, x, h)
    return [
        _mean(turned_visual, text),
        _mean(visual, turned_text),
        _mean(turned_visual, turned_text),
    ]


def _turns(x: Array, h: Array) -> Array:
    """Unit vectors of the turns of those tokens that have one."""
    known = _points(x) & np.logical_and.reduce(np.isfinite(h), axis=-1)
    along = unit(x[known])
    update = h[known] - x[known]
    return unit(update - (update * along).sum(axis=-1, keepdims=True) * along)


def _pointing(states: Array) -> Array:
    return states[_points(states)]


def _points(states: Array) -> NDArray[np.bool_]:
    return np.array([np.isfinite(state).all() and state.any() for state in states], dtype=np.bool_)


def _mean(visual: Array, text: Array) -> float:
    return float((visual @ text.T).mean()) if len(visual) and len(text) else float("nan")
