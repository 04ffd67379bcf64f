"""Two choices for all variables, the better parts of both.

Variables that take other choices fall into parts that no edge connects. What one part costs is then the same whatever the others
take, and of memory they share only the limit.
"""

from __future__ import annotations

import numpy as np

from meshbridge.search.normal import Normal, Steps
from meshbridge.search.problem import Indices

PARTS = 2000
"""Parts that are tried at most: a few tenths of a second for 20,000 steps."""


def combined(normal: Normal, best: Indices, other: Indices) -> Indices:
    """The best choices, which are within the limit, with each part of the other ones that costs less and still fits.

    Those that save most come first.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    changed = best != other
    firsts, seconds = normal.ends
    inside = changed[firsts] & changed[seconds]
    links = coo_array((np.ones(int(inside.sum())), (firsts[inside], seconds[inside])), shape=(normal.count, normal.count))
    count, parts = connected_components(links, directed=False)
    with np.errstate(invalid="ignore"):  # both may be forbidden
        pairs = normal.pairs(other) - normal.pairs(best)
    touched = changed[firsts] | changed[seconds]
    owners = np.where(changed[firsts], parts[firsts], parts[seconds])
    alone = normal.alone(best) - normal.alone(other)
    saved = np.zeros(count)
    np.add.at(saved, owners[touched], -pairs[touched])
    np.add.at(saved, parts[changed], alone[changed])
    members = np.flatnonzero(changed)
    members = members[np.argsort(parts[members], kind="stable")]
    groups = np.split(members, np.flatnonzero(np.diff(parts[members])) + 1) if members.size else []
    worth = sorted((group for group in groups if saved[parts[group[0]]] > 0), key=lambda group: -saved[parts[group[0]]])
    result = best.copy()
    usage = normal.usage(best)
    for group in worth[:PARTS]:
        steps = Steps(normal.steps.first[group], normal.steps.last[group], normal.steps.times)
        places = normal.offsets[:-1][group]
        after = usage + steps.usage(normal.held[places + other[group]] - normal.held[places + best[group]])
        if (after <= np.maximum(normal.limit, usage)).all():
            usage = after
            result[group] = other[group]
    return result
