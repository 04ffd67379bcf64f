"""`mesh-opt`: runs passes by name over a program, as `mlir-opt` does."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from meshbridge import pass_names, pipeline, progress
from meshbridge.decide.mutation_script import read_mutations
from meshbridge.decide.mutations import Mutation
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect import assembly
from meshbridge.dialect.chains import undefined_chains
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.passes import Analyses, Pass
from meshbridge.partitioner.gather_warnings import gathered_ops
from meshbridge.partitioner.mesh_spmdization import MeshSpmdization
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.reports.measured import mutate_and_measure
from meshbridge.text import did_you_mean
from meshbridge.tools import arguments, console, expectations
from meshbridge.tools.crash_guard import guarded
from meshbridge.tools.interface_text import interface_text, operations_text
from meshbridge.upstream.sharding_propagation import ShardingPropagation

SEPARATOR = "// -----\n"
"""The separator of the modules in a split input and its output."""

_READERS = (ShardingPropagation, ShardingRefinement, MeshSpmdization)
"""The passes that read annotations of the mesh dialect, and do nothing without them."""

_NEEDLESS = ("--allow-unregistered-dialect", "--mlir-disable-threading", "--mlir-print-ir-module-scope")

_BOOLEAN = {"true": True, "1": True, "false": False, "0": False}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `mesh-opt`; returns the exit status."""
    return console.run("mesh-opt", lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(argv: list[str]) -> int:
    _load_plugins(argv)
    flags, arguments_left = _pass_flags(argv)
    options = _parser().parse_args(arguments_left)
    steps = _steps(flags, options)
    _check(options)
    data = files.read_bytes(options.input)
    mutations = () if options.mutate is None else read_mutations(files.read_bytes(options.mutate), options.mutate)
    job = _Job(steps, options, files.display_name(options.input), mutations)
    if options.verify_diagnostics:
        return job.check(data)
    job.write([job.convert(chunk, lambda text: console.say(text, sys.stderr)) for chunk in job.chunks(data)])
    return 0


def _load_plugins(argv: Sequence[str]) -> None:
    """Loads the pass plugins of the command line, whose passes are flags of it. Raises UsageError for one that fails."""
    parser = console.Parser(prog="mesh-opt", add_help=False, allow_abbrev=False)
    _add_plugins(parser)
    with _usage():
        for path in parser.parse_known_args(argv)[0].load_pass_plugin:
            pass_names.load_plugin(path)


def _add_plugins(parser: console.Parser) -> None:
    parser.add_argument(
        "--load-pass-plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that registers passes of its own, which are flags then",
    )


def _steps(flags: Sequence[Pass], options: argparse.Namespace) -> tuple[Pass, ...]:
    """The passes to run. Raises UsageError for an invalid pipeline, and for a pipeline beside flags."""
    if options.pass_pipeline is None:
        return tuple(flags)
    if flags:
        raise console.UsageError("mesh-opt: error: pass flags and --pass-pipeline exclude each other")
    with _usage():
        return pass_names.parse_pipeline(options.pass_pipeline)


@contextmanager
def _usage() -> Iterator[None]:
    """Raises errors of a pass's name or options as UsageError."""
    try:
        yield
    except MeshError as error:
        raise console.UsageError(str(error)) from None


_TEXT_OPTIONS = {
    "mlir_print_op_generic": "generic",
    "mlir_print_debuginfo": "debuginfo",
    "mlir_print_local_scope": "local_scope",
    "mlir_elide_elementsattrs_if_larger": "elide_larger_than",
}
"""Options of printed MLIR text, and their names in `assembly.write`."""


def _check(options: argparse.Namespace) -> None:
    """Raises UsageError for options without effect, and for unknown formats and passes."""
    by_name = formats.formats()
    if options.emit_spelling is not None and options.emit_spelling not in by_name:
        known = f"{', '.join(by_name)}{did_you_mean(options.emit_spelling, by_name)}"
        message = f"unknown format '{options.emit_spelling}', expected one of {known}"
        raise console.UsageError(f"mesh-opt: error: {message}")
    for when in ("before", "after"):
        for name in filter(None, vars(options)[f"mlir_print_ir_{when}"].split(",")):
            if name not in pass_names.passes_by_any_name():
                near = did_you_mean(name, pass_names.passes_by_any_name())
                raise console.UsageError(f"mesh-opt: error: --mlir-print-ir-{when}: unknown pass '{name}'{near}")
    values = {f"--{name.replace('_', '-')}": value not in (None, False, "") for name, value in vars(options).items()}
    texts = [f"--{name.replace('_', '-')}" for name in _TEXT_OPTIONS]
    useless: dict[str, str] = {}
    if printed := [name for name in _NO_IR if values[name]]:
        why = f"with {printed[0]}, which prints no IR"
        other_options = [name for name in _NO_IR if name != printed[0]]
        useless = dict.fromkeys(["--emit-bytecode", "--emit-spelling", *other_options, *texts], why)
    elif options.emit_bytecode:
        useless = dict.fromkeys(["--emit-spelling", *texts], "with --emit-bytecode") | {"--split-input-file": _UNSPLIT}
    elif options.emit_spelling is not None and (chosen := by_name[options.emit_spelling]) is not formats.TEXT:
        useless = dict.fromkeys(texts, f"with --emit-spelling={chosen.name}, which has one form only")
        if not chosen.is_spelling:
            useless["--split-input-file"] = _UNSPLIT
    if any(value for name, value in values.items() if name.startswith("--mlir-print-ir-")):
        useless = {name: why for name, why in useless.items() if name not in texts}  # the dumps are text
    if options.mutate is None:
        useless |= dict.fromkeys(["--machine", "--json"], "without --mutate")
    console.refuse_ignored("mesh-opt", useless, values)


_NO_IR = ("--print-sharding-interface", "--print-operations")
"""Options that print text other than the program."""

_UNSPLIT = "on a binary output, which holds one module"


def _pass_flags(argv: Sequence[str]) -> tuple[list[Pass], list[str]]:
    """Splits the command line into pass flags, `--name` or `--name=option=value`, in order, and other arguments."""
    by_name = pass_names.passes_by_any_name()
    steps: list[Pass] = []
    remaining: list[str] = []
    for argument in argv:
        name, _, options = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in by_name:
            with _usage():
                steps.append(pass_names.make_pass(name, options.strip("{}")))
        else:
            # LLVM's tools accept one dash for two: `-split-input-file`.
            one_dash = len(argument) > 2 and argument[0] == "-" and argument[1].isalpha()
            remaining.append(f"-{argument}" if one_dash else argument)
    return steps, remaining


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="mesh-opt",
        description="Runs passes over a program: MLIR text or bytecode, a StableHLO portable artifact, or a jax.export artifact.",
        epilog=_pass_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_version()
    parser.add_completion({f"--{name}": _summary(step) for name, step in pass_names.registered_passes().items()})
    add = parser.add_argument
    add("input", nargs="?", default="-", help="a file, or - for standard input (the default)")
    add("-o", dest="output", default="-", help="a file, or - for standard output (the default)")
    _add_plugins(parser)
    add("--pass-pipeline", metavar="PIPELINE", help="'builtin.module(a,b{option=value})' in place of pass flags")
    add("--split-input-file", action="store_true", help="the input holds several modules between lines of // -----")
    add("--verify-diagnostics", action="store_true", help="check diagnostics against expected-error comments")
    add(
        "--verify-each",
        type=_boolean,
        default=True,
        metavar="BOOL",
        help="verify at the start and after each pass (default: true)",
    )
    add(
        "--print-sharding-interface",
        action="store_true",
        help="print the loops and indexing maps of each operation",
    )
    add(
        "--mutate",
        metavar="SCRIPT",
        help="before all passes, make the mutations of a script, and print the metrics before and after",
    )
    arguments.add_machine(parser, None, "neutral, with --mutate alone")
    add("--json", action="store_true", help="with --mutate: the metrics for programs instead of people")
    add("--print-operations", action="store_true", help="print the operations that a mutation can name")
    add("--emit-bytecode", action="store_true", help="write MLIR bytecode")
    add("--emit-spelling", metavar="FORMAT", help=f"one of {', '.join(formats.formats())} (default: mlir)")
    for when in ("before", "after"):
        add(f"--mlir-print-ir-{when}-all", action="store_true", help=f"print the module on standard error {when} each pass")
        add(f"--mlir-print-ir-{when}", metavar="PASSES", default="", help=f"the same {when} these passes, commas between them")
    add("--mlir-print-local-scope", action="store_true", help="print maps and locations where they stand, without aliases")
    add("--mlir-print-op-generic", action="store_true", help="print operations in generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--mlir-elide-elementsattrs-if-larger", type=int, metavar="N", help="leave out constants of more elements")
    for flag in _NEEDLESS:
        add(flag, action="store_true", help="what is done anyway: accepted so that command lines for mlir-opt will do")
    add("--mlir-timing", action="store_true", help="print on standard error how long each pass took")
    add("--quiet", action="store_true", help="show no progress on a terminal")
    return parser


def _boolean(text: str) -> bool:
    if text not in _BOOLEAN:
        raise argparse.ArgumentTypeError(f"expected true or false, found '{text}'")
    return _BOOLEAN[text]


def _summary(step: type[Pass]) -> str:
    return (inspect.getdoc(step) or "").splitlines()[0]


def _pass_help() -> str:
    lines = ["passes, each a flag (--name, --name=option=value):"]
    for name, step in pass_names.registered_passes().items():
        lines.append(f"  --{name}" + (f" (also {', '.join(f'--{alias}' for alias in step.aliases)})" if step.aliases else ""))
        lines.append(f"      {_summary(step)}")
        lines += [f"      {option}: default {default}" for option, default in pass_names.defaults(step()).items()]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Job:
    """One invocation, which runs passes over each module of the input."""

    steps: tuple[Pass, ...]
    options: argparse.Namespace
    filename: str
    mutations: tuple[Mutation, ...] = ()

    def chunks(self, data: bytes) -> list[bytes]:
        """The modules of the input as bytes, with their line numbers."""
        if not self.options.split_input_file:
            return [data]
        if not formats.TEXT.detect(data):
            raise MeshError(f"{self.filename}: error: --split-input-file needs MLIR text")
        return [chunk.encode() for chunk in assembly.split_input(data.decode())]

    def convert(self, chunk: bytes, warn: Callable[[str], object]) -> bytes:
        """Reads, runs the passes, and prints one module; `warn` gets the text of each warning."""
        with guarded(self.filename, len(chunk)):
            program = files.parse_program(chunk, self.filename)
        with files.about(self.filename, program.format.wording):
            return self._convert(program, lambda text: warn(program.format.wording(text)))

    def _convert(self, program: Program, warn: Callable[[str], object]) -> bytes:
        if self.options.verify_each:
            pipeline.verify(program.module)
            for warning in undefined_chains(program.module):
                warn(warning)
        if self.mutations:
            self._mutate(program.module)
        timings: list[pipeline.Timing] = []
        analyses: Analyses = {}
        verified: pipeline.Verify = "each" if self.options.verify_each else "none"
        with progress.shown([step.name for step in self.steps], quiet=self.options.quiet) as steps:
            for count, step in enumerate(self.steps):
                self._dump("before", step, program.module)
                if isinstance(step, _READERS) and not any(isinstance(earlier, _READERS) for earlier in self.steps[:count]):
                    self._warn_of_unread(step, program.module, warn)
                timings += pipeline.run((step,), program.module, verified=verified, analyses=analyses)
                self._dump("after", step, program.module)
                if isinstance(step, MeshSpmdization):
                    for warning in gathered_ops(program.module, {earlier.name for earlier in self.steps[:count]}):
                        warn(warning)
                steps.done(step.name)
        if self.options.mlir_timing:
            for timing in timings:
                console.say(f"{timing.seconds:9.4f} s {timing.verify_seconds:9.4f} s verify  {timing.name}", sys.stderr)
        return self._print(program)

    def _warn_of_unread(self, step: Pass, module: ir.Module, warn: Callable[[str], object]) -> None:
        """Warns if the program carries shardings in a notation that the pass does not read."""
        notation = formats.find_notation(module)
        if notation is not None:
            hint = f"run --{ImportShardings.name} before, which turns them into annotations of the mesh dialect"
            what = f"{step.name} does not read the shardings of the program, which are in the notation '{notation.name}'"
            warn(f"{self.filename}: warning: {what}\n  hint: {hint}")

    def _mutate(self, module: ir.Module) -> None:
        """Mutates a program, and prints the metrics; on standard error if the program goes to standard output."""
        machine = self.options.machine or pipeline.DEFAULTS.target.name
        measured = mutate_and_measure(module, self.mutations, pipeline.Options.of(emit="mesh", machine=machine))
        text = measured.to_json() if self.options.json else measured.table()
        console.say(text, sys.stderr if self.options.output == "-" else sys.stdout)

    def check(self, data: bytes) -> int:
        """Converts every module, comparing diagnostics with those that the input expects."""
        outputs: list[bytes] = []
        complaints: list[str] = []
        for chunk in self.chunks(data):
            messages: list[str] = []
            try:
                outputs.append(self.convert(chunk, messages.append))
            except MeshError as error:
                messages.append(str(error))
            wanted = expectations.expectations(chunk.decode())
            complaints += expectations.mismatches(wanted, expectations.diagnostics("\n".join(messages)))
        if complaints:
            raise MeshError("\n".join(f"{self.filename}: error: {complaint}" for complaint in complaints))
        self.write(outputs)
        return 0

    def write(self, outputs: Sequence[bytes]) -> None:
        files.write_bytes(self.options.output, SEPARATOR.encode().join(outputs))

    def _dump(self, when: str, step: Pass, module: ir.Module) -> None:
        """Prints the module if the options ask for it `before` or `after` this pass."""
        options = vars(self.options)
        named = options[f"mlir_print_ir_{when}"].split(",")
        if options[f"mlir_print_ir_{when}_all"] or not {step.name, *step.aliases}.isdisjoint(named):
            console.say(f"// -----// IR Dump {when.capitalize()} {step.name} //----- //\n{self._text(module)}", sys.stderr)

    def _text(self, module: ir.Module) -> str:
        return assembly.write(module, **{argument: vars(self.options)[name] for name, argument in _TEXT_OPTIONS.items()})

    def _print(self, program: Program) -> bytes:
        if self.options.print_sharding_interface:
            return interface_text(program.module).encode()
        if self.options.print_operations:
            return operations_text(program.module).encode()
        if self.options.emit_bytecode:
            return mlir.to_bytecode(program.module)
        chosen = formats.formats()[self.options.emit_spelling or formats.TEXT.name]
        return self._text(program.module).encode() if chosen is formats.TEXT else chosen.write(program)


if __name__ == "__main__":
    sys.exit(main())
