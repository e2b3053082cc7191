from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console

from gradwright.checking.report import SampleNote, Stated, Support, Usage
from gradwright.reporting import summary, terminal
from gradwright.reporting.paragraphs import no_command
from gradwright.reporting.summary import HEADINGS
from gradwright.reporting.terminal import plain_text


def rendered(entries, *, width=100, encoding="utf-8", verbose=False, usage=(), again=no_command, **options) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, **options)
    terminal.render(entries, console, verbose=verbose, usage=usage, encoding=encoding, again=again)
    stream.seek(0)
    return stream.read()


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_a_single_pass_is_short_and_says_what_was_examined(make):
    text = plain_text([make.report()])
    assert text.startswith("✓ Exp passed (2 pass)\n")
    assert "Function in ops.py:12; level standard, seed 7, torch 2.13.0, 0.12 s" in text
    assert "is the gradient right?  ✓ matches-differences" in text
    assert "declared: x: float64 (4, 2), k=2" in text
    assert "relative errors above 3e-09 (matches-differences) would have been seen" in text
    assert len(text.splitlines()) <= 10
    assert str(make.report()) == text


def test_a_subject_of_which_most_could_not_be_told_has_not_passed(make):
    hangs = [make.result(f"contract-{i}", "unresolved", message="stopped after 60 s") for i in range(3)]
    report = make.report("Hangs", make.result("gradient-count"), make.result("vmap", "skipped"), *hangs)
    assert plain_text([report]).startswith("? Hangs: unresolved (")
    text = plain_text([report, make.report()])
    assert "2 subjects: 1 passed, 0 failed, 0 suspect, 0 could not be run, 1 unresolved" in text
    settled = make.report("Settled", make.result("gradient-count"), make.result(), *hangs[:2])
    assert plain_text([settled]).startswith("✓ Settled passed")


def test_a_finding_says_what_where_both_values_and_what_to_do(make):
    text = plain_text([make.broken()])
    assert text.startswith("✗ BadExp failed: matches-differences (1 pass, 1 fail)\n")
    expected = """\
✗ FAIL BadExp: matches-differences, output 0[3, 1] with respect to x[3, 1]  [ops.py:12]
  The gradient has the wrong sign.
    analytic -1.6487212707
    numeric   1.6487212707 ± 3e-11
  What to do: Return `g * out`, not `-g * out`.
"""
    assert expected in text


def test_the_repro_can_be_copied_with_its_marks_and_compiles(make):
    long = "x = " + " + ".join(["1.0"] * 60)
    report = make.broken(findings=(make.finding(repro=f"{make.script}\n{long}\n"),))
    text = plain_text([report])
    script = text[text.index("# repro: BadExp, matches-differences ---") :].split("\nInputs used")[0]
    assert long in script
    assert script.splitlines()[1] == "import torch"
    compile(script, "repro", "exec")


def test_the_table_has_a_row_for_each_subject_and_a_mark_for_each_contract(make):
    good = make.report("Exp", make.result("gradient-count"), make.result(), make.result("second-order", "skipped"))
    bad = make.report("Log", make.result("gradient-count"), make.result(verdict="fail"), make.result("vmap"))
    text = plain_text([good, bad])
    assert row(text, "subject").split() == ["subject", "a", "bc", "d", "samples", "time"]
    assert row(text, "Exp").split() == ["Exp", "✓", "✓·", "declared", "0.12", "s"]
    assert row(text, "Log").split() == ["Log", "✓", "✗", "✓", "declared", "0.12", "s"]
    assert "gradient   b matches-differences  c second-order" in text
    assert "marks      ✓ pass  · skipped  ✗ fail" in text


def test_the_gravest_comes_first(make):
    entries = [
        make.report("Passes"),
        make.report("Suspect", make.result(verdict="suspect")),
        make.not_run("Stuck"),
        make.broken("Fails"),
    ]
    text = plain_text(entries)
    names = [line.split()[0] for line in text.splitlines()[3:7]]
    assert names == ["Fails", "Stuck", "Suspect", "Passes"]


def test_passing_rows_past_twenty_become_one_line(make):
    entries = [make.report(f"Good{i}") for i in range(43)] + [make.broken()]
    text = plain_text(entries)
    assert "and 23 more that pass" in text
    assert "Good19 " in text
    assert "Good20 " not in text
    assert "44 subjects: 43 passed, 1 failed, 0 suspect, 0 could not be run" in text
    assert "Good42 " in plain_text(entries, verbose=True)
    assert "more that pass" not in plain_text(entries, verbose=True)


def test_a_subject_that_could_not_be_run_says_why_and_what_would_fix_it(make):
    remedy = "gradwright_samples = {'Opaque': (" + ", ".join(["torch.randn(3, dtype=torch.float64)"] * 4) + ")}"
    text = plain_text([make.not_run(remedy=remedy), make.report()])
    assert row(text, "Opaque").split(maxsplit=1)[1] == "could not be run"
    assert "Opaque: could not be run  [ops.py:40]\n  no inputs were found on which forward runs\n" in text
    assert remedy in text  # not wrapped: it is to be copied
    assert "1 passed, 0 failed, 0 suspect, 1 could not be run" in text


@pytest.mark.parametrize(
    ("named", "verbose", "shown"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_the_traceback_is_shown_for_what_the_user_named(make, named, verbose, shown):
    entry = make.not_run(named=named, traceback="Traceback:\n  File ops.py\nRuntimeError: mine")
    assert ("RuntimeError: mine" in plain_text([entry], verbose=verbose)) == shown


def test_a_subject_that_ended_its_process_is_no_pass(make):
    lost = make.result(
        "second-order", "unresolved", message="the process was ended by SIGSEGV while this was examined."
    )
    report = make.report("Crashes", make.result("gradient-count"), lost, ended=("second-order",))
    assert plain_text([report]).startswith("? Crashes: ended early (1 pass, 1 unresolved)\n")
    text = plain_text([make.report(), report])
    assert text.index("Crashes") < text.index("Exp")
    assert "? Crashes: second-order (hung, or ended the process)\n" in text
    assert "2 subjects: 1 passed, 0 failed, 0 suspect, 0 could not be run, 1 ended early" in text
    worse = make.report("Worse", make.result(verdict="fail"), lost, ended=("second-order",))
    text = plain_text([worse, report])
    assert "✗ Worse: matches-differences, second-order (hung, or ended the process)\n" in text
    assert "2 subjects: 0 passed, 1 failed, 0 suspect, 0 could not be run, 1 ended early" in text


def test_a_suspect_finding_is_no_failure_and_says_that_inputs_were_guessed(make):
    guessed = (SampleNote("synthesised", "x: float64 (3,)"),)
    text = plain_text([make.report("Guessed", make.result(verdict="suspect"), samples=guessed), make.report()])
    assert "! SUSPECT Guessed: matches-differences" in text
    assert "declare samples to be sure" in re.sub(r"\s+", " ", text)
    assert "1 passed, 0 failed, 1 suspect" in text


def test_refusals_and_skips_are_short_and_shared_reasons_are_written_once(make):
    def report(name):
        refusal = make.finding(verdict="unsupported", message="There is no setup_context.", hint="Add one.", where=None)
        return make.report(
            name,
            make.result("gradient-count"),
            make.result("vmap", "unsupported", findings=(refusal,)),
            make.result("second-order", "skipped", message="declared first-order only"),
        )

    text = plain_text([report(name) for name in "ABCDEF"])
    flat = re.sub(r"\s+", " ", text)
    assert "– vmap unsupported: There is no setup_context. What to do: Add one. (A, B, C, D and 2 more)" in flat
    assert flat.count("· second-order declared first-order only (A, B, C, D and 2 more)") == 1
    assert "repro" not in text


def test_one_reason_for_several_contracts_is_written_once(make):
    names = ("second-order", "vmap", "compile")
    text = plain_text([make.report("A", *(make.result(name, "skipped", message="backward raised") for name in names))])
    assert "  ·  second-order  backward raised\n     vmap\n     compile\n" in text


def test_a_verdict_without_findings_speaks_for_itself(make):
    wide = make.result("second-order", "unresolved", message="the error bar is 0.3")
    broken = make.result("gradient-count", "fail", message="backward raised", findings=())
    text = plain_text([make.report("Odd", wide, broken)])
    assert "✗ FAIL Odd: gradient-count  [ops.py:12]\n  backward raised" in text
    assert "?  second-order  unresolved: the error bar is 0.3" in text


def test_only_three_findings_of_a_contract_are_written_out(make):
    findings = tuple(make.finding(message=f"wrong number {i}", repro=None) for i in range(5))
    report = make.broken(findings=findings)
    assert "wrong number 3" not in plain_text([report])
    assert "and 2 more findings of matches-differences on BadExp" in plain_text([report])
    assert "wrong number 4" in plain_text([report], verbose=True)


def test_samples_notes_and_nothing_examined(make):
    samples = tuple(SampleNote("synthesised", f"x: float64 ({i},)") for i in range(8))
    skipped = make.result("second-order", "skipped", message="not asked")
    text = plain_text([make.report("Idle", skipped, samples=samples, notes=("the intent was guessed",)), make.report()])
    assert "synthesised x8" in row(text, "Idle")
    assert "and 3 more samples" in text
    assert "note: the intent was guessed" in text
    assert "1 passed, 0 failed, 0 suspect, 0 could not be run, 1 nothing examined" in text


def test_names_that_occur_twice_are_told_apart(make):
    text = plain_text([make.report("Exp", file="a.py", line=1), make.report("Exp", file="b.py", line=2)])
    assert "Exp (a.py:1)" in text
    assert "Exp (b.py:2)" in text


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_poor_encoding_gets_marks_it_can_show(make, encoding):
    entries = [make.broken(findings=(make.finding(message="wrong ∂f ± 1"),)), make.report()]
    text = rendered(entries, encoding=encoding)
    assert row(text, "Exp").split()[1:3] == ["+", "+"]
    assert row(text, "BadExp").split()[1:3] == ["+", "X"]
    assert "1.6487212707 +/- 3e-11" in text
    assert r"wrong \u2202f +/- 1" in text


def test_plain_text_can_always_be_printed(make, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print(make.broken())
    stream.flush()
    assert b"X FAIL BadExp" in stream.buffer.getvalue()


def test_plain_text_has_no_colour_no_trailing_space_and_no_long_line(make, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    text = plain_text([make.broken(findings=(make.finding(message="long " * 60),)), make.report(), make.not_run()])
    assert "\x1b" not in text
    assert all(line == line.rstrip() and len(line) <= 100 for line in text.splitlines())
    assert "\x1b[" in rendered([make.broken()], force_terminal=True, color_system="standard")


def test_text_that_looks_like_markup_is_shown_as_it_is(make):
    text = plain_text([make.broken("f[bold]", findings=(make.finding(message="x[red] and :smile: [/]"),))])
    assert "f[bold] failed" in text
    assert "x[red] and :smile: [/]" in text


def test_what_a_terminal_would_obey_is_shown_as_text(make):
    words = "\x1b[31mred\x9b0m\x00\r\u202e"
    text = rendered(
        [make.report(name=words, notes=(words,)), make.report(name="Other")], verbose=True, force_terminal=True
    )
    assert text.count(r"\x1b[31mred\x9b0m\x00\r\u202e") >= 2
    assert not set("\x9b\x00\r\u202e") & set(text)
    assert "\x1b[31mred" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_many_contracts_stay_readable(make, width):
    contracts = [make.result(f"contract-{i}", question=f"question {i % 5}") for i in range(35)]
    text = rendered([make.report("ALongNameOfFunction", *contracts), make.not_run()], width=width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines() if "gradwright_samples" not in line)
    assert text.count("✓") == 35 + 1  # the legend has one
    assert "…" not in text
    assert "could not be run" in row(text, "Opaque") or "not run" in row(text, "Opaque")


@pytest.mark.parametrize(
    ("fields", "analytic", "numeric"),
    [
        ({"analytic": 0.1, "numeric": 1 / 3, "error_bar": 2e-4}, "0.1", "0.33333 ± 0.0002"),
        ({"analytic": float("nan"), "numeric": float("-inf"), "error_bar": 1e-3}, "nan", "-inf ± 0.001"),
        ({"analytic": 0.0, "numeric": 3e-12, "error_bar": None}, "0", "3e-12"),
        ({"analytic": 1.5 - 2j, "numeric": 1.5 + 2j, "error_bar": 1e-9}, "1.5 - 2i", "1.5 + 2i ± 1e-09"),
        ({"analytic": 1e300, "numeric": 2.0, "error_bar": 0.0}, "1e+300", "2 ± 0"),
    ],
)
def test_numbers_have_the_digits_that_their_error_bar_leaves(make, fields, analytic, numeric):
    text = plain_text([make.broken(findings=(make.finding(**fields),))])
    assert re.search(r"analytic +(\S.*)", text).group(1) == analytic
    assert re.search(r"numeric +(\S.*)", text).group(1) == numeric


def test_nothing_at_all(make):
    assert plain_text([]) == "0 subjects: 0 passed, 0 failed, 0 suspect, 0 could not be run (0.00 s)"


def test_the_table_of_transforms_of_a_single_subject(make):
    rows = (Support("vmap", "unsupported", "there is no vmap rule"), Support("grad", "pass"), Support("vjp", "pass"))
    report = make.report("Exp", make.result("vmap", "unsupported", support=rows))
    text = plain_text([report])
    block = text[text.index("Transforms") :].splitlines()
    assert block[1].split() == ["✓", "right", "grad,", "vjp"]
    assert block[2].split() == ["–", "refused", "vmap"]
    assert "Transforms" not in plain_text([report, make.report()])
    assert "Transforms" not in plain_text([make.report()])


def test_the_end_names_what_is_suspected_and_what_could_not_be_run(make):
    suspected = make.report("Guessed", make.result(verdict="suspect"))
    text = plain_text([suspected, make.not_run(), make.report()])
    assert "! Guessed: matches-differences (suspect)\n" in text
    assert "? Opaque: could not be run\n" in text


def test_a_place_below_the_working_directory_is_given_from_there(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "ops.py:12" in plain_text([make.report(file=str(tmp_path / "ops.py"))])
    assert str(tmp_path) not in plain_text([make.report(file=str(tmp_path / "ops.py"))])


def test_what_a_program_did_not_exercise_is_listed_with_its_place(make):
    usage = [
        Usage("Exp", "ops.py", 12, calls=9, backwards=9),
        Usage("Idle", "ops.py", 40),
        Usage("Plain", "ops.py", 55, calls=3, note="2 of them inside torch.func"),
        Usage("Once", None, None, calls=1),
    ]
    text = rendered([make.report()], usage=usage)
    block = text[text.index("3 of 4 Functions were called, 2 never differentiated\n") :].splitlines()
    assert [line.split() for line in block[1:6]] == [
        ["Defined", "and", "never", "called:"],
        ["Idle", "ops.py:40"],
        ["Called", "and", "never", "differentiated:"],
        ["Plain", "ops.py:55", "3", "calls;", "2", "of", "them", "inside", "torch.func"],
        ["Once", "1", "call"],
    ]
    assert "\n1 checked, 3 not exercised (1 never called, 2 never differentiated)\n1 subject: 1 passed," in text
    assert text.index("Functions were called") < text.index("Inputs used")


def test_unused_functions_past_twelve_are_counted(make):
    usage = [Usage(f"Idle{i}", "ops.py", i + 1) for i in range(20)]
    text = rendered([], usage=usage)
    assert "0 of 20 Functions were called, 0 never differentiated" in text
    assert "Idle11 " in text
    assert "Idle12 " not in text
    assert "    and 8 more\n" in text
    assert "Idle19 " in rendered([], usage=usage, verbose=True)


def test_where_everything_was_exercised_there_is_nothing_to_list(make):
    usage = [Usage("Exp", "ops.py", 12, calls=9, backwards=9)]
    assert rendered([make.report()], usage=usage) == rendered([make.report()])


def test_the_footer_counts_those_that_refuse_something(make):
    refuses = make.report("Refuses", make.result("vmap", "unsupported", message="no rule"))
    assert "\n3 checked, 1 with something unsupported\n" in plain_text([refuses, make.report(), make.broken()])
    assert " checked, " not in plain_text([make.report(), make.broken()])


def test_known_findings_are_one_line_and_shown_when_everything_is(make):
    result = make.result("second-order", "skipped", known=(make.finding(message="old"),), message="it is known")
    report = make.report("Exp", make.result(), result)
    text = plain_text([report, make.report("Log")])
    assert "\n1 known finding is not counted, as the baseline lists it\n" in text
    assert "it is known" not in text
    assert "old" not in text
    assert "2 subjects: 2 passed" in text
    verbose = " ".join(plain_text([report], verbose=True).split())
    assert "✗ Exp: second-order, output 0[3, 1] with respect to x[3, 1]: old" in verbose
    twice = plain_text([report, make.report("Log", result)])
    assert "2 known findings are not counted, as the baseline lists them" in twice


def test_eighty_columns_are_enough_for_names_marks_samples_and_times(make):
    samples = (SampleNote("synthesised", "x"),) * 2
    asked = [question for question, n in zip(HEADINGS, (7, 9, 8, 3, 5)) for _ in range(n)]
    results = [make.result(f"contract-{i}", question=question) for i, question in enumerate(asked)]
    text = rendered([make.report("Exp", *results, samples=samples), make.report("Log", *results)], width=80)
    head = row(text, "subject").split()
    assert (head[0], head[-2:]) == ("subject", ["samples", "time"])
    assert row(text, "Exp").split()[-3:] == ["synthesised", "0.12", "s"]
    assert "synthesised x2" in row(rendered([make.report("Exp", *results, samples=samples), make.broken()]), "Exp")
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_the_command_that_checks_again_stands_below_the_first_finding_of_a_contract(make):
    long = "gradwright check " + "x" * 120
    findings = (make.finding(message="one", repro=None), make.finding(message="two", repro=None))
    report = make.report("Exp", make.result(verdict="fail", findings=findings))
    text = rendered([report], again=lambda report, contract: f"{long} {report.name} {contract}")
    assert text.count("Check again") == 1
    assert f"\n  Check again: {long} Exp matches-differences\n" in text
    assert text.index("one") < text.index("Check again") < text.index("two")


def guessed(make, name: str, word="surrogate"):
    guess = Stated((word,), "guessed", f"the output of {name} jumps")
    result = make.result(verdict="suspect", guess=guess, findings=(make.finding(verdict="suspect"),))
    return make.report(name, make.result("gradient-count"), result, intent=guess, notes=(f"intent: {guess}",))


def test_a_guessed_intent_is_shown_with_its_note(make):
    text = plain_text([guessed(make, "Round")])
    assert "! SUSPECT Round: matches-differences, output 0[3, 1] with respect to x[3, 1] (the rule may mean" in text
    assert "note: intent: guessed surrogate: the output of Round jumps" in text
    assert "look like" not in text


def test_many_functions_with_the_same_guess_share_a_paragraph(make):
    several = [guessed(make, name) for name in ("Round", "Floor", "Sign")]
    reverse = guessed(make, "Reverse", "reversed")
    text = plain_text([*several, reverse])
    assert text.count("SUSPECT") == 2
    assert "! SUSPECT 3 subjects look like straight-through or surrogate gradients, and nothing declares it\n" in text
    assert re.search(r"\n    Floor +ops.py:12 +the output of Floor jumps\n", text)
    assert "# gradwright: surrogate` above the class" in text
    assert "intent: guessed surrogate" not in text
    assert "intent: guessed reversed" in text
    assert "4 subjects: 0 passed, 0 failed, 4 suspect" in text
    assert plain_text(several[:2]).count("SUSPECT") == 2
    assert plain_text(several, verbose=True).count("SUSPECT") == 3


def test_a_wrong_gradient_stands_before_a_wrong_second_derivative(make):
    second = make.report("Second", make.result("second-order", "fail"))
    first = make.report("First", make.result("matches-differences", "fail"))
    assert summary.ordered([second, first]) == [first, second]
