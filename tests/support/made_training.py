"""Tables of a made training: a projector whose norm grows, and an encoder that is soon frozen."""

import pandas as pd

PARTS = {"vision_encoder": 0.3, "projector": 3.9, "decoder_layers": 1.2}


def tables(last: int = 900, louder: float = 1.0) -> dict[str, pd.DataFrame]:
    """Measured every 100 steps; visual tokens enter ``louder`` x as loud as at first."""
    steps = range(0, last + 1, 100)
    states = []
    for step in steps:
        grown = louder ** (step / last)
        for layer in range(5):
            for group, norm in (("visual", 8.0 * grown), ("text", 2.0)):
                state = {
                    "training_step": step, "layer": layer, "group": group, "dtype": "bfloat16",
                    "tokens": 64 if group == "visual" else 20, "nonfinite": 0,
                    "norm_mean": norm + layer, "norm_geometric_mean": norm + layer,
                    "norm_max": norm + layer + 1, "angle_mean": 0.4 / norm,
                    "relative_update_mean": 0.5 / norm,
                    "norm_geometric_ratio_to_text": (norm + layer) / (2.0 + layer),
                }  # fmt: skip
                states.append(state)
    gradients = [
        {"training_step": step, "part": part, "gradient_norm": size, "update_ratio": 1e-3}
        for step in steps
        for part, size in PARTS.items()
        if part != "vision_encoder" or step < 300
    ]
    alarm = (
        300,
        "frozen",
        "vision_encoder",
        "the vision encoder was trained before, and is frozen",
    )
    alarms = pd.DataFrame([alarm], columns=["training_step", "alarm", "where", "words"])
    return {
        "training": pd.DataFrame(states),
        "gradients": pd.DataFrame(gradients),
        "alarms": alarms,
    }
