"""NVILA, which is refused: nothing that is measured of it could be checked.

Its class builds and loads three models by itself, from folders of their own, moves them to a GPU
and rounds them to float16, rotary tables included. Inside its forward it puts the rows of an image
in place of one token, so that the decoder reads more positions than the prompt has.
"""

from normprobe.errors import NormprobeError


def setup() -> None:
    """Refuse the model."""
    raise NormprobeError(
        "NVILA's own code loads three models by itself and puts image rows into the prompt inside "
        "its forward, so neither weights nor positions can be checked",
        "measure its parts alone: the folder llm is a language model, vision_tower a vision "
        "encoder; fetch the repository and pass FOLDER/llm or FOLDER/vision_tower",
    )
