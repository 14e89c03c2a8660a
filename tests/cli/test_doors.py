"""The command line as a person meets it: help, lists, errors, exit codes, and how fast it answers."""

import json
import re
import resource
import subprocess
import sys

import pytest

from assay import __version__, catalog

HEAVY = ("torch", "transformers", "ray", "matplotlib", "pandas", "scipy", "sklearn")
COMMANDS = [[], ["list"], ["show"], ["try"], ["tour"], ["report"], ["data"], ["data", "get"], ["doctor"], ["use"]]


def test_it_says_its_version(assay):
    assert assay("--version").stdout == f"assay {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(assay, command):
    done = assay(*command, "--help")
    assert done.returncode == 0
    assert f"assay {' '.join(command)}".strip() in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", ["import assay", "from assay.cli.main import main; main(['--help'])"])
def test_nothing_heavy_is_imported_for_a_look_at_it(code):
    report = f"import sys, atexit\natexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules]))\n{code}"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["-c", "import assay"], ["-m", "assay", "--help"]])
def test_a_look_at_it_takes_under_half_a_second_warm(arguments):
    def seconds() -> float:  # of CPU: what it takes where nothing else runs, on a busy machine too
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.5


def test_list_shows_what_is_available_and_all_shows_the_rest(assay):
    usable, everything = (json.loads(assay("list", *flags, "--json").stdout) for flags in ([], ["--all"]))
    assert [m["slug"] for m in usable] == [m.slug for m in catalog.available()]
    assert len(everything) >= 49
    assert {m["status"] for m in everything} == {"available", "planned"}


def test_list_of_a_family_shows_only_that_family(assay):
    shown = json.loads(assay("list", "--all", "--json", "--family", "audit").stdout)
    assert {m["family"] for m in shown} == {"audit"}


def test_an_unknown_family_is_answered_with_the_known_ones(assay):
    done = assay("list", "--family", "magic")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no family 'magic'; there are compress, decode, nn")


def test_show_ends_with_a_citation_that_is_never_wrapped(assay):
    done = assay("show", "judge-rank")
    citation = done.stdout[done.stdout.index("@inproceedings") :].strip()
    assert citation == catalog.get("judge-rank").paper.bibtex("judge-rank")


def test_bad_input_is_one_sentence_on_stderr_and_exit_code_2(assay):
    done = assay("show", "judgerank")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no method 'judgerank'; did you mean 'judge-rank'?\n"


def test_debug_shows_the_traceback_wherever_it_stands(assay):
    for arguments in (["--debug", "show", "judgerank"], ["show", "judgerank", "--debug"]):
        done = assay(*arguments)
        assert done.returncode == 2
        assert "Traceback (most recent call last)" in done.stderr


def test_a_fault_of_ours_is_exit_code_1_and_says_how_to_see_more(monkeypatch, capsys):
    from assay.cli import main as door

    monkeypatch.setattr(catalog, "get", lambda slug: 1 / 0)
    with pytest.raises(SystemExit) as left:
        door.main(["show", "judge-rank"])
    assert left.value.code == 1
    assert capsys.readouterr().err == (
        "assay failed: ZeroDivisionError: division by zero\nRun it again with --debug to see where.\n"
    )


def test_a_method_whose_extra_is_missing_says_which_to_install():
    code = "import sys; sys.modules['choix'] = None; from assay.cli.main import main; main(['try', 'judge-rank'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: judge-rank needs the package 'choix', which is not installed: pip install 'assay-ml[evaluate]'\n"
    )


def test_try_without_a_method_asks_for_one(assay):
    done = assay("try")
    assert done.returncode == 2
    assert done.stderr == "error: name a method (`assay list` shows them) or give --resume DIR\n"


@pytest.mark.parametrize("text", ["votes", "=3"])
def test_a_parameter_without_key_or_sign_is_refused(assay, text):
    done = assay("try", "judge-rank", "-p", text)
    assert done.returncode == 2
    assert "-p takes KEY=VALUE" in done.stderr


def test_doctor_names_the_machine_the_extras_and_the_data(assay):
    found = json.loads(assay("doctor", "--json").stdout)
    assert found["assay"] == __version__
    assert found["machine"]["cores"] >= 1
    assert set(found["extras"]) >= {"evaluate", "lm", "ray", "mlflow"}
    assert re.fullmatch(r"\d.*", found["extras"]["evaluate"]["choix"])
    assert "judge-votes-arena" in found["cache"]["data"]


def test_doctor_for_people_says_what_to_install(assay):
    done = assay("doctor")
    assert done.returncode == 0
    assert "memory" in done.stdout
    assert "GiB" in done.stdout
