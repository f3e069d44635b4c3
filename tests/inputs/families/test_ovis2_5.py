"""Ovis2.5: code that reads its own folder while it is built."""

from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.load.plan import plan_loading


def test_no_more_is_read_than_is_needed(repository):
    checkpoint = open_checkpoint(str(repository("ovis2_5")), trust_remote_code=True)
    plan = plan_loading(checkpoint, build_on_meta(checkpoint), ["vte.weight"])
    assert plan.because == ""
    model = load_model(checkpoint, plan, device="cpu")
    assert model.vte.weight.is_meta
    assert model.name_or_path == model.config.name_or_path == str(repository("ovis2_5"))
