"""The lines that watch a training, by launcher: ``normprobe watch --snippet trl``."""

TRL = """
from normprobe import NormProbeCallback
from trl import SFTTrainer  # DPOTrainer, GRPOTrainer: likewise

trainer = SFTTrainer(model, args=args, train_dataset=data, callbacks=[NormProbeCallback(every=100)])
trainer.train()
"""

SWIFT = """
# watch.py: swift sft ... --external_plugins watch.py --callbacks normprobe
from normprobe import NormProbeCallback
from swift.callbacks import callbacks_map

callbacks_map["normprobe"] = NormProbeCallback
"""

AXOLOTL = """
# in the YAML file of the training
plugins:
  - normprobe.AxolotlPlugin
"""

LLAMAFACTORY = """
# train.py: python train.py config.yaml, in place of llamafactory-cli train config.yaml
from llamafactory.train.tuner import run_exp
from normprobe import NormProbeCallback

run_exp(callbacks=[NormProbeCallback(every=100)])
"""

LIGHTNING = """
from lightning.pytorch import Trainer
from normprobe import LightningCallback

trainer = Trainer(max_steps=1000, callbacks=[LightningCallback(every=100)])
trainer.fit(module, data)
"""

LOOP = """
import normprobe

with normprobe.watch(model, every=100) as watch:  # log=wandb.log, or a SummaryWriter
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print(watch.run().verdict)
"""

SNIPPETS = {
    "trl": TRL,
    "swift": SWIFT,
    "axolotl": AXOLOTL,
    "llamafactory": LLAMAFACTORY,
    "lightning": LIGHTNING,
    "loop": LOOP,
}
