# SPDX-License-Identifier: Apache-2.0
"""Whether numbers of 16 bits that are far from fp64 are rounding or a defect.

A small model may be so badly conditioned that rounding to 16 bits moves a norm by as much as a defect would. One run
cannot tell the two apart. Many can: the case is run with other seeds, and each time its distance to fp64 is measured
beside the distance of one rank with the same precision. Rounding of a layout has about the spread of rounding on one
rank; a defect is further away. In the step before the first update the spread is 0.4 % even where it is 30 % in the
third, so that a wrong gradient is seen there."""
import math

SEEDS = 40
# A layout rounds at more places than one rank does: partial sums of tp, messages. Measured: 0.7 to 2.4 times.
MORE_PLACES = 3.0
# Standard deviations by which the ranks of the two samples may differ: one case in 30,000 by chance for each number.
LARGEST_SCORE = 4.0


def distances(wanted, found):
    """{(column, step): relative distance} of two {step: row}."""
    out = {}
    for step in set(wanted) & set(found):
        for column in ("loss", "grad_norm", "eval_loss", "mtp_loss"):
            a, b = wanted[step].get(column), found[step].get(column)
            if a and b:
                a, b = float(a), float(b)
                gap = abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
                out[column, step] = gap if math.isfinite(gap) else math.inf
    return out


def score(case, single):
    """By how many standard deviations the numbers of `case` are larger than those of `single` (Mann and Whitney 1947,
    Annals of Mathematical Statistics 18, equation for large samples)."""
    ranked = sorted([(value, 1) for value in case] + [(value, 0) for value in single])
    total, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        total += sum(of_case for _, of_case in ranked[at:end]) * (at + 1 + end) / 2  # equal numbers share their ranks
        at = end
    n, m = len(case), len(single)
    return (total - n * (n + m + 1) / 2) / math.sqrt(n * m * (n + m + 1) / 12)


def verdict(case, single, losses, norms):
    """In words the first number of a case that is further from fp64 than rounding explains, or "". `case` and `single`
    are lists of distances(), one for each seed. The others are tolerances (None: not compared), which one case in two
    must keep: a defect that one rank has in 16 bits as well is no rounding either."""
    for quantity in sorted(set().union(*single), key=lambda q: (q[1], q[0])):
        far = [d[quantity] for d in case if quantity in d]
        near = [d[quantity] for d in single if quantity in d]
        if len(far) < SEEDS // 2 or len(near) < SEEDS // 2:
            return f"{quantity[0]} of step {quantity[1]}: {len(far)} and {len(near)} of {SEEDS} seeds have it"
        middle = [sorted(values)[len(values) // 2] for values in (far, near)]
        most = norms if quantity[0] == "grad_norm" else losses
        if most is not None and middle[0] > most:
            return (f"{quantity[0]} of step {quantity[1]}, {len(far)} seeds: half of them are more than "
                    f"{middle[0]:.2g} from fp64, expected at most {most:.2g}")
        if score([value / MORE_PLACES for value in far], near) > LARGEST_SCORE:
            return (f"{quantity[0]} of step {quantity[1]}, {len(far)} seeds: half of them are more than "
                    f"{middle[0]:.2g} from fp64, of one rank in the same precision {middle[1]:.2g}")
    return ""
