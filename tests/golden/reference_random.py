# SPDX-License-Identifier: Apache-2.0
"""Random numbers and data order of the reference, from their written definitions, in plain Python integers.

Shares no code with p3d. Definitions: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011, section 3.3), FNV-1a,
splitmix64 (Steele, Lea, Flood, OOPSLA 2014), Box-Muller.
"""

import math

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def philox4x32_10(counter, key):
    """Ten rounds on four 32-bit words under a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a = 0xD2511F53 * c0
        b = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0 = (k0 + 0x9E3779B9) & MASK32
        k1 = (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def fnv1a64(data):
    """FNV-1a, 64 bit, of bytes."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK64
    return h


def splitmix64(state):
    """The output that follows `state`."""
    z = (state + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def random_key(seed, purpose):
    """Key (low word, high word) of a seed and a purpose."""
    z = splitmix64(fnv1a64(purpose.encode()) ^ seed)
    return z & MASK32, z >> 32


def random_block(key, stream, block):
    return philox4x32_10((block & MASK32, block >> 32, stream & MASK32, stream >> 32), key)


def uniform(high, low):
    """53 bits, centred in their cell: in (0, 1)."""
    return ((((high << 32) | low) >> 11) + 0.5) / 2.0**53


def random_normal(key, stream, index):
    w = random_block(key, stream, index)
    return math.sqrt(-2.0 * math.log(uniform(w[0], w[1]))) * math.cos(2.0 * math.pi * uniform(w[2], w[3]))


def random_below(key, stream, index, bound):
    w = random_block(key, stream, index)
    return (((w[0] << 32) | w[1]) * bound) >> 64


class Sampler:
    """Windows of seq_len tokens in an order that is a pure function of (seed, epoch, position)."""

    def __init__(self, seed, num_tokens, seq_len):
        self.seq_len = seq_len
        self.windows = (num_tokens - 1) // seq_len
        self.slack = (num_tokens - 1) - self.windows * seq_len
        self.offset_key = random_key(seed, "data.offset")
        self.order_key = random_key(seed, "data.order")

    def permute(self, epoch, x):
        """A bijection of range(windows): four Feistel rounds on an even number of bits, walked until inside."""
        bits = 2
        while (1 << bits) < self.windows:
            bits += 2
        half = bits // 2
        mask = (1 << half) - 1
        while True:
            left, right = x >> half, x & mask
            for r in range(4):
                word = random_block(self.order_key, epoch, (r << 32) | right)[0]
                left, right = right, left ^ (word & mask)
            x = (left << half) | right
            if x < self.windows:
                return x

    def locate(self, sample):
        """Global sample number -> (epoch, window, first token)."""
        epoch, position = divmod(sample, self.windows)
        offset = random_below(self.offset_key, 0, epoch, self.slack + 1)
        window = self.permute(epoch, position)
        return epoch, window, offset + window * self.seq_len


def self_test():
    """Known answers of Random123 (its file tests/kat_vectors), FNV-1a (draft-eastlake-fnv), splitmix64 (seed
    1234567)."""
    ones = MASK32
    pi = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))
    known = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    for counter, key, expected in known:
        assert philox4x32_10(counter, key) == expected, "Philox4x32-10 known answer"
    assert fnv1a64(b"") == 0xCBF29CE484222325 and fnv1a64(b"foobar") == 0x85944171F73967E8, "FNV-1a known answer"
    assert splitmix64(1234567) == 6457827717110365317, "splitmix64 known answer"
    for tokens, seq_len in ((2, 1), (100, 7), (1000, 16), (1041, 16)):
        sampler = Sampler(9, tokens, seq_len)
        for epoch in (0, 1, 5):
            order = [sampler.permute(epoch, x) for x in range(sampler.windows)]
            assert sorted(order) == list(range(sampler.windows)), "an epoch visits every window once"
            starts = [sampler.locate(epoch * sampler.windows + i)[2] for i in range(sampler.windows)]
            assert max(starts) + seq_len < tokens, "the last target lies inside the tokens"
    normals = [random_normal(random_key(1, "moments"), 0, i) for i in range(20000)]
    assert (abs(sum(normals)) / 20000 < 0.03
            and abs(sum(z * z for z in normals) / 20000 - 1) < 0.03), "moments of the normal"
