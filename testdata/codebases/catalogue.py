"""The codebases, what each needs, and the programs that are made with it. It imports none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Codebase:
    """A codebase, whose programs are the functions of the module in this folder that has its name."""

    programs: tuple[str, ...]
    packages: tuple[str, ...]
    "What pip installs, with all that these ask for."
    alone: tuple[str, ...] = ()
    "What pip installs without what these ask for: they ask for more than the programs need, or for releases that exclude others."
    is_double: bool = False
    "Whether it computes in double precision: chains and simulations turn a difference of rounding into another course."
    is_light: bool = False
    "Whether continuous integration takes it in turn: it is installed in seconds, and runs with every Python."
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A function of a module in this folder."""

    module: str
    function: str

    @property
    def name(self) -> str:
        """Such as `nnx.convolutions`."""
        return f"{self.module}.{self.function}"

    @property
    def codebase(self) -> Codebase:
        return CODEBASES[self.module]


CODEBASES = {
    "nnx": Codebase(("convolutions", "sharded_decoder"), ("flax", "optax"), is_light=True),
    "linen": Codebase(("logical_axes", "images"), ("flax", "optax"), is_light=True),
    "optax_contrib": Codebase(
        (
            "muon", "prodigy", "mechanic", "sam", "schedule_free", "dog", "momo", "ademamix", "reduce_on_plateau", "cocob",
        ),
        ("optax",),
        is_double=True,
        is_light=True,
    ),  # fmt: skip
    "equinox": Codebase(("data_parallel", "decoder"), ("equinox", "optax"), is_light=True),
    "numpyro": Codebase(("nuts", "svi"), ("numpyro",), is_double=True, is_light=True),
    "blackjax": Codebase(("chains", "data"), ("blackjax",), is_double=True, is_light=True),
    "drjax": Codebase(("federated_averaging",), ("drjax",), is_light=True),
    "tunix": Codebase(("sft", "accumulated", "lora", "grpo"), ("flax", "optax"), ("google-tunix", "qwix")),
    "levanter": Codebase(("fsdp", "tensor_parallel", "accumulated"), ("equinox", "optax"), ("levanter==1.2.dev1644", "haliax==1.4.dev453")),
    "haliax": Codebase(("named",), ("equinox", "optax"), ("haliax==1.4.dev453",)),
    "maxtext": Codebase(
        ("llama", "llama_unscanned", "gemma", "mixtral", "qwen"), ("flax", "optax"), ("maxtext",)
    ),
    "torchax": Codebase(("encoder",), ("torch", "flax", "optax"), ("torchax",)),
    "brax": Codebase(("ppo",), ("brax", "optax"), is_double=True),
    "penzai": Codebase(("trainer", "transformer"), ("penzai", "optax"), is_light=True),
}


def programs() -> Iterator[Program]:
    """All, in the order of the catalogue."""
    for name, codebase in CODEBASES.items():
        yield from (Program(name, function) for function in codebase.programs)


def chosen(names: Sequence[str]) -> list[Program]:
    """The programs of these names, or of the codebases of these names; all where there is none. Raises ValueError for others."""
    known = list(programs())
    for name in names:
        if not any(name in (each.name, each.module) for each in known):
            raise ValueError(f"no program is named {name}: {', '.join(each.name for each in known)}")
    return [each for each in known if not names or each.name in names or each.module in names]


def part(number: int, count: int) -> list[str]:
    """The names of light codebases that belong to a part, such as 2 of 5."""
    light = [name for name, codebase in CODEBASES.items() if codebase.is_light]
    return [name for index, name in enumerate(light) if index % count == number]
