"""What the documents show runs as printed, and has the types that they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import jax
import pytest

import meshbridge
from tests import architecture, documents, pass_tables
from tests.documentation import DOCUMENTS, PAGES, run_blocks
from tests.house import ROOT

QUICK = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/cli.md",
    "docs/python-api.md",
    "docs/resharding.md",
)
"""Pages whose code runs in `make test`, in less than 60 s of CPU time together; others are slow."""

OF_THE_README = (
    "docs/converters.md",
    "docs/mutations.md",
    "docs/other-compilers.md",
    "docs/report.md",
    "docs/search.md",
    "docs/shard-map.md",
    "docs/targets.md",
    "docs/verify.md",
)
"""Pages that go on with the README's model.jax_export."""

IN_A_CHECKOUT = ("CONTRIBUTING.md", "docs/references.md")
"""Pages whose code reads files of the repository."""

NOT_RUN = {
    "README.md": 1,
    "docs/benchmarks.md": 2,
    "docs/distributed.md": 4,
    "docs/other-compilers.md": 1,
    "docs/performance.md": 1,
    "docs/targets.md": 2,
    "docs/tutorials/training-step.md": 1,
}
"""How many blocks of a page are not run; each says why in the comment above it."""

SHOWN = ("json", "mlir", "text", "toml", "yaml")
"""Kinds of blocks that nobody runs."""


WRITE = "MESHBRIDGE_WRITE_DOCS"
"""Environment variable that has the output blocks of the pages written anew where what they show is no longer what is printed."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The artifact that the README's model.py writes."""
    folder = tmp_path_factory.mktemp("readme")
    file = next(block for block in documents.blocks(PAGES["README.md"]) if block.title == "model.py")
    run_blocks(f'```python title="model.py"\n{file.code}```\n```sh\npython model.py\n```\n', "page.md", folder)
    return (folder / "model.jax_export").read_bytes()


def running() -> list[object]:
    """The pages of which something runs."""
    pages = [name for name, text in PAGES.items() if any(block.runs for block in documents.blocks(text))]
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in pages]


@pytest.mark.parametrize("name", running())
def test_code_runs_as_printed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its blocks follow each other, in a fresh folder; those that show output show what is printed."""
    if name in OF_THE_README:
        (tmp_path / "model.jax_export").write_bytes(request.getfixturevalue("model"))
    if name in IN_A_CHECKOUT:
        (tmp_path / "testdata").symlink_to(ROOT / "testdata")
    write = os.environ.get(WRITE) == "1"
    text = run_blocks(PAGES[name], Path(name).name, tmp_path, write=write)
    if write:
        (ROOT / name).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_show_what_their_cells_show_now(path: Path) -> None:
    """`python -m tests.notebooks --write NOTEBOOK` writes it."""
    pytest.importorskip("nbclient")
    from tests import notebooks

    if os.environ.get(WRITE) == "1":
        notebooks.main(["--write", str(path)])
    assert notebooks.differences(path) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_block_says_what_it_is(name: str) -> None:
    """No block is left out without a reason, none is indented (which no kind can be said of), and none is overlooked."""
    found = list(documents.blocks(PAGES[name]))
    assert not [block.line for block in found if block.kind not in (*documents.RUN, *SHOWN)]
    assert sum(line.startswith("```") for line in PAGES[name].splitlines()) == 2 * len(found)
    outside = re.sub(r"^```.*?^```$", "", PAGES[name], flags=re.M | re.S)
    assert not re.findall(r"^\n(?:    |\t)\S.*", outside, re.M)


def test_the_pages_stay_short() -> None:
    """What a command prints, or what another page says, is not repeated: shorten before adding."""
    assert sum(text.count("\n") for name, text in PAGES.items() if name.startswith("docs/")) <= 4500


def test_what_is_not_run() -> None:
    blocks = [(name, block) for name, text in PAGES.items() for block in documents.blocks(text)]
    assert Counter(name for name, block in blocks if block.reason) == NOT_RUN


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    """The line is the page's; commands stop at the first that fails, also within a pipe; output has to be what is shown."""
    with pytest.raises(AssertionError, match=r'page.md", line 4'):
        run_blocks("text\n\n```python\n1 / 0\n```\n", "page.md", tmp_path)
    with pytest.raises(AssertionError, match="CalledProcessError"):
        run_blocks("```sh\nfalse | cat\ntrue\n```\n", "page.md", tmp_path)
    shown = "```python\nx = 3\n```\n```sh\necho a\n```\n```python\nprint(x)\n```\n\n<!-- output -->\n\n```text\n{}\n```\n"
    run_blocks(shown.format(3), "page.md", tmp_path)
    with pytest.raises(AssertionError, match="show something else than its code prints"):
        run_blocks(shown.format(4), "page.md", tmp_path)


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="the page shows IR as the newest jaxlib prints it")
def test_architecture_is_up_to_date() -> None:
    assert architecture.PAGE.read_text() == architecture.page(), "write it anew: python -m tests.architecture"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    """What draws the pictures of README.md."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="the picture is of the report with the newest jax")
def test_the_picture_of_the_report_is_what_is_printed(pictures: ModuleType) -> None:
    assert (pictures.FOLDER / "report.svg").read_text() == pictures.report_svg(), "outdated, run: make pictures"


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="the picture is of the search with the newest jax")
def test_the_picture_of_the_search_is_what_is_printed(pictures: ModuleType) -> None:
    assert (pictures.FOLDER / "search.svg").read_text() == pictures.search_svg(), "outdated, run: make pictures"


def test_tables_of_passes_are_up_to_date() -> None:
    assert pass_tables.PAGE.read_text() == pass_tables.refreshed(), f"outdated, run: {pass_tables.COMMAND}"


HOMES = [ROOT, ROOT / "bridge" / "meshbridge", ROOT / "converters" / "meshbridge_converters"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_document_names_exist(document: Path) -> None:
    """Links are relative to the document; code in backquotes is named from the root, or from that of a package."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    links = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    files = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text)
    assert not [target for target in links if not (document.parent / target).exists()]
    assert not [name for name in files if not any((home / name).exists() for home in HOMES)]


def test_documents_that_the_code_names_exist() -> None:
    """In docstrings, comments, help texts and machine files."""
    sources = [
        path for folder in ("bridge", "converters", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*")
    ]
    texts = {path: path.read_text() for path in sources if path.suffix in (".py", ".toml")}
    named = {(path, name) for path, text in texts.items() for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", text)}
    assert named
    assert not [(path.relative_to(ROOT).as_posix(), name) for path, name in named if not (ROOT / name).exists()]


def test_one_version() -> None:
    """CONTRIBUTING.md: that of the package, of the citation, and of what the changelog has first."""
    changed = re.search(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert changed is not None
    assert cited is not None
    assert changed[1] == cited[1] == meshbridge.__version__


def test_every_public_name_is_in_the_reference() -> None:
    found = re.findall(r"^::: (?:\w+\.)+(\w+)$", PAGES["docs/reference.md"], re.M)
    assert set(meshbridge.__all__) - {"__version__"} <= set(found)


TYPES = """
import jax
from jax import export
import meshbridge
from meshbridge.ir.mlir import ir

jitted = jax.jit(lambda x: x)

def double(x: float) -> float:
    return 2 * x

def kinds(artifact: export.Exported, loaded: meshbridge.Program, module: ir.Module) -> None:
    reveal_type(meshbridge.partition(artifact))  # Exported
    reveal_type(meshbridge.partition(artifact, resharding="exact", collectives="off"))  # Exported
    reveal_type(meshbridge.partition(artifact, emit="mesh"))  # Module
    reveal_type(meshbridge.partition(jitted, 1.0))  # Exported
    reveal_type(meshbridge.partition(jitted, kwargs={"x": 1.0}, replica_groups="mesh-axes"))  # Exported
    reveal_type(meshbridge.partition(jitted, 1.0, emit="local"))  # Module
    reveal_type(meshbridge.partition(jitted.lower(1.0)))  # Module
    reveal_type(meshbridge.partition(loaded, emit="annotated"))  # Program
    reveal_type(meshbridge.partition(module))  # Module
    reveal_type(meshbridge.report(jitted, 1.0, resharding="exact"))  # Report
    reveal_type(meshbridge.compile(module, collectives="off"))  # Executable
    reveal_type(meshbridge.convert(artifact, to="gspmd"))  # Program
    reveal_type(meshbridge.jit(double)(1.0))  # float
    reveal_type(meshbridge.jit(donate_argnums=0)(double)(x=1.0))  # float
    reveal_type(meshbridge.jit(double, machine="h100").report(1.0))  # Report
    meshbridge.jit(double)("text")  # refused
    meshbridge.jit(double, donate="x")  # refused
    meshbridge.partition(3)  # refused
    meshbridge.report(3)  # refused
    meshbridge.compile(3)  # refused
    meshbridge.convert(3, to="sdy")  # refused
    meshbridge.save(3, "file")  # refused
    meshbridge.partition(artifact, 1.0)  # refused
    meshbridge.partition(artifact, resharding="fastest")  # refused
    meshbridge.partition(artifact, emit="poem")  # refused
    meshbridge.partition(jitted, x=1.0)  # refused
    meshbridge.report(artifact, colectives="off")  # refused
"""


@pytest.mark.slow
def test_types_that_mypy_sees(tmp_path: Path) -> None:
    """The types of our own and of JAX are followed here, as they are for users; `make lint` does not follow JAX's.

    What mypy says of every line is what the line's comment says: the type, or that the line is an error.
    """
    (tmp_path / "program.py").write_text(TYPES)
    settings = "[mypy]\n[mypy-jax.*,meshbridge.*]\nfollow_imports = silent\n[mypy-jaxlib.*]\nignore_missing_imports = True\n"
    (tmp_path / "mypy.ini").write_text(settings)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
    environment = os.environ | {"MYPYPATH": f"{ROOT / 'bridge'}:{ROOT / 'converters'}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = dict(re.findall(r'program.py:(\d+): note: Revealed type is "(?:\w+\.)*(\w+)"', done.stdout))
    found |= dict.fromkeys(re.findall(r"program.py:(\d+): error: ", done.stdout), "refused")
    expected = {str(number): line.split("  # ")[1] for number, line in enumerate(TYPES.splitlines(), 1) if "  # " in line}
    assert found == expected, done.stdout
