"""Names that every room shares: token groups, stages, metrics and quantities.

A *sample row* holds the sufficient statistics of one (sample, layer or stage, group). A *table* is
a group-by over sample rows, a row a number. Renaming anything here changes files that users keep:
raise ``SCHEMA_VERSION`` with it.
"""

SCHEMA_VERSION = 5

# --- token groups -------------------------------------------------------------------------------
VISUAL = "visual"  # rows that come from pixels, of images and of videos
STRUCTURAL = "structural"  # placeholder rows that pixels do not change: newline, separator
SPECIAL = "special"  # tokenizer special tokens; CLS and register rows at the vision stages
TEXT = "text"  # everything else that is not padding
VIDEO = "video"  # rows that come from the frames of a video
AUDIO = "audio"  # rows that come from a sound
NON_VISUAL = "non_visual"  # text and special tokens together
PAIR = "visual_text"  # quantities of (visual, text) token pairs
IMAGE = "image"  # visual tokens of images, where there are videos, too; of one of several images,
# whose number, from 1, stands in the column of this name
TURN = "turn"  # tokens of one of several turns; also the column with its number, from 1
OF_GROUP = "of_group"  # column: which token group these are of

#: Position in this tuple is the code that token group tensors hold; padding is ``PADDING``. A token
#: has one code: that of ``visual`` is an image's. ``token_metrics.in_group`` says what a group is.
TOKEN_GROUPS = (VISUAL, STRUCTURAL, SPECIAL, TEXT, VIDEO, AUDIO)
PADDING = -1
#: A doubt of a run, also said by its verdict.
UNMOVED = "other pixels change no token of the first image: none of them counts as visual"
#: The groups of tables, in their order.
TABLE_GROUPS = (*TOKEN_GROUPS[:4], IMAGE, *TOKEN_GROUPS[4:], NON_VISUAL)
#: Those of them that are told against text as visual tokens are, where a prompt holds them.
OTHER_MEDIA = (IMAGE, VIDEO, AUDIO)
#: Beside them in sample rows: pairs of tokens, and those of one image or turn, counted already.
BESIDE_GROUPS = (PAIR, IMAGE, TURN)

#: In place of the token id of a row that was not looked up in the text table.
NO_ID = -(2**31)

# --- inputs that the model does not get ---------------------------------------------------------
VISUAL_MASK = "visual_mask"  # bool [batch, seq]: the positions of an image; a forward may take it
STRUCTURAL_MASK = "structural_mask"  # bool [batch, seq]: those of them that pixels do not change
IMAGE_NUMBERS = "image_numbers"  # int [batch, seq]: whose image a placeholder there is, from 1
TURN_NUMBERS = "turn_numbers"  # int [batch, seq]: which turn a token belongs to, from 1
VIDEO_MASK = "video_mask"  # bool [batch, seq]: those of an image that are a video's
DRAWN_FRAMES = "drawn_frames"  # int [videos]: how many frames of each the processor drew
MASKS = (VISUAL_MASK, STRUCTURAL_MASK, IMAGE_NUMBERS, TURN_NUMBERS, VIDEO_MASK, DRAWN_FRAMES)

# --- interface stages ---------------------------------------------------------------------------
VISION_ENCODER = "vision_encoder"  # what the vision encoder returns (last_hidden_state)
PROJECTOR_INPUT = "projector_input"  # what the projector receives
MERGED_INPUT = "projector_input_merged"  # the patches side by side that the projector merges
PROJECTOR_OUTPUT = "projector_output"  # what the projector returns
AUDIO_ENCODER = "audio_encoder"  # what the audio encoder hands over, to its projector if inside
AUDIO_PROJECTOR_INPUT = "audio_projector_input"  # what the projector of sounds receives
AUDIO_PROJECTOR_OUTPUT = "audio_projector_output"  # what it returns
DECODER_INPUT = "decoder_input"  # what enters decoder layer 1
VISUAL_EMBEDDING_TABLE = "visual_embedding_table"  # rows that visual tokens are mixed from
TEXT_EMBEDDING_TABLE = "text_embedding_table"  # rows of the weight
EFFECTIVE_EMBEDDING = "effective_embedding"  # rows as they enter decoder layer 1

STAGES = (
    VISION_ENCODER,
    PROJECTOR_INPUT,
    MERGED_INPUT,
    PROJECTOR_OUTPUT,
    AUDIO_ENCODER,
    AUDIO_PROJECTOR_INPUT,
    AUDIO_PROJECTOR_OUTPUT,
    DECODER_INPUT,
    VISUAL_EMBEDDING_TABLE,
    TEXT_EMBEDDING_TABLE,
    EFFECTIVE_EMBEDDING,
)

# --- row scopes of an embedding table -----------------------------------------------------------
ALL_ROWS = "all_rows"
NONZERO_ROWS = "nonzero_rows"  # what the paper averages (Eq. 11)
TOKENIZER_ROWS = "tokenizer_rows"  # rows the tokenizer can emit
PROMPT_ROWS = "prompt_rows"  # rows of the tokens that occur in the prompts
ROW_SCOPES = (ALL_ROWS, NONZERO_ROWS, TOKENIZER_ROWS, PROMPT_ROWS)

#: The text table of the model that was trained from, beside ``text`` and ``visual``.
BASE = "base"

#: The two token groups that the paper compares.
MODALITIES = (VISUAL, TEXT)

# --- digests of a sample ------------------------------------------------------------------------
#: Columns of sample rows, and what each tells apart: the pictures, clips and sounds as files hold
#: them, the prompt as the model gets it, and what the processor makes of the former.
DIGESTS = {"image_hash": "picture", "prompt_hash": "prompt", "pixel_hash": "processed picture"}

# --- per-token metrics of a decoder layer -------------------------------------------------------
#: x enters the layer, h leaves it, D = h - x. Angles are radians. Layer 0 has ``norm`` alone.
TOKEN_METRICS = ("norm", "cosine", "angle", "update_norm", "relative_update", "update_angle")

#: Of which metrics layers.csv holds a group's mean over that of the text tokens, and its name.
RATIOS_TO_TEXT = {
    "norm": "norm_ratio_to_text",
    "angle": "angle_ratio_to_text",
    "attention_input_norm": "attention_input_ratio_to_text",
}

#: The same of geometric means: one huge token does not carry them, and they are what sentences say.
GEOMETRIC_RATIOS = {
    metric: column.replace("_ratio_", "_geometric_ratio_")
    for metric, column in RATIOS_TO_TEXT.items()
}

#: Norm of what was added to a state between two layers: DeepStack, gated cross-attention.
INJECTION = "injection_norm"

#: Norm of what attention reads: x behind the layer's input norm; x itself where there is none.
ATTENTION_INPUT = "attention_input_norm"

#: Metrics of a token that are kept without quantiles.
OTHER_TOKEN_METRICS = (INJECTION, ATTENTION_INPUT)

#: Branches of a decoder layer, and what is measured of each: what it adds to a state.
BRANCHES = ("attention", "cross_attention", "mlp")
BRANCH_METRICS = ("update_norm", "relative_update", "angle")

#: Sizes of which the geometric mean over tokens is kept.
GEOMETRIC = (
    "norm",
    "angle",
    "update_norm",
    ATTENTION_INPUT,
    *(f"{branch}_{metric}" for branch in BRANCHES for metric in ("update_norm", "angle")),
    "norm_without_massive",
    "angle_without_massive",
)

#: What begins the columns of the user's own numbers in sample rows.
OWN = "own_"

#: One value a sample, layer and group; the second of visual and of text tokens alone.
SAMPLE_METRICS = ("pooled_cosine", "within_modal_cosine")

#: One value a sample and layer, of its (visual, text) pairs.
PAIR_METRICS = (
    "cross_modal_cosine",
    "centered_cross_modal_cosine",
    "attention_input_cosine",
    "visual_turn_to_text",
    "text_turn_to_visual",
    "turn_to_turn",
)

# --- kinds of tokens: by which rule a token is one ----------------------------------------------
#: A massive activation (Sun et al., 2024, arXiv 2402.17762, Section 2): its magnitude is above 100
#: and at least about 1000 times the median magnitude of its hidden state.
MASSIVE_MAGNITUDE = 100.0
MASSIVE_RATIO = 1000.0

#: tau of Kang et al. (2025, arXiv 2503.03321): from which |h_d| / rms(h) on a token is a sink.
SINK_RATIO = 20.0

#: A token is of high norm from so many times the median norm of its group and sample on. In Darcet
#: et al. (2024, arXiv 2309.16588) such tokens have about ten times the norm of the others; their
#: cut-off of 150 was read off one model's histogram. The factor is between the two.
HIGH_NORM = 3.0

#: A row of a vision tower is loud above this norm, by which 2510.08510 tells the sinks of a ViT. It
#: was read off the histograms of their towers, as the cut-off of Darcet et al. was of theirs.
LOUD_NORM = 100.0

#: A token is still as long as every layer leaves it at this cosine or above, the bound by which
#: Fan et al. (2026, arXiv 2603.00510) call two tokens almost the same.
STILL_COSINE = 0.99

#: The table of a run that holds the paper's numbers beside the measured ones.
PUBLISHED = "published"

#: How far the states of one model may be apart, in parts of their length, by the type that it
#: computes in: three times what other kernels, threads and batches made of them, or more.
TOLERANCES = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}

#: The kinds of models that a checkpoint can hold. The kind decides the auto class, and which
#: commands make sense.
VISION_LANGUAGE = "vision-language model"
BARE_VISION_ENCODER = "vision encoder"
LANGUAGE_MODEL = "language model"
