"""What is known of one kind of device, from a TOML file: those of this folder by name, a user's own by path.

`machines/tpu/v5e.toml` is `v5e`, of the platform `tpu`. docs/machines.md explains the keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.registry import Registry
from meshbridge.text import did_you_mean

PLATFORMS = ("tpu", "gpu", "cpu")
"""The kinds of devices."""

OptionValue: TypeAlias = bool | int | float | str
"""What an option of XLA is set to."""

OptionSet = Literal["default", "best"]
"""The options of XLA that a step is compiled under: its defaults, or those that the machine's file names beside them."""


@dataclass(frozen=True)
class Link:
    """What connects devices: a torus, or a switch that connects any two of them at their full rate. docs/machines.md has the
    formulas."""

    name: str
    bandwidth: float
    "Peak bytes per second, one way, of each port of a device: it has one to a switch, and two along each axis of a torus."
    latency: float
    "Seconds of a hop: to the neighbour on a torus, through the switch to any device."
    launch: float
    "Seconds in which a collective starts."
    efficiency: float
    "The share of `bandwidth` that collectives of many bytes reach."
    reduction: float = 1.0
    "How many times as fast an all-reduce is by sums that the switch makes."
    size: int = 0
    "The most devices along an axis of the torus, or at one switch; 0 where there is no limit."
    wrap_multiple: int = 0
    "An axis of a torus is a ring if it is a multiple of so many devices long, else a line. 0: no torus."
    wrap_all: bool = False
    "Whether all axes are lines where one is."
    kinds: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    "By kind, of ISSUED, the `launch` and the `efficiency` of collectives that differ in these."
    held_price: float | None = None
    "Of a network: replaces the machine's, on several slices or nodes."

    @property
    def ports(self) -> int:
        """Ports of a device, along one axis of a torus."""
        return 2 if self.wrap_multiple else 1

    @property
    def rate(self) -> float:
        """Bytes per second, one way, that a port carries in collectives of many bytes."""
        return self.bandwidth * self.efficiency

    @property
    def launch_bytes(self) -> float:
        """Bytes that a device could receive, along one axis of a torus, in the time in which a collective starts."""
        return self.ports * self.rate * self.launch

    def launch_of(self, kind: str) -> float:
        """Seconds in which a collective starts, of a kind by its name in the mesh dialect or in StableHLO."""
        return self._of(kind).get("launch", self.launch)

    def rate_of(self, kind: str) -> float:
        """The same as `rate`, for a kind of collective."""
        return self.bandwidth * self._of(kind).get("efficiency", self.efficiency)

    def _of(self, kind: str) -> Mapping[str, float]:
        return self.kinds.get(kind, {})

    def rings(self, sizes: Sequence[int]) -> tuple[bool, ...]:
        """Of each axis of a torus of that many devices, whether it is a ring."""
        wraps = tuple(bool(self.wrap_multiple) and size % self.wrap_multiple == 0 for size in sizes)
        return tuple(wrap and (all(wraps) or not self.wrap_all) for wrap in wraps)


@dataclass(frozen=True)
class Machine:
    """One kind of device. Rates are per second, peak, and those of one device as JAX counts them."""

    platform: str
    name: str
    summary: str
    topology: tuple[str, ...]
    "What the numbers of a topology count, in order."
    devices_per_chip: int
    flops: Mapping[str, float] = field(hash=False)
    "Of dense matrix products, by element type."
    memory_bytes: int
    memory_bandwidth: float
    "Bytes per second."
    link: Link
    "Between the chips of a slice, or the devices of a node."
    compiler: Mapping[str, Any] = field(hash=False)
    "What the platform's compiler is told of the device."
    kernel_launch: float
    "Seconds that a kernel takes in the step that is predicted, beside its work."
    efficiency: float
    "The share of its FLOPs and of its memory's bandwidth that kernels reach in the step that is predicted."
    duplicates_expensive_ops: bool
    "Whether the compiler computes an exponential or the like in every fusion that reads it, where that saves memory traffic."
    combines_collectives: bool
    """Whether the compiler combines small collectives by itself. Else they are combined by copying their operands together: on a
    v5e the copies took a quarter of a decoding step's cycles."""
    async_collectives: tuple[str, ...]
    "Of ISSUED, the collectives that run beside kernels; for others the device waits."
    two_stage: Mapping[str, str] = field(hash=False)
    """The collectives over all devices of a slice that the compiler replaces by all-reduces, and on which of SLICES. They are
    written in two stages."""
    collective_pipelining: str
    "Of PIPELINED, what an iteration of a loop gathers for the next one."
    fuses_slices: bool
    "Whether the compiler fuses slices into the products that read them, so that nothing is copied."
    row_elements: int
    """The most elements of a row, the last dimension, that the compiler reduces in the kernel which writes values of that row,
    as in a softmax; 0 if it never does."""
    collective_matmul: bool
    "Whether products and the collectives beside them are divided, so that one hides the other, where the predicted step says so."
    refines_constraints: bool
    "Whether values inside a program are split further than the constraints on them say, where the predicted step says so."
    copy_bandwidth: float
    """Bytes per second that copies move which reorder what an all-to-all sends and receives, or a reduce-scatter has reduced;
    infinite where nothing is copied for that."""
    aliased_gather_copy_bytes: float
    """From how many bytes on the compiler copies an all-gather whose result takes the buffer of an argument, and that argument
    before the step; infinite where it copies none."""
    held_price: float | None = None
    """What holding a byte costs while a loop runs once, in bytes sent; None where passes are bound by memory alone, and deciding
    takes HELD_PRICE."""
    network: Link | None = None
    "Between slices, or nodes."
    chip: Link | None = None
    "Between the devices of a chip."
    device_kinds: tuple[str, ...] = ()
    "What JAX calls such devices: their `device_kind`."
    options: Mapping[str, Mapping[str, OptionValue]] = field(default_factory=dict, hash=False)
    "By OPTION_SETS, XLA's options under which collectives overlap."
    best: Mapping[str, Any] = field(default_factory=dict, hash=False)
    "By name, the fields here that are others where a step is compiled under `options`: those of _BEST."

    def under(self, compiler_options: OptionSet) -> Machine:
        """The same device, whose steps are compiled under that set of options."""
        return self._at_best if compiler_options == "best" else self

    @cached_property
    def _at_best(self) -> Machine:
        return replace(self, **self.best)

    @property
    def async_permute(self) -> bool:
        """Whether permutes run beside products."""
        return "collective_permute" in self.async_collectives

    @property
    def async_reductions(self) -> bool:
        """Whether all-reduces or reduce-scatters run beside products."""
        return not {"all_reduce", "reduce_scatter"}.isdisjoint(self.async_collectives)

    @property
    def combined_kinds(self) -> frozenset[str]:
        """The kinds of collectives that the compiler combines by itself: XLA:GPU three, XLA:TPU executes as many gathers and
        reduce-scatters as are written."""
        if not self.combines_collectives:
            return frozenset()
        return frozenset({"all_reduce"} if self.platform == "tpu" else {"all_gather", "all_reduce", "reduce_scatter"})

    @property
    def late_scheduled(self) -> Literal["", "gathers", "reductions"]:
        """Which asynchronous collectives the compiler begins so late that others have nothing beside them: XLA:GPU `reductions`
        that no product waits for, XLA:TPU `gathers` on the SparseCores; "" for none."""
        if self.platform == "gpu":
            return "reductions" if self.async_reductions else ""
        return "gathers" if self.collective_pipelining == "offloaded" else ""

    @property
    def prefers_ring_attention(self) -> bool:
        """Whether attention may take less time as a ring. Not on XLA:GPU, which models products of one shard of keys at more than
        their share of the whole product's time."""
        return self.async_permute and self.platform != "gpu"

    @property
    def copies_to_reorder(self) -> bool:
        """Whether the compiler copies what it exchanges, or has reduced, into order."""
        return self.copy_bandwidth < inf

    def peak(self, dtype: str) -> float:
        """FLOPs per second of dense products whose operands have an MLIR element type: of the first type that a product can be
        computed in and whose rate is known. Raises MeshError where there is none."""
        wanted = next((types for start, types in _COMPUTED_IN.items() if dtype.lstrip("us").startswith(start)), (dtype,))
        if (found := next((kind for kind in wanted if kind in self.flops), None)) is None:
            raise MeshError(f"error: machine '{self.name}' has no FLOP/s for {dtype}, expected those of {' or '.join(wanted)}")
        return self.flops[found]


_SINGLE = ("tf32", "bf16", "f32")
_DOUBLE = ("f64", "f32", "bf16")
_COMPUTED_IN = {
    "f4": ("f4", "f8", "bf16", "f32"),
    "f8": ("f8", "bf16", "f32"),
    "f16": ("f16", "bf16", "f32"),
    "bf16": ("bf16", "f16", "f32"),
    "f32": _SINGLE,
    "complex<f32": _SINGLE,
    "i16": _SINGLE,
    "i32": _SINGLE,
    "f64": _DOUBLE,
    "complex<f64": _DOUBLE,
    "i64": _DOUBLE,
    "i": ("i8", "bf16", "f32"),
}
"""By how an element type starts, the types whose rate counts, of which the first that is known does. JAX's default precision
computes products of float32 in TF32 on GPUs, and in one pass of bfloat16 on TPUs."""


SUFFIX = ".toml"

_KEYS: dict[str, type] = {
    "platform": str,
    "summary": str,
    "topology": list,
    "devices_per_chip": int,
    "flops": dict,
    "memory": dict,
    "link": dict,
    "step": dict,
    "compiler": dict,
}
ISSUED = (
    *("all_gather", "all_reduce", "reduce_scatter", "all_to_all"),
    *("collective_broadcast", "collective_permute"),
)
"""The kinds of collectives that compilers issue, by StableHLO's names."""
SLICES = ("all", "rings", "square")
"""The slices that `two_stage` can name: all, those whose every axis is a ring, those of equal sides."""

PIPELINED = ("none", "offloaded", "all")
"""What an iteration of a loop gathers for the next one: nothing; small values, where gathers are offloaded to cores of their own;
or all that the first products of an iteration read. For `all`, the last iteration is peeled."""

_STEP_KEYS: dict[str, type] = {
    "source": str,
    "launch": float,
    "efficiency": float,
    "duplicates_expensive_ops": bool,
    "combines_collectives": bool,
    "async_collectives": list,
}
_BEST: dict[str, type] = {"async_collectives": list, "collective_pipelining": str, "collective_matmul": bool}
"""What a step may do otherwise under the best options."""
_STEP_MAY_LACK: dict[str, type] = {
    "two_stage": dict,
    "collective_pipelining": str,
    "fuses_slices": bool,
    "row_elements": int,
    "collective_matmul": bool,
    "refines_constraints": bool,
    "copy_bandwidth": float,
    "aliased_gather_copy_bytes": float,
    "held_price": float,
    "best": dict,
}
_MEMORY_KEYS: dict[str, type] = {"source": str, "bytes": int, "bandwidth": float}
_NETWORK_KEYS: dict[str, type] = {
    "source": str,
    "name": str,
    "bandwidth": float,
    "latency": float,
    "launch": float,
    "efficiency": float,
}
_LINK_KEYS: dict[str, dict[str, type]] = {
    "torus": {"kind": str, **_NETWORK_KEYS, "size": int, "wrap_multiple": int, "wrap_all": bool},
    "switch": {"kind": str, **_NETWORK_KEYS, "size": int, "reduction": float},
}
_LINK_MAY_LACK: dict[str, type] = {"kinds": dict}
_NETWORK_MAY_LACK: dict[str, type] = {**_LINK_MAY_LACK, "held_price": float}
_OF_KIND: dict[str, type] = {"launch": float, "efficiency": float}
_LINKS: dict[str, type] = {"network": dict, "chip": dict}
_MAY_LACK: dict[str, type] = {**_LINKS, "device_kinds": list, "options": dict}
OPTION_SETS = ("explicit", "partitioned")
"""Whose options a machine may name: those of programs whose collectives are explicit, and of those that XLA partitions."""

KEPT_FILES = 64
"""How many texts of files are not read again as long as they stay the same."""


@cache
def machines() -> Registry[tuple[str, str], Machine]:
    """Those that come with meshbridge, by platform and name."""
    found: Registry[tuple[str, str], Machine] = Registry("machine", lambda machine: machine.summary)
    for platform in PLATFORMS:
        for path in sorted((Path(__file__).parent / platform).glob(f"*{SUFFIX}")):
            found.add((platform, path.stem), load(path))
    return found


def find(platform: str, device: str) -> Machine:
    """The machine of that name, or in the file of that path, which has a slash or ends in `.toml`.

    Raises MeshError where there is none, where a file does not say what it must, and where it is of another platform.
    """
    if is_path(device):
        machine = load(Path(device))
        if machine.platform != platform:
            raise MeshError(f"{device}: error: expected a device of platform '{platform}', found one of '{machine.platform}'")
        return machine
    if (platform, device) not in machines():
        names = [name for kind, name in machines() if kind == platform]
        raise MeshError(f"error: unknown {platform.upper()} '{device}', {_expected(device, names)}")
    return machines()[platform, device]


def _expected(device: str, names: Sequence[str]) -> str:
    return f"expected one of {', '.join(names)}, or the path of a {SUFFIX} file{did_you_mean(device, names)}"


def named(device: str, *also: str) -> Machine:
    """The machine of that name, of whichever platform, or in the file of that path. The error names what may `also` be expected.

    Raises MeshError where there is none, and where a file does not say what it must.
    """
    if is_path(device):
        return load(Path(device))
    known = {name: machine for (_, name), machine in machines().items()}
    if device not in known:
        raise MeshError(f"error: unknown machine '{device}', {_expected(device, [*also, *known])}")
    return known[device]


def of_kind(kind: str) -> str | None:
    """The name of the machine that comes with meshbridge whose devices JAX calls that; None where there is none."""
    return next((name for (_, name), machine in machines().items() if kind in machine.device_kinds), None)


def is_path(device: str) -> bool:
    """Whether that is the path of a machine's file, and no name."""
    return "/" in device or device.endswith(SUFFIX)


def load(path: Path) -> Machine:
    """The machine in a file, by the file's name. Raises MeshError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MeshError(f"{path}: error: cannot read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise MeshError(f"{path}: error: not a TOML file: {error}") from None
    return _read(path, text)


@lru_cache(KEPT_FILES)
def _read(path: Path, text: str) -> Machine:
    """The machine of that text. Planning asks for its machine thousands of times, and a file may change in between."""
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MeshError(f"{path}: error: not a TOML file: {error}") from None
    _check(path, "", read, _KEYS, _MAY_LACK)
    memory = read["memory"]
    _check(path, "memory.", memory, _MEMORY_KEYS)
    step = read["step"]
    _check(path, "step.", step, _STEP_KEYS, _STEP_MAY_LACK)
    _check_share(path, "step.efficiency", step["efficiency"])
    _check_none_negative(path, "step.", step, ("launch", "row_elements", "held_price"))
    _check_issued(path, "step.async_collectives", step["async_collectives"])
    two_stage = step.get("two_stage", {})
    _check(path, "step.two_stage.", two_stage, {}, dict.fromkeys(("all_gather", "reduce_scatter"), str))
    if unknown := [slices for slices in two_stage.values() if slices not in SLICES]:
        raise MeshError(f"{path}: error: step.two_stage: expected some of {', '.join(SLICES)}, found {unknown[0]!r}")
    options = _options(path, read.get("options", {}))
    best = _best(path, step.get("best", {}), options)
    links = {section: _link(path, f"{section}.", read[section]) for section in ("link", *_LINKS) if section in read}
    if read["devices_per_chip"] > 1 and "chip" not in links:
        raise MeshError(f"{path}: error: chip is missing: it says what connects the {read['devices_per_chip']} devices of one")
    if read["platform"] not in PLATFORMS:
        raise MeshError(f"{path}: error: expected platform {' or '.join(PLATFORMS)}, found '{read['platform']}'")
    rates = {kind: rate for kind, rate in read["flops"].items() if kind != "source"}
    _check(path, "flops.", rates, dict.fromkeys(rates, float))
    _check(path, "compiler.", read["compiler"], dict.fromkeys(read["compiler"], object) | {"name": str})
    return Machine(
        read["platform"],
        path.stem,
        read["summary"],
        tuple(map(str, read["topology"])),
        read["devices_per_chip"],
        rates,
        memory["bytes"],
        memory["bandwidth"],
        links["link"],
        read["compiler"],
        step["launch"],
        step["efficiency"],
        step["duplicates_expensive_ops"],
        step["combines_collectives"],
        tuple(step["async_collectives"]),
        two_stage,
        _pipelined(path, "step.collective_pipelining", step),
        step.get("fuses_slices", False),
        step.get("row_elements", 0),
        step.get("collective_matmul", False),
        step.get("refines_constraints", False),
        step.get("copy_bandwidth", inf),
        step.get("aliased_gather_copy_bytes", inf),
        step.get("held_price"),
        links.get("network"),
        links.get("chip"),
        tuple(map(str, read.get("device_kinds", ()))),
        options,
        best,
    )


def _pipelined(path: Path, key: str, found: Mapping[str, Any]) -> str:
    """What the section says of PIPELINED, "none" where it says nothing. Raises MeshError."""
    pipelined: str = found.get("collective_pipelining", "none")
    if pipelined == "aside":
        raise MeshError(f"{path}: error: {key}: `aside` is now `offloaded`")
    if pipelined not in PIPELINED:
        raise MeshError(f"{path}: error: {key}: expected one of {', '.join(PIPELINED)}, found {pipelined!r}")
    return pipelined


def _best(path: Path, found: Mapping[str, Any], options: Mapping[str, Mapping[str, OptionValue]]) -> Mapping[str, Any]:
    """The section on steps under the best options. Raises MeshError."""
    _check(path, "step.best.", found, {}, _BEST)
    if found and "explicit" not in options:
        raise MeshError(f"{path}: error: options.explicit is missing: step.best says what a step does under these")
    _check_issued(path, "step.best.async_collectives", found.get("async_collectives", ()))
    _pipelined(path, "step.best.collective_pipelining", found)
    return {key: tuple(value) if key == "async_collectives" else value for key, value in found.items()}


def _check_issued(path: Path, section: str, found: Sequence[Any]) -> None:
    if unknown := [kind for kind in found if kind not in ISSUED]:
        raise MeshError(f"{path}: error: {section}: expected some of {', '.join(ISSUED)}, found {unknown[0]!r}")


def _options(path: Path, found: Mapping[str, Any]) -> Mapping[str, Mapping[str, OptionValue]]:
    """The section on XLA's options. Raises MeshError."""
    _check(path, "options.", found, {}, dict.fromkeys(OPTION_SETS, dict))
    for name, of_set in found.items():
        for option, value in of_set.items():
            if not isinstance(value, OptionValue):
                raise MeshError(f"{path}: error: options.{name}.{option}: expected a single value, found {value!r}")
    return found


def _link(path: Path, section: str, found: Mapping[str, Any]) -> Link:
    """A section on links. Raises MeshError."""
    expected = _NETWORK_KEYS
    if section == "link.":
        if found.get("kind") not in _LINK_KEYS:
            raise MeshError(f"{path}: error: link.kind: expected {' or '.join(_LINK_KEYS)}, found {found.get('kind')!r}")
        expected = _LINK_KEYS[found["kind"]]
    _check(path, section, found, expected, _NETWORK_MAY_LACK if section == "network." else _LINK_MAY_LACK)
    _check_none_negative(path, section, found, ("held_price",))
    kinds = found.get("kinds", {})
    _check(path, f"{section}kinds.", kinds, {}, dict.fromkeys(ISSUED, dict))
    for kind, of_one in kinds.items():
        _check(path, f"{section}kinds.{kind}.", of_one, {}, _OF_KIND)
    numbers = {key: value for key, value in found.items() if expected.get(key) in (int, float)}
    of_kinds = {f"kinds.{kind}.{key}": value for kind, of_one in kinds.items() for key, value in of_one.items()}
    for key, value in {**numbers, **of_kinds}.items():
        if value <= 0:
            raise MeshError(f"{path}: error: {section}{key}: expected a positive number, found {value!r}")
        if key.endswith("efficiency"):
            _check_share(path, f"{section}{key}", value)
    return Link(**{key: value for key, value in found.items() if key not in ("kind", "source")})


def _check_none_negative(path: Path, section: str, found: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        if found.get(key, 0) < 0:
            raise MeshError(f"{path}: error: {section}{key}: expected no negative number, found {found[key]!r}")


def _check_share(path: Path, section: str, found: float) -> None:
    if not 0 < found <= 1:
        raise MeshError(f"{path}: error: {section}: expected a number above 0 and of at most 1, found {found!r}")


def _check(
    path: Path,
    section: str,
    found: Mapping[str, Any],
    expected: Mapping[str, type],
    may_lack: Mapping[str, type] = MappingProxyType({}),
) -> None:
    """Raises MeshError unless exactly the expected keys are there, and perhaps others, with values of these types; an integer is
    a float, too. A key that has been renamed is an error that says its name now."""
    known = {**expected, **may_lack}
    for key in found:
        if key not in known and (name := _RENAMED.get(f"{section.replace('step.best.', 'step.')}{key}")) is not None:
            raise MeshError(f"{path}: error: {section}{key}: `{key}` is now `{name}`")
    for key in [*expected, *found]:
        if key not in found:
            raise MeshError(f"{path}: error: {section}{key} is missing")
        if key not in known:
            raise MeshError(f"{path}: error: unknown key {section}{key}, expected {', '.join(known)}")
        kinds = (int, float) if known[key] is float else known[key]
        if not isinstance(found[key], kinds) or (isinstance(found[key], bool) and known[key] not in (bool, object)):
            raise MeshError(f"{path}: error: {section}{key}: expected {_WORDS[known[key]]}, found {found[key]!r}")


_RENAMED = {
    "kinds": "device_kinds",
    "step.repeats": "duplicates_expensive_ops",
    "step.combines": "combines_collectives",
    "step.asynchronous": "async_collectives",
    "step.staged": "two_stage",
    "step.prefetches": "collective_pipelining",
    "step.slices": "fuses_slices",
    "step.divides": "collective_matmul",
    "step.opens": "refines_constraints",
    "step.arranged": "copy_bandwidth",
    "step.copied_bytes": "aliased_gather_copy_bytes",
}
"""Keys of earlier releases, and what each is called now."""

_WORDS = {str: "a string", int: "a whole number", float: "a number", list: "a list", dict: "a table", bool: "true or false"}
