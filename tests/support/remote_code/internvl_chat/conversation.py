from copy import deepcopy
from dataclasses import dataclass, field


@dataclass
class Conversation:
    system_template: str
    system_message: str
    roles: tuple
    sep: str
    messages: list = field(default_factory=list)

    def get_prompt(self):
        text = self.system_template.format(system_message=self.system_message) + self.sep
        for role, message in self.messages:
            text += role + (message + self.sep if message else "")
        return text

    def append_message(self, role, message):
        self.messages.append([role, message])

    def copy(self):
        return deepcopy(self)


TEMPLATES = {
    "tiny": Conversation(
        "<|im_start|>system\n{system_message}",
        "You are tiny.",
        ("<|im_start|>user\n", "<|im_start|>assistant\n"),
        "<|im_end|>\n",
    )
}


def get_conv_template(name):
    return TEMPLATES[name].copy()
