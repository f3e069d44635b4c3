"""The model of a script, and what the script asked it: measured as the script runs it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

from torch import nn

from normprobe.errors import NormprobeError
from normprobe.extensions.families.script_prompt import UNSEEN, ScriptPrompt, prompt_of
from normprobe.extensions.families.script_run import imports_look_in, run_script
from normprobe.failures import is_native, missing_packages
from normprobe.inputs.inputs_file import InputsFile, stand_in
from normprobe.inputs.on_device import AS_GIVEN
from normprobe.model.class_doubts import attention_doubt
from normprobe.model.find.parts import Parts
from normprobe.model.imported_code import imports_that_may_fail, run_setup
from normprobe.model.load.required_tensors import Needs
from normprobe.model.measured_model import MeasuredModel
from normprobe.options import Loading, flag
from normprobe.remote_code_bridges import foreign_code
from normprobe.runs.facts import model_facts
from normprobe.runs.model_source import MemorySource, tell_bridges

#: A package of kernels that stands in for itself, in plain PyTorch, where code is bridged.
_KERNELS = "flash_attn"

#: Tokens that code may add to a tokenizer, and no rows to the table of words (OMG-LLaVA).
_ADDED = 16

#: Of a model that is not loaded yet.
_UNKNOWN = model_facts(None)

#: Which of the times that the model was asked a batch is of.
_NUMBER = "asked"

#: What the script says, and options do not.
_OF_THE_SCRIPT = ("revision", "device", "dtype", "attn_implementation", "system")


class ScriptSource(MemorySource):
    """A model that a script loads and asks. The script runs when the model is first needed."""

    brings_inputs = True

    def __init__(
        self, typed: str, loading: Loading, *, inputs_file: InputsFile, special_token_ids: Any
    ) -> None:
        usual = Loading()
        path, *self._arguments = shlex.split(typed)
        for name in _OF_THE_SCRIPT:
            if getattr(loading, name) != getattr(usual, name):
                raise NormprobeError(
                    f"{flag(name)}: a script loads and asks its model itself",
                    f"leave it out, and say it in {path}",
                )
        self._path, self.argument = Path(path), shlex.quote(typed)
        self.loading, self._given = loading, (inputs_file, special_token_ids)
        self.lock = RLock()
        self._prompts: list[ScriptPrompt] = []
        self._times = 0  # that were asked for
        self._layers = ""  # the dotted name of what holds those that the script ran

    def batches(self, times: int | None) -> Sequence[Mapping[str, Any]]:
        """What the model is asked: once, or the first so many times.

        Raises:
            NormprobeError: the script fails, or asks no model.
        """
        self._run(times or 1)
        return [prompt.batch for prompt in self._prompts[: times or 1]]

    def _run(self, times: int = 1) -> None:
        if times <= self._times:
            return
        inputs_file, special = self._given
        bridges: list[str] = []
        trusted = self.loading.trust_remote_code
        if inputs_file.setup is not None:
            imports_look_in(self._path.absolute().parent)
            with foreign_code(trusted, bridges):
                run_setup(inputs_file.setup, inputs_file, {}, trusted)
        named = {**inputs_file.parts, **self.loading.parts}.get("decoder_layers", "")
        how: dict[str, Any] = {"layers": named, "bridged": trusted, "bridges": bridges}
        try:
            with imports_that_may_fail():
                ran = run_script(self._path, self._arguments, times, **how)
        except NormprobeError as error:
            if not trusted or missing_packages(error.__cause__ or error) != [_KERNELS]:
                raise
            stand_in(_KERNELS, tried=False)
            ran = run_script(self._path, self._arguments, times, **how)
            bridges.append(_KERNELS)
        self._times, self._script = times, ran.script
        first, *others = map(prompt_of, ran.asked)
        same = [first, *(each for each in others if each.model is first.model)]
        if all(each.plain is not None for each in same):
            same = [replace(each, batch=each.plain or {}) for each in same]
        elif inputs_file.forward is None:
            same = [
                replace(each, batch={**each.batch, _NUMBER: number})
                for number, each in enumerate(same)
            ]

            def forward(model: nn.Module, **given: Any) -> Any:
                return same[given.pop(_NUMBER)].forward(model, **given)

            vars(forward)[AS_GIVEN] = True
            inputs_file = replace(inputs_file, forward=forward)
        self._prompts = same
        names = {module: name for name, module in first.model.named_modules()}
        self._layers = names.get(ran.asked[0].layers[0], "").rpartition(".")[0]
        state = ran.asked[0].state
        width = None if state is None else state.shape[-1]
        tokenizer = _tokenizer(ran.tokenizers, first.model, width)
        told: dict[str, Any] = {"special_token_ids": special, "inputs_file": inputs_file}
        super().__init__(first.model, tokenizer, self.loading, **told)
        said = {each.doubt: None for each in same}  # of any prompt
        if "image_token_ids" in self._named:
            said = {each: None for each in said if not each.startswith(UNSEEN)}
        if not is_native(first.model):
            said[attention_doubt(first.model)] = None
        self.bridges, self.doubt = bridges, "; ".join(filter(None, said))
        tell_bridges(str(self._path), bridges)

    def measured(self, needs: Sequence[Needs], *_: Any, **how: Any) -> MeasuredModel:
        """The model where the script put it, its parts found by what it is asked."""
        self._run()
        return super().measured(needs, [self._prompts[0].batch], **how)

    def _find(self, *example: Any, **how: Any) -> tuple[Parts, str]:
        """Where neither structure nor a trace tells the layers, they are those that the script ran.

        As of a trainer around its model, which has no config (MiniGPT-5).
        """
        try:
            return super()._find(*example, **how)
        except NormprobeError:
            if not self._layers or "decoder_layers" in self._named:
                raise
        self._named = {**self._named, "decoder_layers": self._layers}
        return super()._find(*example, **how)

    @property
    def facts(self) -> dict[str, Any]:
        """Its name is the script's; its type is known once that has run."""
        known = super().facts if self._times else dict[str, Any]()
        told = {"model": self._path.stem, "inputs_file": self._given[0].record}
        return {**_UNKNOWN, **known, **told}


def _tokenizer(used: Sequence[Any], model: nn.Module, width: int | None) -> Any:
    """The tokenizer nearest in size to the largest table as wide as the decoder; None: none is."""
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    rows = max((len(t.weight) for t in tables if width in (None, t.embedding_dim)), default=0)
    fitting = [each for each in used if rows < 4 * len(each) <= 4 * (rows + _ADDED)]
    return min(reversed(fitting), key=lambda each: abs(rows - len(each)), default=None)
