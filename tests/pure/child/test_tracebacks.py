"""The text of a failure for an exception: its output, its notes and causes, and what a target got."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.child.texts import failure_of, failure_of_target
from mops.study.output_schema import InvalidOutput

PROGRAM = "import sys, time; print('mesh 1 read'); sys.stderr.write('no mesh 2\\n' * {lines}); {then}"


def failed_command(then: str, *, text: bool = True, lines: int = 1, timeout_s: float = 60) -> BaseException:
    """Return the exception of a command that prints and then fails."""
    program = PROGRAM.format(lines=lines, then=f"sys.stdout.flush(); sys.stderr.flush(); {then}")
    with pytest.raises(subprocess.SubprocessError) as raised:
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=text, timeout=timeout_s)
    return raised.value


def caused(cause: BaseException) -> BaseException:
    """Return an exception with a cause."""
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("no solution") from cause
    return raised.value


@pytest.mark.parametrize("text", [True, False])
def test_the_output_of_a_failed_command_is_in_the_message_and_in_the_traceback(text: bool) -> None:
    failure = failure_of(failed_command("sys.exit(3)", text=text))
    lines = ["stdout of the command:", "  mesh 1 read", "stderr of the command:", "  no mesh 2"]
    first, *more = failure["message"].splitlines()
    assert first.startswith("subprocess.CalledProcessError: Command ")
    assert first.endswith("returned non-zero exit status 3.")
    assert more == failure["traceback"].splitlines()[-4:] == lines


def test_the_output_of_a_command_that_runs_too_long_is_kept() -> None:
    error = subprocess.TimeoutExpired(["solve"], 2.0, output=b"mesh 1 read", stderr=b"no mesh \xff")
    assert failure_of(error)["message"].splitlines()[1:] == [
        "stdout of the command:",
        "  mesh 1 read",
        "stderr of the command:",
        "  no mesh \N{REPLACEMENT CHARACTER}",
    ]


def test_the_output_of_a_command_is_shown_where_it_is_the_cause() -> None:
    failure = failure_of(caused(failed_command("sys.exit(3)")))
    assert failure["message"] == "RuntimeError: no solution"
    lines = failure["traceback"].splitlines()
    assert lines.index("  no mesh 2") < lines.index("RuntimeError: no solution")


def test_a_command_without_captured_output_adds_nothing() -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)
    assert "\n" not in failure_of(raised.value)["message"]


def test_long_output_keeps_both_ends() -> None:
    failure = failure_of(failed_command("sys.stderr.write('the end'); sys.exit(1)", lines=1000))
    assert "stderr of the command:\n  no mesh 2\n" in failure["traceback"]
    assert "characters ...]" in failure["traceback"]
    assert failure["traceback"].endswith("  the end\n")


def test_notes_stay_and_the_exception_is_not_changed() -> None:
    error = failed_command("sys.exit(3)")
    error.add_note("look at the mesh")
    for _ in range(2):
        assert failure_of(error)["traceback"].splitlines()[-5:] == [
            "look at the mesh",
            "stdout of the command:",
            "  mesh 1 read",
            "stderr of the command:",
            "  no mesh 2",
        ]
    assert error.__notes__ == ["look at the mesh"]


@pytest.mark.parametrize("error", [ValueError(f"first {'x' * 9000} last"), InvalidOutput(f"first {'x' * 9000} last")])
def test_a_long_message_keeps_both_ends(error: Exception) -> None:
    message = failure_of(error)["message"]
    assert len(message) == 2000
    assert message.endswith("x last")
    assert "first x" in message


def replicate(rows: int) -> dict[str, pa.Table]:
    return {"daily": pa.table({"day": range(rows), "name": ["a"] * rows}), "total": pa.table({"n": [1.5]})}


def test_the_error_of_a_target_lists_what_it_was_given() -> None:
    failure = failure_of_target(KeyError("dayly"), {"beta": 1, "gamma": 2}, [replicate(3), replicate(5)])
    assert failure["message"].splitlines() == [
        "KeyError: 'dayly'",
        "the target got params beta, gamma and 2 replicates:",
        "  daily: 3 to 5 rows of day (int64), name (string)",
        "  total: 1 row of n (double)",
    ]


def test_a_wide_table_and_a_long_message_leave_room_for_each_other() -> None:
    wide = pa.table({f"a_long_name_of_a_column_{i}": [1] for i in range(500)})
    failure = failure_of_target(ValueError("x" * 9000), {}, [{"wide": wide}])
    assert len(failure["message"]) == 2000
    assert failure["message"].startswith("ValueError: xx")
    assert failure["message"].endswith("a_long_name_of_a_column_19 (int64) and 480 more")


def test_a_bad_loss_lists_it_too() -> None:
    failure = failure_of_target(InvalidOutput("the loss is nan"), {"beta": 1}, [replicate(1)])
    assert failure["reason"] == "invalid_output"
    assert "the target got params beta and 1 replicate:" in failure["message"]


def test_a_target_without_replicates_or_with_other_outputs_in_some_lists_what_there_is() -> None:
    assert failure_of_target(KeyError("x"), {}, [])["message"].endswith("params (none) and 0 replicates:")
    failure = failure_of_target(KeyError("x"), {}, [{}, replicate(2)])
    assert "  daily: 2 rows of day (int64), name (string)" in failure["message"].splitlines()


def test_a_syntax_error_whose_line_is_bytes_keeps_its_text_and_its_frames() -> None:
    """Regression: Python's traceback module raised, the child process ended, and the failure was `crashed`."""
    with pytest.raises(SyntaxError) as raised:
        raise SyntaxError("bad token", ("deck.inp", 3, 5, b"line of the deck\n"))
    failure = failure_of(raised.value)
    assert (failure["reason"], failure["message"]) == ("error", "SyntaxError: bad token (deck.inp, line 3)")
    assert "in test_a_syntax_error_whose_line_is_bytes" in failure["traceback"]
    assert failure["traceback"].endswith("SyntaxError: bad token (deck.inp, line 3)")


KINDS = {
    "Exception": (Exception, ("text",)),
    "BaseException": (BaseException, ()),
    "SyntaxError": (SyntaxError, ("text", ("deck.inp", 3, 5, "line"))),
    "CalledProcessError": (subprocess.CalledProcessError, (1, "solver")),
    "ExceptionGroup": (ExceptionGroup, ("text", [ValueError("inner")])),
    "PermissionError": (PermissionError, (13, "text", "file")),
    "NameError": (NameError, ("text",)),
}
ATTRIBUTES = (
    *("__str__", "__repr__", "__notes__", "__cause__", "__context__", "__suppress_context__", "__traceback__"),
    *("__class__", "__module__", "__getattribute__", "__hash__", "__eq__", "__format__", "args", "exceptions"),
    *("message", "filename", "text", "lineno", "offset", "end_offset", "msg", "name", "print_file_and_line"),
    *("stdout", "stderr", "cmd", "returncode", "strerror", "errno"),
)


def raising(error: type[BaseException]) -> property:
    def get(_self: object) -> object:
        raise error("of the attribute")

    return property(get, lambda _self, _value: None)


VALUES = {
    "raises": raising(ValueError),
    "exits": raising(SystemExit),
    "is interrupted": raising(KeyboardInterrupt),
    "number": 5,
    "bytes": b"\xff",
    "surrogate": "\udcff",
    "array": np.arange(3),
    "list": [1, None],
}


@given(
    st.sampled_from(list(KINDS)),
    st.dictionaries(st.sampled_from(ATTRIBUTES), st.sampled_from(list(VALUES)), max_size=4),
    st.booleans(),
)
def test_every_exception_can_be_described(kind: str, attributes: dict[str, str], as_cause: bool) -> None:
    base, arguments = KINDS[kind]
    hostile = type("Hostile", (base,), {name: VALUES[value] for name, value in attributes.items()})
    error = hostile(*arguments)
    try:
        if as_cause:
            raise RuntimeError("no solution") from error
        raise error
    except BaseException as caught:
        failure = failure_of_target(caught, {"x": 1}, [replicate(1)])
    assert failure["reason"] == "error"
    assert "the target got params x and 1 replicate:" in failure["message"]
    for text in failure.values():
        text.encode()
    assert ("RuntimeError: no solution" if as_cause else "Hostile") in failure["message"]
    assert failure["traceback"]
