"""Files of one's own, local copies of benchmarks, and which of these a file or folder holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby, starmap, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.benchmarks import BENCHMARKS, Benchmark
from normprobe.data.formats import (
    WRITE_LINES,
    Rows,
    is_saved_folder,
    json_entries,
    read_json,
    read_json_lines,
    read_lines,
    read_parquet,
    read_saved_folder,
    read_tsv,
)
from normprobe.data.images import read_image_file
from normprobe.data.media import Audio, Video, read_audio, read_video
from normprobe.data.published import (
    are_official,
    official_files,
    read_json_list,
    read_official,
    read_question_table,
)
from normprobe.data.question import QuestionSource, Recipe, json_content
from normprobe.data.referring import INSTANCES, is_referring, read_referent, read_referring
from normprobe.data.rows import BadRow, BadRows, Place, Row, printable, require_columns, text_cell
from normprobe.data.sample import MEDIA_MARKS, Answer, Turn, marks_fault
from normprobe.errors import NormprobeError
from normprobe.schema import AUDIO, IMAGE, VIDEO

if TYPE_CHECKING:
    from PIL import Image

TEXT, PROMPTS, IMAGES = "text", "prompts", "images"
PROMPT = "Describe the image."  # of every image where none is given: it has to fit each of them
SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jp2", ".webp", ".avif"),
    *(".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
}
#: What a file of a folder is.
_KINDS = {
    **dict.fromkeys(SUFFIXES, "image"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi"), "video"),
    **dict.fromkeys((".wav", ".flac", ".ogg"), "sound"),
}

_TEMPLATE = "{prompt}"
_FORMATS = ".csv, .tsv, .jsonl, .json, .parquet or .txt"
_TABLES = (".csv", ".tsv", ".parquet")
_JSON = (".jsonl", ".json")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")


def read_file(path: Path, bad: BadRows) -> QuestionSource:
    """Read a data file."""
    return _read_local([path], bad)


def read_folder(folder: Path, bad: BadRows, prompt: str | None = None) -> list[QuestionSource]:
    """Read the data files of a folder, a saved data set, or a folder of images."""
    if is_saved_folder(folder):
        return [
            _read_rows(rows, name or folder.name, {"path": str((folder / name).resolve())}, bad)
            for name, rows in read_saved_folder(folder)
        ]
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*_TABLES, *_JSON))
    if len(files) > 1:  # it belongs to another, which is read with it
        files = [path for path in files if path.name != INSTANCES]
    if files:
        return [_read_local(list(paths), bad) for _, paths in groupby(files, key=_table_name)]
    images = _read_images(folder, prompt)
    if not images.questions:
        raise NormprobeError(
            f"{folder}: no data file found; expected {_FORMATS}, or images",
            "point --data at the folder that holds the data files themselves",
        )
    return [images]


def _table_name(path: Path) -> str:
    """One name for the shards of a parquet table, as the hub stores them."""
    is_parquet = path.suffix.lower() == ".parquet"
    return _SHARD.sub("", path.stem) + path.suffix if is_parquet else path.name


def _read_local(paths: Sequence[Path], bad: BadRows) -> QuestionSource:
    path = paths[0]
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return read_text(path)
    where = {"path": str(path.resolve())} | ({"shards": len(paths)} if len(paths) > 1 else {})
    if suffix in _JSON:
        return _read_json(path, where, bad)
    if suffix not in _TABLES:
        if suffix in SUFFIXES:
            raise NormprobeError(
                f"{path}: expected a data file, received one picture",
                f"pass its folder, and --prompt if you like; or {WRITE_LINES}",
            )
        raise NormprobeError(f"{path}: expected {_FORMATS}", WRITE_LINES)
    rows = read_parquet(paths) if suffix == ".parquet" else read_tsv(path, bad)
    if suffix == ".csv" and "question" in rows.columns:  # benchmarks are published otherwise
        return _read_prompts(path, [_asked(row) for row in rows], where, bad)
    if "prompt" in rows.columns and "question" not in rows.columns:
        return _read_prompts(path, list(rows), where, bad)
    return _read_rows(rows, path.name, where, bad)


def _read_rows(rows: Rows, name: str, where: dict[str, Any], bad: BadRows) -> QuestionSource:
    return read_question_table(_benchmark_of(rows, name), rows, name, where, bad)


def _benchmark_of(rows: Rows, name: str) -> Benchmark:
    """The benchmark that a table holds, by its name or by its columns.

    TSVs of different benchmarks have the same columns, but their published names begin with that
    of the benchmark (SEEDBench2_Plus.tsv, AI2D_TEST.tsv). The hub's tables differ in their
    columns; of several benchmarks that fit, the one with the most columns is meant.
    """
    plain = re.sub(r"[^a-z0-9]", "", Path(name).stem.lower())
    named = {
        match.end(): benchmark
        for benchmark in BENCHMARKS.values()
        if (match := re.match(benchmark.file_names or benchmark.name, plain))
    }
    if named:
        return named[max(named)]  # MMBench's files and those of its Chinese part begin alike
    received = set(rows.columns)
    told_by_columns = [b for b in BENCHMARKS.values() if b.file_names is None]
    fitting = [b for b in told_by_columns if received.issuperset(b.columns)]
    if not fitting:
        nearest = min(told_by_columns, key=lambda b: len(set(b.columns) - received))
        require_columns(rows.columns, nearest.columns, rows.source)
    return max(fitting, key=lambda benchmark: len(benchmark.columns))


def _read_json(path: Path, where: dict[str, Any], bad: BadRows) -> QuestionSource:
    whole = read_json(path)
    if is_referring(whole):
        return read_referring(path, whole, where, bad)
    entries = json_entries(path, whole)
    rows = read_json_lines(path, bad) if entries is None else entries
    named = {name for row in rows for name in row.cells}
    if "question" in named and not are_official(named, lines=entries is None):
        rows = [_asked(row) for row in rows]
    elif named.isdisjoint({"prompt", *_SAID}):
        if entries is not None:
            return read_json_list(path, entries, where, bad)
        for benchmark, form in official_files(lines=True):
            if not named.isdisjoint(form.columns):
                return read_official(benchmark, form, path, rows, where, bad)
        require_columns(list(rows[0].cells), ["prompt", "image"], path)
    return _read_prompts(path, rows, where, bad)


def _asked(row: Row) -> Row:
    """A row whose prompt is called its question."""
    named = "question" in row.cells and "prompt" not in row.cells
    return Row(row.place, {**row.cells, "prompt": row.cells["question"]}) if named else row


def read_text(path: Path) -> QuestionSource:
    """Read prompts without images, one a line; blank lines are skipped."""
    recipe = Recipe(
        TEXT,
        _TEMPLATE,
        key=lambda row: row.text("prompt").encode(),
        prompt=lambda row: row.text("prompt"),
        has_image=lambda row: False,
    )
    return recipe.source(read_lines(path), path.name, {"path": str(path.resolve())}, BadRows())


def _read_prompts(
    path: Path, lines: Sequence[Row], where: dict[str, Any], bad: BadRows
) -> QuestionSource:
    """Read JSON lines, or a table, with ``prompt`` and ``image``, or a list ``images``.

    ``video`` and ``audio``, or lists, likewise; with ``fps`` of frames, and ``rate`` of an array.
    ``messages``, or ``conversations``, in place of ``prompt`` are several turns, whose parts may
    name the files.
    """
    talks = any(not _SAID.isdisjoint(line.cells) for line in lines)
    recipe = Recipe(
        PROMPTS,
        _TEMPLATE,
        key=lambda row: row.key("id") if "id" in row.cells else json_content(row),
        prompt=lambda row: _turns(row)[-1].user,
        earlier=lambda row: _turns(row)[:-1],
        images=partial(_named_images, path.parent),
        others=partial(_named_others, path.parent),
        referent=read_referent,
        answer=partial(_own_answer, empty_cells=path.suffix.lower() in _TABLES),
        has_image=_may_show,
        columns=() if talks else ("prompt",),
        key_column="id",
    )
    return recipe.source(lines, path.name, where, bad)


def _may_show(row: Row) -> bool:
    """Whether a row names an image or a video; True, too, where it is bad."""
    try:
        return any(_names(row, kind)[1] for kind in (IMAGE, VIDEO))
    except BadRow:
        return True


def _named_images(folder: Path, row: Row, rows: Mapping[str, Row]) -> tuple[Image.Image, ...]:
    where, names = _names(row, IMAGE)
    counts = [len(names), *(len(_names(row, kind)[1]) for kind in (VIDEO, AUDIO))]
    if fault := marks_fault("".join(turn.user for turn in _turns(row)), *counts):
        raise BadRow(_messages(row)[0], fault, "mark each image in the prompt, or none of them")
    return tuple(read_image_file(text_cell(name, where), folder, where) for name in names)


def _named_others(folder: Path, row: Row) -> tuple[tuple[Video, ...], tuple[Audio, ...]]:
    """The videos and the sounds of a row."""
    (at, videos), (of, audios) = (_names(row, kind) for kind in (VIDEO, AUDIO))
    fps, rate = (_number(row.cells.get(name)) for name in ("fps", "rate"))
    return (
        tuple(read_video(name, folder, at, fps) for name in videos),
        tuple(read_audio(name, folder, of, rate) for name in audios),
    )


def _number(cell: Any) -> Any:
    """A cell of a TSV as the number that it says; any other as it is."""
    digits = isinstance(cell, str) and re.fullmatch(r"\d+(\.\d+)?", cell)
    return (float(cell) if "." in cell else int(cell)) if digits else cell or None


def _own_answer(row: Row, *, empty_cells: bool) -> Answer | None:
    """What a row says in ``answer``, and in ``options`` where these are a list.

    ``empty_cells``: as in a table, where a row without an answer has an empty cell.
    """
    text, options = row.cells.get("answer"), row.cells.get("options")
    if isinstance(text, str) and not text.strip() and not (empty_cells and text == ""):
        raise BadRow(
            row.place.at("answer"),
            f"expected an answer, received {printable(text)}",
            "write the answer, or leave it out where none is known",
        )
    if "answer" not in row.cells:
        text = _turns(row)[-1].reply
    if not isinstance(text, str | int | float) or text == "":
        return None
    named = tuple(map(str, options)) if isinstance(options, list) else ()
    return Answer(str(text).strip(), named)


#: Cells that hold a conversation: of chats, and as LLaVA's training data have them.
_SAID = {"messages", "conversations"}
_ROLES = {"human": "user", "gpt": "assistant"}
#: What changes a prompt elsewhere and is not read here: of a row, and of a message.
_UNREAD_OF_ROWS = {
    "system": "remove it, and pass --system TEXT, which all samples get",
    **dict.fromkeys(("tools", "functions"), "leave the row out: tools are not read"),
    **dict.fromkeys(
        ("history", "documents", "chat_template_kwargs"),
        "leave the row out, or put what it says into messages",
    ),
}
_UNREAD = {
    **dict.fromkeys(("tool_calls", "function_call"), _UNREAD_OF_ROWS["tools"]),
    "reasoning_content": "put it into the content, or remove it",
    **dict.fromkeys(
        ("media", *(kind + end for kind in MEDIA_MARKS for end in ("", "s"))),
        "name its files in parts of the message, or beside the messages",
    ),
}
#: Of a message: ``text`` and the text, or a key of ``MEDIA_MARKS`` and what names the file.
_Part = tuple[str, Any]


def _turns(row: Row) -> tuple[Turn, ...]:
    """The turns of a row, the last of which may lack a reply; a prompt is the only turn.

    Parts that are no text stand as marks.
    """
    where, messages = _messages(row)
    said = ([MEDIA_MARKS.get(kind) or text for kind, text in parts] for parts in messages)
    texts = [text_cell("".join(parts), where) for parts in said]
    return tuple(starmap(Turn, zip_longest(texts[::2], texts[1::2], fillvalue="")))


def _messages(row: Row) -> tuple[Place, list[list[_Part]]]:
    """The cell with the prompt of a row, and what user and assistant say there in turns."""
    _refuse(row.cells, _UNREAD_OF_ROWS, row.place)
    held = [name for name in ("prompt", *sorted(_SAID)) if row.cells.get(name) not in (None, "")]
    if len(held) > 1:
        fault = f"expected one of prompt and messages, received {' and '.join(held)}"
        raise BadRow(row.place.at(held[1]), fault, "keep the one that is to be measured")
    if held in ([], ["prompt"]):
        return row.place.at("prompt"), [[("text", row.text("prompt"))]]
    where, cell = row.place.at(held[0]), row.cells[held[0]]
    listed = cell if isinstance(cell, list) else []
    messages = [message if isinstance(message, dict) else {} for message in listed]
    roles = [str(message.get("role", message.get("from"))) for message in messages]
    roles = [_ROLES.get(role, role) for role in roles]
    if not roles or roles != (["user", "assistant"] * len(roles))[: len(roles)]:
        received = ", ".join(roles) if roles else repr(cell)
        raise BadRow(
            where,
            f"expected messages of user and assistant in turns, received {printable(received)}",
            "begin with the user; what the system says is passed with --system TEXT, which all "
            "samples get; tools are not read",
        )
    said = [_parts(message, where) for message in messages]
    if others := [kind for parts in said[1::2] for kind, _ in parts if kind != "text"]:
        fault = f"expected text of the assistant, received a part of type {others[0]}"
        raise BadRow(where, fault, "leave the row out")
    return where, said


def _refuse(cells: Mapping[str, Any], unread: Mapping[str, str], where: Place) -> None:
    """Refuse what the prompt would lack without a word."""
    for name in filter(cells.get, unread):
        place = where if where.column else where.at(name)
        raise BadRow(place, f"expected no {name}, received {printable(cells[name])}", unread[name])


def _parts(message: Mapping[str, Any], where: Place) -> list[_Part]:
    _refuse(message, _UNREAD, where)
    said = message.get("content", message.get("value"))
    if not isinstance(said, list):
        return [("text", text_cell(said, where))]
    return [_part(part, where) for part in said]


def _part(part: Any, where: Place) -> _Part:
    """With None for the file where the part names none."""
    given = part.items() if isinstance(part, dict) else ()
    cells = {name: cell for name, cell in given if cell not in (None, "")}
    kind = cells.pop("type", next(iter(cells), None))
    names = [kind] if kind == "text" else [kind, "path", "url"]
    known = kind in ("text", *MEDIA_MARKS) and all(name in names for name in cells)
    if not known or len(cells) > 1:
        told = f"type {printable(kind)} with {printable(', '.join(cells))}"
        raise BadRow(
            where,
            "expected parts of a text each, or of one image, video or audio, received "
            + (printable(part) if kind is None else told),
            'write {"type": "text", "text": TEXT} or {"type": "image", "image": FILE}, no more',
        )
    content = next(iter(cells.values()), "" if kind == "text" else None)
    if kind == "text" and not isinstance(content, str):
        text_cell(content, where)
    return kind, content


def _names(row: Row, kind: str) -> tuple[Place, list[Any]]:
    """The cell that names the images of a row, or its videos or sounds, and the names."""
    one, several = row.cells.get(kind), row.cells.get(f"{kind}s")
    where, names = row.place.at(kind), [] if one in (None, "") else [one]
    if several is not None:
        where = row.place.at(f"{kind}s")
        if names or not isinstance(several, list):
            received = f"{kind} as well" if isinstance(several, list) else printable(several)
            raise BadRow(
                where,
                f"expected a list of {kind} files and no other {kind}, received {received}",
                f"write either one {kind} or a list of {kind}s",
            )
        names = several
    within, messages = _messages(row)
    parts = [content for said in messages for each, content in said if each == kind]
    named = [name for name in parts if name is not None]
    if names and named and names != named:
        raise BadRow(
            where,
            f"expected the {kind}s that {within.column} name, {printable(named)}, received "
            f"{printable(names)}",
            "name them in one of the two places",
        )
    if len(named) < len(parts) and (named or not names):
        fault = f"expected a file in each {kind} part, received {len(named)} of {len(parts)}"
        raise BadRow(within, fault, f"name it, or all of them in {kind}s beside {within.column}")
    return (within, named) if named else (where, names)


def _read_images(folder: Path, prompt: str | None) -> QuestionSource:
    """Read the images, videos and sounds of a folder and the folders below it, sorted by name."""
    if fault := marks_fault(prompt or "", 1):
        raise NormprobeError(f"--prompt: {fault}", "mark the image once, or leave the mark out")
    names = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in _KINDS and not path.is_dir()
    )

    def read(row: Row, kind: str, reader: Callable[[str, Path, Place], Any]) -> tuple[Any, ...]:
        own = row.cells["kind"] == kind
        return (reader(str(row.cells["name"]), folder, row.place),) if own else ()

    recipe = Recipe(
        IMAGES,
        PROMPT if prompt is None else prompt,
        key=lambda row: str(row.cells["key"]),
        prompt=lambda row: prompt or PROMPT.replace("image", row.cells["kind"]),
        images=lambda row, rows: read(row, "image", read_image_file),
        others=lambda row: (read(row, "video", read_video), read(row, "sound", read_audio)),
        has_image=lambda row: row.cells["kind"] != "sound",
    )
    # A file name may hold bytes that are not valid UTF-8.
    keys = [name.as_posix().encode(errors="backslashreplace").decode() for name in names]
    rows = [
        Row(
            Place(str(folder / key)),
            {"key": key, "name": name, "kind": _KINDS[name.suffix.lower()]},
        )
        for key, name in zip(keys, names, strict=True)
    ]
    return recipe.source(rows, folder.name, {"path": str(folder.resolve())}, BadRows())
