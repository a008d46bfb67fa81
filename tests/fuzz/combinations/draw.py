# SPDX-License-Identifier: Apache-2.0
"""Random choices that are a function of the seed alone, on every version of Python."""
import hashlib

MASK = (1 << 64) - 1


class Draw:
    """A stream of choices: splitmix64 (Steele, Lea, Flood, OOPSLA 2014), begun with a hash of the words."""

    def __init__(self, *words):
        text = "/".join(map(str, words))
        self.state = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    def bits(self):
        self.state = (self.state + 0x9e3779b97f4a7c15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.bits() % n

    def chance(self, probability):
        return self.bits() < probability * (MASK + 1)

    def among(self, *values):
        return values[self.below(len(values))]

    def weighted(self, weights):
        """One of the keys of {value: whole weight}."""
        at = self.below(sum(weights.values()))
        for value, weight in weights.items():
            if at < weight:
                return value
            at -= weight
        raise AssertionError("weights of whole numbers above 0")

    def shuffled(self, values):
        left, out = list(values), []
        while left:
            out.append(left.pop(self.below(len(left))))
        return out
