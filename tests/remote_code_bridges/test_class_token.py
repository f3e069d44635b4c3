"""A class token that a tower returns is counted by processors that cannot be told of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.remote_code.tokenizer import byte_tokenizer
from transformers import CLIPImageProcessor, LlavaProcessor

from normprobe import remote_code_bridges


class NotToldOfSomebody(LlavaProcessor):
    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int | None = None,
        vision_feature_select_strategy: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(
            image_processor=image_processor,
            tokenizer=tokenizer,
            patch_size=patch_size,
            vision_feature_select_strategy=vision_feature_select_strategy,
            **more,
        )


@pytest.mark.parametrize("strategy", ["default", "full"])
@pytest.mark.parametrize("version", ["4.46.0.dev0", "4.48.0", None])
def test_a_processor_writes_as_many_placeholders_as_rows_come(
    strategy: str, version: str | None, tmp_path: Path
) -> None:
    """As its own transformers did, which counted one more; then `default` leaves one out."""
    side = {"height": 16, "width": 16}
    look = CLIPImageProcessor(size=side, crop_size=side)
    (tmp_path / "config.json").write_text(json.dumps({"transformers_version": version}))
    tokenizer = byte_tokenizer(("<image>",), None)
    tokenizer.name_or_path = str(tmp_path)
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):
        remote_code_bridges._bridge_class(NotToldOfSomebody)
        processor = NotToldOfSomebody(look, tokenizer, 4, strategy)
        picture = Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8))
        ids = processor(text="<image>?", images=picture, return_tensors="np")["input_ids"][0]
    counted = version == "4.46.0.dev0"
    rows = 16 + counted - (strategy == "default")
    assert int((ids == tokenizer.convert_tokens_to_ids("<image>")).sum()) == rows
    assert ("num_additional_image_tokens" in needed) == counted
