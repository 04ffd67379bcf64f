"""Source of helper functions, for programs in which JAX's own functions would give other numbers."""

from __future__ import annotations

_KEYS = '''
def _keys(bits):
    """The bits of floats as integers in the same order, and those as bits again."""
    return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & jnp.iinfo(bits.dtype).max)
'''

_EXTREME = '''
def {name}(x, axis_name, axis_index_groups=None):
    """`lax.{name}` in which NaN wins, as it does in `jnp.{ours}`: collectives of integers lose none."""
    integers = jnp.dtype(f"int{{8 * x.dtype.itemsize}}")
    keys = _keys(lax.bitcast_convert_type(x, integers))
    keys = jnp.where(jnp.isnan(x), jnp.iinfo(integers).{ours}, keys)
    keys = lax.{name}(keys, axis_name, axis_index_groups=axis_index_groups)
    return lax.bitcast_convert_type(_keys(keys), x.dtype)
'''

_ORDERED = '''
def ordered(x):
    """Floats as integers in their total order: -NaN, -inf, …, -0.0, 0.0, …, inf, NaN."""
    return _keys(lax.bitcast_convert_type(x, jnp.dtype(f"int{8 * x.dtype.itemsize}")))
'''

_SOURCES = {
    "ordered": _ORDERED,
    "pmax": _EXTREME.format(name="pmax", ours="max"),
    "pmin": _EXTREME.format(name="pmin", ours="min"),
}


def helper_sources(names: set[str]) -> list[str]:
    """The sources of these helpers and of the functions that they call."""
    return [_KEYS, *(_SOURCES[name] for name in sorted(names))] if names else []
