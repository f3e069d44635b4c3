"""Samples to model inputs: the processor, padded batches, and the group of every token.

``load_processor``      the processor, tokenizer or image processor of a checkpoint
``build_inputs``        samples to one padded batch of tensors
``batches``             a whole data set, batch by batch
``special_token_ids``   ids the tokenizer treats as special
``token_groups``        visual, special, text or padding, for every position
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import BadRows, RefusedSample
from normprobe.data.chat import PLAIN_LAYOUTS, image_token, is_multimodal, render_chat, render_plain
from normprobe.data.remote_inputs import BUILDERS
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.schema import PADDING, SPECIAL, TEXT, TOKEN_GROUPS, VISUAL

if TYPE_CHECKING:
    import torch
    from transformers import BatchFeature

# What processors raise on images and texts that they cannot take.
_REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def load_processor(
    path_or_id: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    auto_class: str = "AutoProcessor",
) -> Any:
    """Load what turns text and images into inputs of a checkpoint.

    Args:
        path_or_id: folder or hub id.
        revision: branch, tag or commit of the hub id.
        trust_remote_code: run code that comes with the checkpoint.
        auto_class: ``AutoTokenizer`` for a bare language model, ``AutoImageProcessor`` for a bare
            vision encoder: their folders often name a processor that they do not hold.

    Returns:
        The processor, tokenizer or image processor.

    Raises:
        NormprobeError: the files are missing, or need a library that is not installed.
    """
    import transformers

    auto: Any = getattr(transformers, auto_class)
    try:
        # It goes on to AutoTokenizer and AutoImageProcessor by itself, but only where the
        # checkpoint names no processor: half a processor would measure half a model.
        return auto.from_pretrained(
            path_or_id, revision=revision, trust_remote_code=trust_remote_code
        )
    except (ImportError, OSError, *_REFUSALS) as error:
        raise NormprobeError(
            f"The processor of {path_or_id} cannot be loaded: {_first_line(error)}.",
            _loading_remedy(error),
        ) from error


def build_inputs(
    processor: Any,
    samples: Sequence[Sample],
    *,
    system: str | None = None,
    model_type: str | None = None,
) -> BatchFeature:
    """Turn samples into one batch: the image first, then the prompt, in the model's chat format.

    Args:
        processor: from ``load_processor``. A bare tokenizer reads the prompts and leaves the images
            out; a bare image processor reads the images.
        samples: at least one.
        system: ``None`` keeps what the chat template does; ``"none"`` suppresses a system prompt
            that the template would insert; other text is the system prompt.
        model_type: ``config.model_type``; some types want their inputs their own way
            (``remote_inputs.py``), with the shapes and the padding of their own processors.

    Returns:
        Tensors; ``input_ids`` and ``attention_mask`` are [batch, seq], padded on the right, and the
        image tensors have the processor's own names and shapes.

    Raises:
        NormprobeError: the processor refuses a sample, or the template cannot show what it should.
    """
    placeholder = image_token(processor)
    for sample in samples:
        if placeholder and placeholder in sample.prompt:
            raise RefusedSample(
                f"{sample.id}: the prompt contains this model's image token {placeholder!r}.",
                "Remove it from the prompt; normprobe places the image itself.",
            )
    plain = partial(_build, layout=PLAIN_LAYOUTS.get(model_type or "", "{turn}"))
    build = BUILDERS.get(model_type or "", plain)
    try:
        return build(processor, samples, system)
    except _REFUSALS as error:
        if len(samples) > 1:  # which one was it?
            for sample in samples:
                build_inputs(processor, [sample], system=system, model_type=model_type)
        sizes = ", ".join(
            sample.id + ("" if sample.image is None else " ({}x{} px)".format(*sample.image.size))
            for sample in samples
        )
        raise RefusedSample(
            f"The processor refuses {sizes}: {_first_line(error)}.",
            "Leave the sample out of the data, or use --batch-size 1 if only the batch fails.",
        ) from error


def batches(
    data: Iterable[Sample],
    processor: Any,
    batch_size: int,
    system: str | None = None,
    model_type: str | None = None,
    bad: BadRows | None = None,
) -> Iterator[tuple[list[Sample], BatchFeature]]:
    """Yield samples and their inputs, ``batch_size`` at a time; a batch may be smaller.

    Args:
        data: what to read.
        processor: as ``build_inputs`` takes it, like ``system`` and ``model_type``.
        batch_size: samples a batch.
        system: a system prompt.
        model_type: ``config.model_type``.
        bad: takes the samples that the processor refuses; None raises on the first.

    Raises:
        NormprobeError: as ``build_inputs``.
    """
    build = partial(build_inputs, processor, system=system, model_type=model_type)
    samples = iter(data)
    while batch := list(islice(samples, batch_size)):
        try:
            inputs = build(batch)
        except RefusedSample:
            batch = _accepted(batch, build, bad or BadRows())
            if not batch:
                continue
            inputs = build(batch)
        yield batch, inputs


def _accepted(
    batch: Sequence[Sample], build: Callable[[list[Sample]], object], bad: BadRows
) -> list[Sample]:
    """The samples of a batch that the processor takes one by one."""
    accepted = []
    for sample in batch:
        try:
            build([sample])
        except RefusedSample as error:
            bad.refuse(error, sample.id)
        else:
            accepted.append(sample)
    return accepted


def special_token_ids(processor: Any) -> list[int]:
    """Return the ids that the tokenizer treats as special, ascending; none without a tokenizer.

    ``all_special_ids`` holds the named ones (bos, eos, ...). Chat markers such as ``<|im_start|>``
    are often special in ``added_tokens_decoder`` alone.
    """
    tokenizer = processor.tokenizer if is_multimodal(processor) else processor
    named = getattr(tokenizer, "all_special_ids", [])
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return sorted({*named, *(token_id for token_id, token in added.items() if token.special)})


def token_groups(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    image_token_ids: Sequence[int],
    special_token_ids: Sequence[int],
) -> torch.Tensor:
    """Name the group of every token.

    Every image placeholder counts as visual here; which of those rows pixels do not change
    (structural) is found inside the model.

    Args:
        input_ids: [batch, seq].
        attention_mask: [batch, seq], 0 at padding; ``None`` means that nothing is padding.
        image_token_ids: ids of image placeholders; visual even where the tokenizer calls them
            special.
        special_token_ids: as ``special_token_ids`` returns.

    Returns:
        int8 [batch, seq] on the device of ``input_ids``: positions in ``schema.TOKEN_GROUPS``, or
        ``schema.PADDING``.
    """
    import torch

    def is_one_of(ids: Sequence[int]) -> torch.Tensor:
        return torch.isin(input_ids, torch.tensor(ids, dtype=torch.long, device=input_ids.device))

    groups = torch.full_like(input_ids, TOKEN_GROUPS.index(TEXT), dtype=torch.int8)
    groups[is_one_of(special_token_ids)] = TOKEN_GROUPS.index(SPECIAL)
    groups[is_one_of(image_token_ids)] = TOKEN_GROUPS.index(VISUAL)
    if attention_mask is not None:
        groups[attention_mask == 0] = PADDING
    return groups


def _build(
    processor: Any, samples: Sequence[Sample], system: str | None, layout: str
) -> BatchFeature:
    from transformers import BatchFeature
    from transformers.image_processing_base import ImageProcessingMixin

    images = [sample.image for sample in samples if sample.image is not None]
    is_image_processor = isinstance(processor, ImageProcessingMixin)
    if is_image_processor:
        if len(images) < len(samples):
            raise ValueError("a bare vision encoder needs an image in every sample")
        return BatchFeature(dict(processor(images=images, return_tensors="pt")))

    is_chat = bool(getattr(processor, "chat_template", None))
    if is_chat:
        texts = render_chat(processor, samples, system)
    else:
        texts = render_plain(processor, samples, system, layout)
    tokenizer = processor.tokenizer if is_multimodal(processor) else processor
    options: dict[str, Any] = {"return_tensors": "pt"}
    if len(samples) > 1:
        _ensure_pad_token(tokenizer)
        # On the right: tokens keep the positions, and in causal and recurrent layers the states,
        # that they have alone. So results do not depend on the batch size.
        options |= {"padding": True, "padding_side": "right", "return_attention_mask": True}
    if is_chat and (tokenizer is processor or texts[0].startswith(tokenizer.bos_token or "\0")):
        # What `apply_chat_template(tokenize=True)` does: a tokenizer's template writes all special
        # tokens, a processor's leaves the first one out or not.
        options["add_special_tokens"] = False
    if tokenizer is processor:
        return BatchFeature(dict(processor(texts, **options)))
    if not images:
        return BatchFeature(dict(processor(text=texts, **options)))
    # Chat processors take a list of images for each text, older ones one flat list; some of either
    # kind want it the other way, and refuse what they do not understand.
    nested = [[sample.image] if sample.image is not None else [] for sample in samples]
    first, second = (nested, images) if is_chat else (images, nested)
    try:
        return BatchFeature(dict(processor(text=texts, images=first, **options)))
    except _REFUSALS as error:
        try:
            return BatchFeature(dict(processor(text=texts, images=second, **options)))
        except _REFUSALS:
            raise error from None


def _loading_remedy(error: Exception) -> str:
    message = str(error).lower()
    if any(library in message for library in ("torchvision", "timm", "scipy")):
        return "pip install 'normprobe[vision]' (torchvision, timm, scipy)"
    if "trust_remote_code" in message:
        return "Read the code that comes with the checkpoint, then pass --trust-remote-code."
    if isinstance(error, ImportError):
        return "Install the library that it names."
    return (
        "Check the name, and that the checkpoint has its processor files (processor_config.json "
        "or preprocessor_config.json, tokenizer.json)."
    )


def _ensure_pad_token(tokenizer: Any) -> None:
    """Pad with the end-of-text token where the tokenizer has no padding token.

    Safe, because padding is recognised by the attention mask and never by its id.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
