"""Attention weights as a model itself returns them when it attends eagerly."""

import copy

import torch


@torch.no_grad()
def eager_weights(model, inputs, output="attentions"):
    """Of each layer ``[heads, queries, keys]`` in float64, from a copy that runs eagerly."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    layers = getattr(eager(**inputs, output_attentions=True), output)
    return [weights[0].double().numpy() for weights in layers]
