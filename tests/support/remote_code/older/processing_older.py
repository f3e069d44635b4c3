from .tiny_processing import PictureProcessor


class OlderProcessor(PictureProcessor):
    pass
