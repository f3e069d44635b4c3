"""A few layers that stand for all of a deep model."""


def layers_of_all_depths(layers: int, shown: int) -> list[int]:
    """Numbers of ``shown`` layers spread evenly over the model, the last among them."""
    shown = min(shown, layers)
    return [round(layers * step / shown) for step in range(1, shown + 1)]
