"""``ask`` of an inputs file that is begun: how the model's own code is called to answer.

Signature and README of a checkpoint tell it; what neither tells is a guess.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from torch import nn

from normprobe.inputs.chat import is_multimodal
from normprobe.inputs.inputs_file import GUESS, InputsFile
from normprobe.model.class_doubts import own_methods
from normprobe.remote_code_bridges.noted import source_of

#: Methods that answer a prompt about a picture, by how often code has them.
_ANSWERS = ("chat", "answer_question", "ask_question", "mm_generate", "query", "infer")
#: Those of classes that write no text, and compare a picture with words (GME, jina-reranker).
_COMPARES = ("get_fused_embeddings", "compute_score")
#: What is no question although it takes a picture and words: steps of a forward, and training.
_STEPS = re.compile(
    r"^(_|forward|generate$|prepare_inputs|encode_|embed|get_|merge|load|train|eval)"
)
_OF_STEPS = re.compile(
    r"embed|feature|(attention|padding|image)_mask|^input_ids$|^labels?$|^pixel_values|^past_(key|val)"
)

#: What they take, by its name.
_TOKENIZER = re.compile(r"^tokenizer$")
_PROCESSOR = re.compile(r"^(?!logits).*(processor$|transform$)")
_PICTURE = re.compile(r"^(?!.*(token|size|num|len|start|end)).*(image|img|pixel|picture|photo)")
_WORDS = re.compile(r"^(question|query|prompt|text|instruction|request|user_prompt|input_text)s?$")
_OF_A_PROMPT = re.compile(r"instruction|question|query|prompt|indication|^texts?$")
_PAIRS = re.compile(r"^pairs$")  # of a query and what is ranked by it
_MESSAGES = re.compile(r"^(messages?|msgs|conversations?)$")
_SETTINGS = re.compile(r"^gen\w*_(config|kwargs|args)$")

#: A function of a README that makes pixels of a picture.
_MAKES_PIXELS = re.compile(r"^(load|process|preprocess|prepare)_?(an_)?(image|img|picture|pixel)s?")
#: Names that a file has for other things.
_TAKEN = {*InputsFile.__dataclass_fields__, "ask"}
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

_ASK = """
def ask(model, processor, sample):
    {before}return model.{method}(  # {guess}: what it is given
        {arguments},
    )

"""
_TAKEN_APART = """from normprobe.inputs.processor import tokenizer_of

    tokenizer = tokenizer_of(processor)
    """
_IMPORTED = """from normprobe.extensions.families.asked import picture_file

    """
_ONCE = """
def prepare(model, processor):
    from normprobe.extensions.families.asked import asked_once

    {first}asked_once(model, processor, ask)  # what {method}() sets in the model

"""


def answering(model: nn.Module) -> str:
    """The name of the method that answers about a picture; "" where there is none."""
    for method in (*_ANSWERS, *_COMPARES):
        with suppress(TypeError, ValueError):
            takes = signature(getattr(model, method, None) or 0).parameters  # type: ignore[arg-type]
            seen = (_PICTURE, _MESSAGES, _PAIRS)
            if any(kind.search(each) for each in takes for kind in seen):
                return method
    return next(_other_answers(model), "")


def _other_answers(model: nn.Module) -> Iterator[str]:
    """Further methods of its own classes that take a picture and words."""
    for name, takes in own_methods(model):
        seen = any(_PICTURE.search(each) for each in takes)
        told = any(_WORDS.search(each) or _MESSAGES.search(each) for each in takes)
        steps = _STEPS.search(name) or any(_OF_STEPS.search(each) for each in takes)
        if seen and told and not steps:
            yield name


def compares(model: nn.Module) -> bool:
    """Whether a class compares a picture with words, and writes other prompts than a chat's."""
    return answering(model) in _COMPARES


def ask_text(model: nn.Module, has_look: bool, readme: Path | None) -> str:
    """``ask``, with what of the README it needs; "" where no method answers about a picture."""
    if not (method := answering(model)):
        return ""
    text = readme.read_text(encoding="utf-8", errors="ignore") if readme else ""
    blocks = _PYTHON.findall(text)
    of_readme, makes = _of_readme(blocks)
    takes = signature(getattr(model, method)).parameters
    answers = source_of(getattr(model, method))
    pictured = any(_PICTURE.search(name) for name in takes)
    look = "processor.look" if has_look else "processor"
    pixels = makes or f'{look}(sample.image, return_tensors="pt").pixel_values'
    given = []
    for name, takes_it in takes.items():
        if takes_it.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            continue
        needed = takes_it.default is Parameter.empty
        if _TOKENIZER.search(name):
            value = "tokenizer"
        elif _PROCESSOR.search(name):
            value = look
        elif _PICTURE.search(name):
            value = pixels if "pixel" in name else _picture(name, takes_it)
            value = f"sample.image and {value}"
        elif _WORDS.search(name):
            mark = _mark_before(name, answers, blocks)
            words = f'"{mark}" * len(sample.images) + sample.prompt' if mark else "sample.prompt"
            value = f"[{words}]" if name.endswith("s") else words
        elif _PAIRS.search(name):
            value = "[[sample.prompt, sample.image or '']]"
        elif name == "doc_type":
            value = '"image" if sample.image else "text"'
        elif _MESSAGES.search(name):
            told = '{"type": "text", "text": sample.prompt}'
            seen = '{"type": "image", "image": sample.image}'
            content = "sample.prompt" if pictured else f"[{seen}, {told}]"
            value = f'[{{"role": "user", "content": {content}}}]'
        elif _SETTINGS.search(name):
            value = '{"max_new_tokens": 1}'
        elif needed:
            value = "None"
        else:
            continue
        given.append(f"{name}={value}")
    used = of_readme if makes and makes in " ".join(given) else ""
    arguments = ",\n        ".join(given)
    before = _IMPORTED if "picture_file(" in arguments else ""
    before += _TAKEN_APART if "=tokenizer" in arguments else ""
    return used + _ASK.format(method=method, before=before, arguments=arguments, guess=GUESS)


def called_by_names(processor: Any) -> list[str]:
    """What a processor of its own code is called with, by its names; [] where it takes no picture.

    A guess: it made nothing as processors are called (CXRMate-2).
    """
    if not is_multimodal(processor) or type(processor).__module__.startswith("transformers."):
        return []
    takes = [
        name
        for name, each in signature(processor.__call__).parameters.items()
        if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]
    picture = next((name for name in takes if _PICTURE.search(name)), None)
    words = next((name for name in takes if _OF_A_PROMPT.search(name)), None)
    if picture is None:
        return []
    of_words = [f"{words}=sample.prompt"] if words else []
    return [f"{picture}=[sample.image]", *of_words, 'return_tensors="pt"']


def once_text(model: nn.Module, first: str) -> str:
    """``prepare`` that asks once where what answers sets something in the model; else ``first``."""
    method = answering(model)
    written = source_of(getattr(model, method, None))
    own = {name for name, _ in own_methods(model)} - {"forward", "generate"}
    for name in own & {*re.findall(r"self\.(\w+)\(", written)}:  # what it calls for it
        written += source_of(getattr(model, name))
    if re.search(r"^\s+self\.\w+ = ", written, re.MULTILINE):
        body = first.partition("processor):\n    ")[2].rstrip()
        return _ONCE.format(method=method, first=f"{body}\n    " if body else "")
    return first


def _picture(name: str, takes: Parameter) -> str:
    value = "picture_file(sample.image)" if re.search(r"file|path", name) else "sample.image"
    several = name.endswith("s") or isinstance(takes.default, list)
    return f"[{value}]" if several else value


def _mark_before(question: str, answers: str, blocks: Sequence[str]) -> str:
    """What stands for a picture before a question, as Python writes it; "": the method adds it.

    As README.md has it, else where the code of the method looks for it (EarthMind). ``question``:
    what the method calls it. ``blocks``: of Python, of README.md.
    """
    if told := re.search(r"""["'](<image>(\\n)?)(?=[^"'])""", "".join(blocks)):
        return told[1]
    adds = re.search(rf"""<image>(\\n)?["'] (not in|\+) {question}\b""", answers)
    return "" if adds or "<image>" not in answers else "<image>"


def _of_readme(blocks: Sequence[str]) -> tuple[str, str]:
    """What README.md defines to make pixels, and a call of it for the picture of a sample.

    Of its blocks of Python the functions, with imports and constants that they name; none where
    one names what only a run of the blocks makes. Of several that make pixels it is the one that
    the blocks call, with the numbers that they pass.
    """
    defined, called = dict[str, ast.stmt](), dict[str, ast.Call]()
    for block in blocks:
        with suppress(SyntaxError, ValueError, RecursionError):
            for node in ast.parse(block).body:
                defined |= {name: node for name in _names(node) if name not in defined}
                called = {**_calls(node), **called}
    for name, node in sorted(defined.items(), key=lambda item: item[0] not in called):
        if isinstance(node, ast.FunctionDef) and _MAKES_PIXELS.search(name) and node.args.args:
            first = node.args.args[0].arg
            picture = (
                "picture_file(sample.image)" if re.search("file|path", first) else "sample.image"
            )
            source = "\n\n".join(ast.unparse(each) for each in _needed(node, defined))
            clash = {name for each in _needed(node, defined) for name in _names(each)} & _TAKEN
            passed = [picture, *_literals(called[name])] if name in called else [picture]
            return ("", "") if clash else (f"\n{source}\n\n", f"{name}({', '.join(passed)})")
    return "", ""


def _calls(node: ast.stmt) -> dict[str, ast.Call]:
    """Calls of functions by their bare names in a statement that runs; the first of each."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {}
    found = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return {each.func.id: each for each in reversed(found) if isinstance(each.func, ast.Name)}


def _literals(call: ast.Call) -> Iterator[str]:
    """What a call passes beside the picture, as far as the text alone says it."""
    for named in call.keywords:
        with suppress(ValueError):
            ast.literal_eval(named.value)
            if named.arg is not None:
                yield f"{named.arg}={ast.unparse(named.value)}"


def _names(node: ast.stmt) -> Iterator[str]:
    """What a statement of a README defines without running anything."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
    elif isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        with suppress(ValueError):
            ast.literal_eval(node.value)
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))


def _needed(node: ast.stmt, defined: dict[str, ast.stmt]) -> list[ast.stmt]:
    """A definition behind all that it names, in the order of the README."""
    needed, waiting = {id(node): node}, [node]
    while waiting:
        for inner in ast.walk(waiting.pop()):
            found = defined.get(inner.id) if isinstance(inner, ast.Name) else None
            if found is not None and id(found) not in needed:
                needed[id(found)] = found
                waiting.append(found)
    return [each for each in dict.fromkeys(defined.values()) if id(each) in needed]
