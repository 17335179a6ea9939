"""The command line: quick help, one-line errors, exit codes, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator

import click
import pytest

import likewise.cli.__main__ as line
from likewise import cli
from likewise.errors import ConvergenceWarning, FileError, InputError

HEAVY = ("torch", "numba", "sklearn", "matplotlib", "cv2", "scipy", "skimage", "dask", "av")
MOST_CPU_SECONDS = 0.35


def likewise(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "likewise.cli", *words]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Make `likewise doctor` raise what a test hands in."""

    def install(error: BaseException) -> None:
        def run() -> None:
            raise error

        monkeypatch.setitem(cli.command.lazy, "doctor", ("tests_fake:doctor", "fails"))
        fake = type(sys)("tests_fake")
        fake.doctor = click.Command("doctor", callback=run)
        monkeypatch.setitem(sys.modules, "tests_fake", fake)

    return install


HELPS = [[], ["sets"], ["compare"], ["pixels", "match"], ["sets", "distances"], ["demo"], ["weights", "list"]]

PROBE = """
import json, resource, sys
from likewise.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_utime + used.ru_stime, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_is_quick_and_imports_nothing_heavy(words: list[str]) -> None:
    runs = []
    for _ in range(3):
        line = [sys.executable, "-c", PROBE, *words, "--help"]
        run = subprocess.run(line, capture_output=True, text=True, check=True)
        code, seconds, modules = json.loads(run.stderr.splitlines()[-1])
        assert code == 0
        assert run.stdout.startswith("Usage: likewise")
        assert [m for m in HEAVY if m in modules] == []
        runs.append(seconds)
        if seconds < MOST_CPU_SECONDS:
            return
    pytest.fail(f"--help took {min(runs):.2f} CPU-s at best of three; at most {MOST_CPU_SECONDS} is allowed")


@pytest.mark.parametrize(("package", "heavy"), [("likewise", HEAVY), ("likewise.studio.app", HEAVY[:3])])
def test_importing_imports_nothing_heavy(package: str, heavy: tuple[str, ...]) -> None:
    """The studio's address is printed before any level is imported."""
    code = f"import sys, {package}; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def commands(group: click.Group, context: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        result = group.get_command(context, name)
        assert result is not None, name
        assert result.name == name
        if isinstance(result, click.Group):
            yield from commands(result, context, f"{path} {name}")
        else:
            yield f"{path} {name}", result


def test_every_command_loads_and_has_an_example_in_its_help() -> None:
    context = click.Context(cli.command)
    every = dict(commands(cli.command, context, "likewise"))
    assert len(every) == 29
    for path, command in every.items():
        assert path in str(command.help), path


def test_there_are_at_most_250_options() -> None:
    context = click.Context(cli.command)
    every = [*commands(cli.command, context, "likewise"), ("likewise", cli.command)]
    options = [
        p for _, c in every for p in c.get_params(context) if isinstance(p, click.Option) and "--help" not in p.opts
    ]
    assert len(options) <= 250


def test_options_of_a_training_stand_under_headings() -> None:
    text = likewise("pixels", "train", "--help").stdout
    assert text.index("Options:") < text.index("Length:") < text.index("--steps") < text.index("Data:")


def test_version_is_the_package_s() -> None:
    import likewise as lw

    assert likewise("--version").stdout.strip() == f"likewise {lw.__version__}"


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (InputError("weights of signature 3 sum to 0"), "likewise: weights of signature 3 sum to 0", 2),
        (FileError("a.png: truncated\nafter 12 bytes"), "likewise: a.png: truncated after 12 bytes", 2),
        (FileNotFoundError(2, "No such file or directory", "a.npz"), "likewise: a.npz: No such file or directory", 2),
        (PermissionError(13, "Permission denied", b"b.npz"), "likewise: b.npz: Permission denied", 2),
        (FileError("\x1b[31m\udcff.png: empty"), r"likewise: \x1b[31m\udcff.png: empty", 2),
        (click.ClickException("odd"), "likewise: odd", 2),
        (KeyboardInterrupt(), "likewise: interrupted", 130),
        (click.Abort(), "likewise: interrupted", 130),
        (ZeroDivisionError("x"), "likewise: ZeroDivisionError: x (not foreseen: --debug shows the trace)", 2),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(failing, capsys, error: BaseException, said: str, code: int) -> None:
    failing(error)
    assert cli.main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert err == said + "\n"
    assert out == ""


@pytest.mark.parametrize("words", [["--debug", "doctor"], ["doctor", "--debug"]])
def test_debug_lets_the_trace_through(failing, words: list[str]) -> None:
    failing(InputError("odd"))
    with pytest.raises(InputError):
        cli.main(words)


def test_debug_after_two_dashes_is_an_argument() -> None:
    assert line._take(["a", "--debug", "b"], "--debug") == (["a", "b"], True)
    assert line._take(["a", "--", "--debug"], "--debug") == (["a", "--", "--debug"], False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["doctor", "--jsn"], "likewise: No such option"),
        (["doctor", "--jsn"], "(likewise doctor --help)"),
        (["nothing"], "likewise: no such command 'nothing' (likewise --help)\n"),
        (["docter"], "did you mean 'doctor'?"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_usage_errors_are_one_line_that_names_the_help(capsys, words: list[str], said: str) -> None:
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_no_words_at_all_shows_the_help(capsys) -> None:
    assert cli.main([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_broken_pipe_is_quiet(tmp_path) -> None:
    """The reader is gone before the first byte, so that the pipe is surely broken."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    line = [sys.executable, "-m", "likewise.cli", "--help"]
    run = subprocess.run(line, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert run.returncode == 141
    assert run.stderr == ""


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(
        line, "_invoke", lambda words: warnings.warn("not converged", ConvergenceWarning, stacklevel=1) or 0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main([]) == 0
    assert capsys.readouterr().err == "likewise: warning: not converged\n"


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --")])
def test_completion_prints_the_script(capsys, shell: str, word: str) -> None:
    assert cli.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert word in out
    assert "_LIKEWISE_COMPLETE" in out


def test_completion_offers_the_commands() -> None:
    run = likewise(_LIKEWISE_COMPLETE="bash_complete", COMP_WORDS="likewise do", COMP_CWORD="1")
    assert run.returncode == 0
    assert run.stdout.split() == ["plain,doctor"]


def test_ctrl_c_is_one_line_and_130() -> None:
    code = (
        "import signal, sys, time; from likewise import cli; import likewise.cli.__main__ as line\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job inherits it ignored
        "def wait(words): print('ready', flush=True); time.sleep(60)\n"
        "line._invoke = wait; sys.exit(cli.main([]))"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 130
    assert err == "likewise: interrupted\n"
