"""Round trips through the real tools: what we print in a spelling, mlir-opt of that release reads and prints back identically.

Skipped where a tool is absent. `mlir-opt-19` and `mlir-opt-22` are Debian's names; LLVM
21's tool is looked for as `mlir-opt-21`.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given, settings

from meshbridge.dialect.assembly import read, write
from meshbridge.ir.mlir import OpError, context
from meshbridge_converters import llvm
from tests.dialect.llvm_tools import VERSIONS, tool
from tests.dialect.programs import FORMS, program, random_programs

CONTEXT = context()

SHARDINGS_19 = (
    "%sharding_annotated = mesh.shard %arg0 to <@deep, [[0, 1], [2]]> : tensor<4x8xf32>",
    "%sharding_annotated = mesh.shard %arg0 to <@m0, [[0]], partial = max[1]> annotate_for_users : tensor<4x8xf32>",
    "%sharding_annotated = mesh.shard %arg0 to <@m0, [[]]> annotate_for_users {foo} : tensor<4x8xf32>",
)
ABSENT = {
    19: {"sharding", "shard", "get_sharding", "shard_shape", "neighbors_linear_indices", "update_halo", "permute"},
    21: {"permute"},
    22: {"permute"},
}
"""Operations that a release lacks, or (19's shard) that it writes with an attribute; their refusal is tested below."""


def printed_by(version: int, text: str, *flags: str) -> str:
    """What mlir-opt of that release makes of `text`."""
    command = [tool(version), "-", "--allow-unregistered-dialect", *flags]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout


def check_round_trip(version: int, text: str) -> None:
    """Canonical `text`, written for a release, comes back the same from its tool in both forms."""
    spelling = VERSIONS[version]
    module = read(text, "a.mlir", CONTEXT)
    ours = spelling.write(module)
    assert printed_by(version, ours).strip() == ours.strip()
    for form in (ours, printed_by(version, ours, "--mlir-print-op-generic")):
        again = spelling.read(form, "b.mlir", CONTEXT)
        assert write(again) == write(spelling.read(ours, "c.mlir", CONTEXT))
    if version != 19:  # there a sharding belongs to its shard: one that several use comes back as several
        assert write(spelling.read(ours, "b.mlir", CONTEXT)) == write(module)


def one_of_each(version: int) -> str:
    """Every form that a release has, results renamed apart."""
    lines = [line for name, forms in FORMS.items() if name not in ABSENT[version] for line in forms]
    lines = [line for line in lines if "partial" not in line or version != 22]
    lines = [line for line in lines if "shard_shape 8x?" not in line]
    renamed: list[str] = []
    for number, line in enumerate(lines):
        results, _, rest = line.partition(" = mesh.")
        renamed.append(re.sub(r"%(\w+)", rf"%r{number}\1", results) + f" = mesh.{rest}")
    return program(*renamed)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_form_comes_back(version: int) -> None:
    text = one_of_each(version)
    if version == 19:
        text = text.replace(", %arg3: !mesh.sharding", "")
    check_round_trip(version, text)


@pytest.mark.parametrize("line", SHARDINGS_19)
def test_shardings_of_llvm_19_come_back(line: str) -> None:
    text = program(line).replace(", %arg3: !mesh.sharding", "")
    module = llvm.LLVM_19.read(text, "a.mlir", CONTEXT)
    assert llvm.LLVM_19.write(module).strip() == text.strip() == printed_by(19, text).strip()
    assert "mesh.sharding @" in write(module)


@pytest.mark.parametrize("version", VERSIONS)
def test_random_programs_come_back(version: int) -> None:
    tool(version)

    @settings(max_examples=12, deadline=None)
    @given(random_programs(with_partial=version != 22))
    def check(text: str) -> None:
        if version == 19:
            text = text.replace(", %arg3: !mesh.sharding", "")
        check_round_trip(version, text)

    check()


REFUSED = [
    (19, "%0 = mesh.sharding @m0 split_axes = [[0]] halo_sizes = [1, 1] : !mesh.sharding", "no halo sizes"),
    (
        19,
        "%0 = mesh.sharding @m1 split_axes = [[0]] sharded_dims_offsets = [0, 1, 2, 3, 4] : !mesh.sharding",
        "no sharded dims offsets",
    ),
    (19, FORMS["update_halo"][0], "no mesh.update_halo"),
    (19, FORMS["shard"][0], "no sharding that is not given by a mesh.sharding"),
    (21, FORMS["shard_shape"][0], "no linear device number in shard_shape"),
    (22, FORMS["sharding"][2], "no partial shardings"),
]


@pytest.mark.parametrize(("version", "line", "message"), REFUSED)
def test_what_a_release_cannot_say_is_named(version: int, line: str, message: str) -> None:
    module = read(program(line), "a.mlir", CONTEXT)
    with pytest.raises(OpError, match=rf"a\.mlir:8:\d+: error: .*cannot be written for LLVM {version}, which has {message}"):
        VERSIONS[version].write(module)


def test_upstream_cannot_read_a_sharding_without_lists_that_it_prints() -> None:
    """LLVM 21 and 22 annotate scalars with `split_axes = []`, which their own parsers refuse; ours reads it."""
    text = program("%0 = mesh.sharding @m0 split_axes = [] : !mesh.sharding")
    done = subprocess.run([tool(21), "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "expected '['" in done.stderr
    check_round_trip(21, text)
