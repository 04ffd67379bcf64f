"""The codebases, what each needs, and the programs that are made with it. It imports none of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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
    shown: tuple[str, ...] = ()
    "Packages whose versions the page shows; all where none is named."
    before_jax: tuple[tuple[int, int], str] | None = None
    "The release of jax that it does not run with, nor with later ones, and why."


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


MAXTEXT_NEEDS = (
    "absl-py", "einshape", "fire", "gitpython", "google-cloud-storage", "grain", "immutabledict", "jsonlines",
    "drjax", "jaxtyping", "ml-collections", "ml-goodput-measurement", "omegaconf", "orbax-checkpoint", "pathwaysutils", "pillow",
    "sentencepiece", "six", "tensorboardX", "tiktoken", "transformers>=4.57,<5",
)  # fmt: skip
LEVANTER_NEEDS = (
    "async-lru", "braceexpand", "chex", "dataclasses-json", "datasets", "deepdiff", "draccus", "gcsfs",
    "gitpython", "humanfriendly", "jmp", "mergedeep", "pytimeparse", "ray", "safetensors", "tblib",
    "tensorstore", "tqdm-loggable", "transformers>=4.57,<5", "wandb",
)  # fmt: skip
TUNIX_NEEDS = (
    "clu", "einops", "jaxtyping", "pillow",
    "datasets", "grain", "kagglehub", "numba", "omegaconf", "orbax-checkpoint", "perfetto", "pylatexenc",
    "python-dotenv", "safetensors", "sentencepiece", "tenacity", "transformers>=4.57,<5",
)  # fmt: skip

HALIAX = "haliax==1.4.dev453"
"""No release runs with a jax of this year."""

CODEBASES = {
    "maxtext": Codebase(
        ("llama", "llama_unscanned", "gemma", "mixtral", "qwen"),
        ("flax", "optax", *MAXTEXT_NEEDS),
        ("maxtext", "qwix", "aqtp", "tokamax", "xprof"),
        shown=("maxtext", "flax", "optax"),
    ),
    "tunix": Codebase(
        ("sft", "lora", "grpo"),
        ("flax", "optax", *TUNIX_NEEDS),
        ("google-tunix", "qwix", "google-metrax"),
        shown=("google-tunix", "qwix", "flax", "optax"),
    ),
    "levanter": Codebase(
        ("fsdp", "tensor_parallel", "accumulated"),
        ("equinox", "optax", *LEVANTER_NEEDS),
        ("levanter==1.2.dev1644", HALIAX, "aqtp"),
        shown=("levanter", "haliax", "equinox"),
        before_jax=((0, 12), "haliax reads `jax.core.is_constant_dim`, which jax 0.12 has not"),
    ),
    "haliax": Codebase(
        ("named",),
        ("equinox", "optax", "jmp", "safetensors", "aqtp"),
        (HALIAX,),
        shown=("haliax", "equinox"),
        before_jax=((0, 12), "it reads `jax.core.is_constant_dim`, which jax 0.12 has not"),
    ),
    "torchax": Codebase(("encoder",), ("torch", "flax", "optax"), ("torchax==0.0.14.dev20261026",), shown=("torchax", "torch")),
    "penzai": Codebase(("trainer", "transformer"), ("penzai", "optax"), is_light=True),
    "nnx": Codebase(("convolutions", "sharded_decoder"), ("flax", "optax"), is_light=True),
    "linen": Codebase(("logical_axes", "images"), ("flax", "optax"), is_light=True),
    "optax_contrib": Codebase(
        (
            "muon",
            "prodigy",
            "mechanic",
            "sam",
            "schedule_free",
            "dog",
            "momo",
            "ademamix",
            "reduce_on_plateau",
            "cocob",
        ),
        ("optax",),
        is_double=True,
        is_light=True,
    ),
    "equinox": Codebase(("data_parallel", "decoder"), ("equinox", "optax"), is_light=True),
    "drjax": Codebase(("federated_averaging",), ("drjax",), is_light=True),
    "numpyro": Codebase(("nuts", "svi"), ("numpyro",), is_double=True, is_light=True),
    "blackjax": Codebase(("chains", "data"), ("blackjax",), is_double=True, is_light=True),
}

WITHOUT_PROGRAM = {
    "gemma, kauldron": "kauldron asks for TensorFlow and its data sets, which is not tried",
    "easydel": "it asks for flax 0.12.3 and transformers 5.5, which exclude those of the others",
    "brax": "a step of PPO in its generalized backend did not end within 10 minutes on two cores that did other work, too",
    "kfac-jax": "its release 0.0.8 reads `jax.core.Effects`, which jax 0.12 has not",
    "tpu-inference": "not tried",
}
"""Codebases without a program here, and why."""


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
    """The names of three light codebases that belong to a part, such as 2 of 5; the parts together have all of them. Raises
    ValueError if there are too few parts for that."""
    light = [name for name, codebase in CODEBASES.items() if codebase.is_light]
    if IN_A_PART * count < len(light):
        raise ValueError(f"{count} parts of {IN_A_PART} do not hold {len(light)} codebases")
    return [light[(IN_A_PART * number + index) % len(light)] for index in range(IN_A_PART)]


IN_A_PART = 3
