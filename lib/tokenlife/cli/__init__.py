"""The command ``tokenlife``: one subcommand for each level of the spine.

A subcommand is a module with ``HELP`` (one line), ``configure(parser)`` and ``run(args)``. ``run``
returns a :class:`Result`; this module prints it, as a table or with ``--json``. Bad input raises a
:class:`~tokenlife.errors.TokenlifeError`: one line on standard error and exit status 2.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
from dataclasses import dataclass

from tokenlife import __version__
from tokenlife.errors import TokenlifeError

COMMANDS = ("tokens", "model", "collective", "traffic", "plan", "wire", "wan", "lab", "trace")


@dataclass(frozen=True)
class Result:
    """What a subcommand found: ``data`` for scripts, ``text`` for people."""

    data: dict | list
    text: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        """Say what is wrong in one line; argparse would print the whole usage first."""
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def _parser() -> _Parser:
    parser = _Parser(prog="tokenlife", description="Follow a token from words to bits on the wire.")
    parser.add_argument("--version", action="version", version=f"tokenlife {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for name in COMMANDS:
        module = importlib.import_module(f"tokenlife.cli.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(command)
        command.add_argument("--json", action="store_true", help="print JSON for scripts")
        command.set_defaults(run=module.run)
    return parser


def _torn(text: str) -> bool:
    """Say whether an argument was no UTF-8: Python then holds its bytes as lone surrogates."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or 2 after one line about bad input.

    Examples
    --------
    >>> main(["tokens", "hi", "--vocabulary", "gpt2"])      # doctest: +SKIP
    0
    """
    try:
        args = _parser().parse_args(argv)
        if sys.stdout is None:
            raise TokenlifeError("cannot write the output: standard output is closed")
        if hasattr(sys.stdout, "reconfigure"):  # a terminal without a letter shows its number
            sys.stdout.reconfigure(errors="backslashreplace")
        if _torn(getattr(args, "text", None) or ""):
            raise TokenlifeError("the words on the command line are no UTF-8 text")
        result = args.run(args)
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        print(json.dumps(result.data, ensure_ascii=not unicode) if args.json else result.text)
        sys.stdout.flush()
    except TokenlifeError as error:
        print(f"tokenlife: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (`head`, `less`) has seen enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk behind the output
        print(f"tokenlife: cannot write the output: {error.strerror}", file=sys.stderr)
        with contextlib.suppress(OSError):  # or Python tries again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        print("tokenlife: interrupted", file=sys.stderr)
        return 130
    return 0
