"""Every benchmark that ``--data`` can name. A new benchmark is one more entry of ``BENCHMARKS``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class HubSource:
    """One place where rows are published."""

    repo: str  # data set id
    config: str | None  # configuration name; ``None`` where there is one only
    split: str  # split name


@dataclass(frozen=True)
class JsonFile:
    """The official form of a benchmark: a JSON file, its pictures in a folder beside it."""

    columns: tuple[str, ...]  # names that every question has
    image: str  # the one among them that holds the path of the picture
    question: str = "question"  # the one that holds the question
    # the one that identifies it; ``None``: its content, for published ids repeat
    key: str | None = None
    folder: str = ""  # of the pictures, in that of the file; ``""`` where they are in this one
    lines: bool = False  # whether the file is JSON lines, a question each; else one list


@dataclass(frozen=True)
class Benchmark:
    """What ``published`` has to know to read the tables and the official file of a benchmark."""

    name: str  # as in ``--data NAME``. A file whose name begins with it holds this benchmark.
    template: str  # the prompt, a format string over ``{question}``, ``{hint}`` and ``{options}``
    # as in ``--data NAME:SUBSET``, the first is the default; each with the places that publish its
    # rows, tried in this order
    subsets: Mapping[str, tuple[HubSource, ...]]
    # of the table on the hub. A table that has all of them holds this benchmark, whatever the name
    # of its file.
    columns: tuple[str, ...]
    # the column that identifies a row. A table without it is keyed by ``index``, as the TSVs of
    # VLMEvalKit are, or else by the content of its rows.
    key: str | None = None
    # the column that is put before the key where a table holds several groups
    group: str | None = None
    # the column that holds a list of options, or one column for each option. A table without them
    # has its options in those of the columns A, B, ... that are there.
    options: tuple[str, ...] = ()
    # ``template`` of tables with a column A; ``None``: the same
    options_template: str | None = None
    text_only: bool = False  # a row without an image is a question of text alone, not a fault
    # columns without which a table is refused, besides ``question`` and ``image``
    required: tuple[str, ...] = ()
    # keys are whole numbers, and rows from this key on repeat others: no questions
    copies_from: int | None = None
    # what the names of its files begin with, of letters and digits alone: a regular expression.
    # ``None``: its name, or the columns of a table tell it.
    file_names: str | None = None
    json_file: JsonFile | None = None  # its official form, where that is a JSON file

    def wording(self, columns: Sequence[str]) -> str:
        """The template for a table with these columns."""
        return self.options_template if self.options_template and "A" in columns else self.template


def _lmms_eval(name: str, config: str | None, split: str) -> tuple[HubSource, ...]:
    """The places of a data set of lmms-eval, which moved to another organisation in 2026."""
    return tuple(
        HubSource(f"{organisation}/{name}", config, split)
        for organisation in ("lmms-lab-encoder", "lmms-lab")
    )


# LLaVA-1.5 was evaluated with this instruction, and lmms-eval uses it for multiple choice.
_ANSWER_WITH_LETTER = "Answer with the option's letter from the given choices directly."
_OPTIONS = "{question}\n{options}\n" + _ANSWER_WITH_LETTER
_HINT_AND_OPTIONS = "{hint}\n" + _OPTIONS

_MMBENCH_COLUMNS = ("index", "question", "hint", "A", "B", "C", "D", "image")
_SEEDBENCH2PLUS_OPTIONS = ("choice_A", "choice_B", "choice_C", "choice_D")

# One picture, one question, up to four options. https://github.com/open-compass/MMBench
_MMBENCH = Benchmark(
    name="mmbench",
    template=_HINT_AND_OPTIONS,  # the wording of LLaVA-1.5
    subsets={
        split: (
            *_lmms_eval("MMBench", "en", split),
            HubSource("HuggingFaceM4/MMBench", None, {"dev": "validation"}.get(split, split)),
        )
        for split in ("dev", "test")
    },
    columns=_MMBENCH_COLUMNS,
    key="index",
    required=_MMBENCH_COLUMNS,
    # Every question is repeated with its options rotated ("CircularEval", for scoring).
    copies_from=1_000_000,
)

_ALL = (
    _MMBENCH,
    # The same questions in Chinese. Their tables are told by name: the columns are those above.
    replace(
        _MMBENCH,
        name="mmbench_cn",
        template="{hint}\n{question}\n{options}\n请直接回答选项字母。",  # the wording of LLaVA-1.5
        subsets={split: _lmms_eval("MMBench", "cn", split) for split in ("dev", "test")},
        file_names="mmbench(dev|test)?cn",
    ),
    # Is this object in the picture? Six yes-or-no questions a picture. The default subset is the
    # adversarial third: its absent objects are those that most often appear together with the
    # present ones. The official files, named .json, are JSON lines about pictures of COCO.
    # https://github.com/AoiDragon/POPE
    Benchmark(
        name="pope",
        template="{question}\nAnswer the question using a single word or phrase.",  # of lmms-eval
        subsets={
            **{
                third: _lmms_eval("POPE", "Full", third)
                for third in ("adversarial", "popular", "random")
            },
            "all": _lmms_eval("POPE", "default", "test"),
        },
        columns=("question_id", "question", "image"),
        key="question_id",
        group="category",  # a table of all three thirds numbers each from 1
        json_file=JsonFile(
            columns=("question_id", "image", "text"),
            image="image",
            question="text",
            key="question_id",
            folder="images",
            lines=True,
        ),
    ),
    # Questions that cannot be answered without the picture, with four options in the question.
    # https://github.com/MMStar-Benchmark/MMStar
    Benchmark(
        name="mmstar",
        # The wording of lmms-eval, which ends without a full stop.
        template="{question}\nAnswer with the option's letter from the given choices directly",
        subsets={"val": (HubSource("Lin-Chen/MMStar", None, "val"),)},
        # meta_info is not read. Without it, any table with a question and an image would be taken
        # for MMStar, and its options would be lost.
        columns=("index", "question", "image", "meta_info"),
        key="index",
        options_template=_HINT_AND_OPTIONS,  # the TSV of VLMEvalKit
    ),
    # Charts, maps and web pages full of text, four options. The published ids may repeat, so rows
    # are keyed by their content. https://github.com/AILab-CVC/SEED-Bench
    Benchmark(
        name="seedbench2plus",
        template=_OPTIONS,  # the wording of lmms-eval
        subsets={"test": (HubSource("doolayer/SEED-Bench-2-Plus", None, "test"),)},
        columns=("question_id", "question", *_SEEDBENCH2PLUS_OPTIONS, "image"),
        options=_SEEDBENCH2PLUS_OPTIONS,
        json_file=JsonFile(
            columns=("question", "data_id", *_SEEDBENCH2PLUS_OPTIONS), image="data_id"
        ),
    ),
    # Read what is written in the picture. Rows have no id.
    # https://github.com/Yuliang-Liu/MultimodalOCR
    Benchmark(
        name="ocrbench",
        template="{question}",  # it says by itself how to answer
        subsets={"test": (HubSource("echo840/OCRBench", None, "test"),)},
        columns=("dataset", "question", "question_type", "image"),
        json_file=JsonFile(
            columns=("question", "dataset_name", "image_path"),
            image="image_path",
            folder="OCRBench_Images",
        ),
    ),
    # School questions, two to five options, about half of them with a picture: the default subset
    # holds those. Rows have no id. https://github.com/lupantech/ScienceQA
    Benchmark(
        name="scienceqa",
        template="Context: {hint}\n" + _OPTIONS,  # the wording of lmms-eval
        subsets={
            "img": _lmms_eval("ScienceQA", "ScienceQA-IMG", "test"),
            "full": _lmms_eval("ScienceQA", "ScienceQA-FULL", "test"),
        },
        columns=("image", "question", "choices", "hint"),
        options=("choices",),
        text_only=True,
    ),
    # Diagrams of school books, four options. Rows have no id.
    # https://prior.allenai.org/projects/diagram-understanding
    Benchmark(
        name="ai2d",
        template=_OPTIONS,  # the wording of lmms-eval
        subsets={"test": _lmms_eval("ai2d", None, "test")},
        columns=("question", "options", "answer", "image"),
        options=("options",),
    ),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
