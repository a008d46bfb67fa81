# SPDX-License-Identifier: Apache-2.0
"""What the features of a case share while it is drawn: the keys so far, and the sizes that later ones must fit."""


class Draft:
    """`keys`: items of the case; `theme`: what the case is about; the rest are sizes."""

    def __init__(self, draw, theme):
        self.draw, self.theme = draw, theme
        self.keys, self.acts = {}, {}
        self.dp = self.cp = self.tp = self.pp = self.ep = self.etp = 1
        self.micro = self.microbatches = 1
        self.chunks = 1        # stages of a pipeline rank
        self.layers, self.vocab, self.seq_len, self.kv_heads = 2, 256, 16, 4
        self.rope, self.experts, self.shared, self.tied = False, False, False, True
        self.latent = False    # the model has latent attention
        self.predicts = False  # the model has blocks of multi-token prediction
        self.crosses = False   # ep and etp divide an axis of the layout
        self.wants = set()     # names of the features of this case

    @property
    def ranks(self):
        return self.dp * self.cp * self.tp * self.pp

    @property
    def stage_ranks(self):
        return self.dp * self.cp * self.tp

    def set(self, **values):
        """set(model__layers=3) sets model.layers."""
        for name, value in values.items():
            self.keys[name.replace("__", ".")] = text_of(value)

    def has(self, key):
        return key in self.keys

    def get(self, key, default=None):
        return self.keys.get(key, default)


def text_of(value):
    """A value as it stands on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(f'"{x}"' if isinstance(x, str) else text_of(x) for x in value) + "]"
    return str(value)
