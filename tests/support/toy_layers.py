"""Hand-made decoder layers: each is one way to put attention, MLP, norms and sums together."""

import torch
from torch import nn
from torch.nn.functional import dropout

HIDDEN = 16


class Attention(nn.Module):
    """Mixes tokens. Its query and key norms are as wide as the residual, as in OLMo-2."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.query_norm, self.key_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, hidden_states, **_):
        queries = self.query_norm(self.query(hidden_states))
        keys = self.key_norm(self.key(hidden_states))
        weights = (queries @ keys.mT).softmax(-1)
        return self.out(weights @ self.value(hidden_states)), weights


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x):
        return self.down(self.gate(x).sigmoid() * self.up(x))


class Layer(nn.Module):
    """The parts of a layer; each subclass is one way to put them together."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.third, self.fourth = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def attend(self, x):
        return self.attention(hidden_states=x)[0]


class Pre(Layer):
    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.mlp(self.second(x))


class PreInPlace(Layer):
    def forward(self, x):
        x += self.attend(self.first(x))
        written = self.mlp(self.second(x))
        written += x
        return written


class PreThroughViews(Layer):
    def forward(self, x):
        rows = x.view(-1, HIDDEN)
        attended = self.attend(self.first(rows).unflatten(0, x.shape[:2])).flatten(0, 1)
        rows.add_(attended)  # writes into x
        return x + self.mlp(self.second(x.transpose(0, 1))).transpose(0, 1)


class PreWithDropout(Layer):
    def forward(self, x):
        x = x + dropout(self.attend(self.first(x)), 0.5, training=self.training)
        x, _ = torch.native_dropout(dropout(x, 0.1), 0.1, True)  # the latter as fused on GPUs
        return x + dropout(self.mlp(self.second(x)), 0.5)


class PreWithMultiplier(Layer):
    """Granite."""

    def forward(self, x):
        x = (x + 0.25 * self.attend(self.first(x))) / 2
        return x.clone() + self.mlp(self.second(x)) * 0.25


class PreWithScaledResidual(Layer):
    """Gemma 4 scales the whole residual, in place; here by zero."""

    def forward(self, x):
        x = x + self.attend(self.first(x))
        x = x + self.mlp(self.second(x))
        x *= torch.zeros(1, dtype=x.dtype, device=x.device)
        return x, None


class PreInFloat(Layer):
    """Mamba keeps the residual in float32."""

    def forward(self, x):
        residual = x.float()
        residual = residual + self.attend(self.first(residual.to(x.dtype)))
        return (residual + self.mlp(self.second(residual.to(x.dtype)))).to(x.dtype)


class PreClosedGate(Layer):
    """A closed gate: by value, the residual that leaves is the one that entered."""

    def forward(self, x):
        x = x + torch.zeros_like(x) * self.attend(self.first(x))
        return x + 0.0 * self.mlp(self.second(x))


class PreSingleBranch(Layer):
    def forward(self, x):
        return x + self.mlp(self.first(x))


class PreNested(nn.Module):
    """T5 keeps norm, branch and sum of each half in a module of its own."""

    class Half(nn.Module):
        def __init__(self, branch):
            super().__init__()
            self.branch, self.norm = branch, nn.RMSNorm(HIDDEN)

        def forward(self, x):
            return x + self.branch(self.norm(x))

    def __init__(self):
        super().__init__()
        self.halves = nn.ModuleList([self.Half(Mlp()), self.Half(Mlp())])

    def forward(self, x):
        for half in self.halves:
            x = half(x).clamp(-1e4, 1e4)
        return x


class Parallel(Layer):
    """Cohere."""

    def forward(self, x):
        normed = self.first(x)
        return x + self.attend(normed) + self.mlp(normed)


class ParallelTwoNorms(Layer):
    """GPT-NeoX; the branches are summed first, as in GPT-J."""

    def forward(self, x):
        return self.attend(self.first(x)) + self.mlp(self.second(x)) + x


class BranchPost(Layer):
    """OLMo-2."""

    def forward(self, x):
        x = x + self.first(self.attend(x))
        return x + self.second(self.mlp(x))


class BranchPostScaled(Layer):
    def forward(self, x):
        x = x + 0.5 * dropout(self.third(self.first(self.attend(x))), 0.5)
        return self.fourth(self.second(self.mlp(x))).mul_(0.5).add_(x)


class Sandwich(Layer):
    """GLM-4 and Gemma 2."""

    def forward(self, x):
        x = x + self.second(self.attend(self.first(x)))
        return x + self.fourth(self.mlp(self.third(x)))


class HalfSandwich(Layer):
    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.third(self.mlp(self.second(x)))


class ParallelSandwich(Layer):
    def forward(self, x):
        normed = self.first(x)
        return x + (self.second(self.attend(normed)) + self.third(self.mlp(normed)))


class Post(Layer):
    """BART."""

    def forward(self, x):
        x = self.first(x + self.attend(x))
        return self.second(x + self.mlp(x))


class PostNested(Layer):
    """BERT keeps the sum and the norm in a module that reads branch and residual."""

    class Close(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.LayerNorm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)

        def forward(self, branch, residual):
            return self.LayerNorm(dropout(self.dense(branch), 0.1) + residual)

    def __init__(self):
        super().__init__()
        self.close_attention, self.close_mlp = self.Close(), self.Close()

    def forward(self, x):
        x = self.close_attention(self.attend(x), x)
        return (self.close_mlp(self.mlp(x), x),)


class Streams(Layer):
    """Hyper-connections: four streams, read as one and written as one."""

    def forward(self, x):
        return x + self.mlp(self.first(x.mean(0))) * torch.ones(4, 1, 1, 1).to(x)


class JoinedStreams(nn.Module):
    """Two streams in the last axis, under one norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(2 * HIDDEN), Mlp()

    def forward(self, x):
        written = self.mlp(self.norm(x).unflatten(-1, (2, HIDDEN)).mean(-2))
        return x + written.repeat(1, 1, 2)


class EarlierStates(Layer):
    """Inkling attends to the states of earlier layers."""

    def forward(self, x, states):
        return x + self.mlp(self.first(states.mean(-2) + x))


class NormedResidual(Layer):
    """BLOOM can add the branch to the normed residual: none of the known placements."""

    def forward(self, x):
        normed = self.first(x)
        return normed + self.attend(normed)


class NormedAtItsEnd(Layer):
    """Opened by a norm, as in pre-norm, and the residual is normalised, as in post-norm."""

    def forward(self, x):
        return self.second(x + self.attend(self.first(x)))


class NoNorm(Layer):
    def forward(self, x):
        return x + self.mlp(x)
