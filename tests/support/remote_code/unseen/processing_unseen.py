from .tiny_processing import PictureProcessor


class UnseenProcessor(PictureProcessor):
    pass
