"""What static discovery cannot see, as data: one entry a model type, dotted names in the model.

Keys: ``vision_encoder``, ``projector``, ``text_embedding``, ``decoder_layers``. A missing key is
left to discovery.
"""

OVERRIDES: dict[str, dict[str, str]] = {}
