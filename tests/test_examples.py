"""The examples are what they say: the tour is right, and every mistake in the broken file is caught and named."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import gradwright
from docs import readme
from examples import call_c, fit_pose, learn_to_minimize, masked_loss, pca_alignment, train_language_model, verify
from gradwright import cli

Subjects = list[dict[str, Any]]
MONTHS = masked_loss.MONTHS


def check(path: str, folder: Path) -> tuple[int, Subjects]:
    document = folder / "report.json"
    status = cli.main(["check", str(verify.ROOT / path), "--json", str(document)])
    return status, json.loads(document.read_text(encoding="utf-8"))["subjects"]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Subjects]:
    return check(verify.TOUR, tmp_path_factory.mktemp("tour"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Subjects]:
    return check(verify.BROKEN, tmp_path_factory.mktemp("broken"))


def test_the_tour_passes_whole(tour: tuple[int, Subjects]) -> None:
    status, subjects = tour
    assert status == 0
    assert verify.problems_of_tour(subjects) == []
    assert [s["name"] for s in subjects] == [
        "MyExp",
        "RoundSTE",
        "SetupContextExp",
        "SetupContextRound",
        "Scale",
        "NumpySinh",
        "NumpyCosh",
        "SinCos",
    ]
    verdicts = {(s["name"], row["id"]): row["verdict"] for s in subjects for row in s["contracts"]}
    others = {key: verdict for key, verdict in verdicts.items() if verdict not in ("pass", "skipped")}
    # Whoever writes a plain Function gets no forward mode and no vmap rule; that is refused aloud, and reported.
    assert {contract for _, contract in others} == {"vmap", "func-transforms", "modes-agree"}
    assert set(others.values()) == {"unsupported"}


def test_the_tour_shows_where_samples_come_from(tour: tuple[int, Subjects]) -> None:
    origins = {subject["name"]: {sample["provenance"] for sample in subject["samples"]} for subject in tour[1]}
    assert origins.pop("SetupContextExp") <= {"typed", "synthesised"}
    assert set.union(*origins.values()) == {"declared"}
    assert {subject["name"]: len(subject["samples"]) for subject in tour[1]}["Scale"] == 2


def test_every_mistake_is_caught_and_named(broken: tuple[int, Subjects]) -> None:
    status, subjects = broken
    assert status == 1
    assert verify.problems_of_broken(subjects) == []
    assert {subject["name"] for subject in subjects if not subject["ok"]} == set(verify.EXPECTED)


def test_every_mistake_is_reported_once(broken: tuple[int, Subjects]) -> None:
    for subject in broken[1]:
        accused = [row["id"] for row in subject["contracts"] if row["verdict"] in ("fail", "suspect")]
        assert accused == [verify.EXPECTED[subject["name"]][0]]


@pytest.mark.parametrize("name", verify.EXPECTED)
def test_a_mistake_that_is_missed_would_be_noticed(name: str, broken: tuple[int, Subjects]) -> None:
    subjects = copy.deepcopy(broken[1])
    contract = verify.EXPECTED[name][0]
    rows = [row for s in subjects if s["name"] == name for row in s["contracts"] if row["id"] == contract]
    for row in rows:
        row["message"], row["hint"] = "something", None
    assert len(verify.problems_of_broken(subjects)) == 1
    for row in rows:
        row["verdict"] = "pass"
    assert len(verify.problems_of_broken(subjects)) == 1
    assert len(verify.problems_of_broken([s for s in subjects if s["name"] != name])) == 1


def test_a_tour_that_fails_would_be_noticed(tour: tuple[int, Subjects]) -> None:
    subjects = copy.deepcopy(tour[1])
    subjects[0]["ok"] = False
    assert len(verify.problems_of_tour(subjects)) == 1


@pytest.mark.parametrize("name", verify.EXPECTED)
def test_the_scripts_that_show_a_mistake_run(
    name: str, broken: tuple[int, Subjects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(verify.ROOT)
    scripts = [row["repro"] for s in broken[1] if s["name"] == name for row in s["contracts"] if row["repro"]]
    assert scripts
    for script in scripts:
        code = compile(script, f"<repro of {name}>", "exec")
        if name == "GradientMissing":
            with pytest.raises(RuntimeError, match="incorrect number of gradients"):
                exec(code, {"__name__": "__main__"})
        else:
            exec(code, {"__name__": "__main__"})


def test_a_surrogate_that_is_not_verified_would_be_noticed(tour: tuple[int, Subjects]) -> None:
    subjects = copy.deepcopy(tour[1])
    for row in (row for s in subjects if s["name"] == "RoundSTE" for row in s["contracts"]):
        if row["id"] == "matches-surrogate":
            row["verdict"] = "skipped"
    assert len(verify.problems_of_tour(subjects)) == 1


def test_the_tour_does_not_need_gradwright() -> None:
    for path in (verify.TOUR, verify.BROKEN):
        assert "import gradwright" not in (verify.ROOT / path).read_text(encoding="utf-8")


def test_principal_planes_train_through_repeated_eigenvalues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pca_alignment.py"])
    threads = torch.get_num_threads()
    try:
        pca_alignment.main()
    finally:
        torch.set_num_threads(threads)
    rows = {line[:9].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["step 50"][2] == "nan", "this PyTorch gets it right: there is another story to tell"
    ours = [float(word) for word in rows["step 50"] if "e-" in word]
    assert len(ours) == 2
    assert max(ours) < 1e-3
    assert "█" in rows["step 0"][3]
    pytorch, *others = (float(word) for word in rows["gradient"][1:])
    assert pytorch > 1e-2
    assert max(others) < 1e-8


def test_the_masked_loss_is_nan_with_torch_and_learns_with_gradwright(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["masked_loss.py", "--steps", "150"])
    threads = torch.get_num_threads()
    try:
        masked_loss.main()
    finally:
        torch.set_num_threads(threads)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    losses = {int(words[0]): words[1:3] for words in lines if words and words[0].isdigit() and len(words) > 2}
    assert losses[0][0] == losses[0][1], "the loss itself is the same"
    assert losses[1][0] == "nan"
    assert float(losses[149][1]) < 1.6
    curve = {words[0]: [float(word) for word in words[1:3]] for words in lines if words[:1] and words[0] in MONTHS}
    assert set(curve) == set(MONTHS)
    assert all(abs(learned / true - 1) < 0.25 for true, learned in curve.values())


def test_the_readme_shows_what_really_happens() -> None:
    try:
        importlib.metadata.version("gradwright")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pytest finds the plugin only when gradwright is installed")
    text = readme.README.read_text(encoding="utf-8")
    real, shown = readme.real_outputs(text), readme.shown_outputs(text)
    assert len(shown) == 3
    for command in shown:
        assert readme.essence(shown[command]) == readme.essence(real[command]), "`make readme` writes the new output"


def test_a_pose_is_fitted_from_the_identity() -> None:
    points, seen = fit_pose.clouds()
    written = fit_pose.fit(fit_pose.written_exp, points, seen, 1)[-1]
    assert bool(written.isnan().any()), "what the example is about"
    degrees, distance = fit_pose.off(fit_pose.fit(gradwright.stable.se3_exp, points, seen, 250)[-1])
    assert degrees < 0.3
    assert distance < 0.01


def test_the_fitted_pose_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fit_pose.py", "--steps", "8"])
    monkeypatch.setattr(fit_pose, "console", Console(width=100))
    threads = torch.get_num_threads()
    try:
        fit_pose.main()
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert "as people write it: nan after step 1" in shown
    assert "█" in shown


def test_a_patched_language_model_learns_the_same_in_less_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train_language_model.py", "--quick"])
    monkeypatch.setattr(train_language_model, "console", Console(width=100))
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # set by the example otherwise, and then for the tests that follow
    threads = torch.get_num_threads()
    try:
        train_language_model.main()
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert shown.startswith("8 of 8 layers swapped")
    found = re.search(r"differ by at most (\S+); .* (\S+) MiB, patched (\S+) MiB", shown.replace("\n", " "))
    assert found
    apart, plain, patched = (float(part) for part in found.groups())
    assert apart < 1e-4
    assert patched < 0.6 * plain
    losses = [float(line.split()[1]) for line in shown.splitlines() if re.match(r" *\d+ +\d+\.\d{4} ", line)]
    assert losses[-1] < losses[0]
    assert shown.count("└") == 2


def test_stiffnesses_are_learned_through_scipy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["learn_to_minimize.py", "--steps", "60"])
    monkeypatch.setattr(learn_to_minimize, "console", Console(width=100))
    threads = torch.get_num_threads()
    try:
        learn_to_minimize.main()
    finally:
        torch.set_num_threads(threads)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    off = {int(words[0]): float(words[8].rstrip("%")) for words in rows if len(words) > 8 and words[0].isdigit()}
    assert off[0] == 100.0
    assert off[60] < 10.0


def test_an_orbit_is_found_in_jax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    from examples import wrap_jax  # here, because it needs JAX

    monkeypatch.setattr("sys.argv", ["wrap_jax.py"])
    monkeypatch.setattr(wrap_jax, "console", Console(width=200))
    wrap_jax.main()
    shown = capsys.readouterr().out
    norms = [float(number) for number in re.findall(r"\de[+-]\d\d", shown)]
    assert len(norms) == 15
    assert norms[-1] < 1e-5, "it converges as only Newton's method with the true Hessian does"
    rows = re.findall(r"(\S+) ± (\S+) \(it is (\S+)\)", shown)
    assert len(rows) == 4
    assert all(abs(float(found) - float(was)) < 4 * float(bar) for found, bar, was in rows)


def test_c_and_cpp_learn_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if not all(any(map(shutil.which, names)) for names in call_c.COMPILERS.values()):
        pytest.skip("no compiler for C and C++")
    monkeypatch.setattr("sys.argv", ["call_c.py"])
    monkeypatch.setattr(call_c, "console", Console(width=120))
    threads = torch.get_num_threads()
    try:
        call_c.main()
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    friction, true = map(float, re.findall(r"friction (\S+) \(it is (\S+)\)", shown)[0])
    assert abs(friction / true - 1) < 0.1
    assert float(re.findall(r"off by at most (\S+)%", shown)[0]) < 5
    assert "━" in shown


def test_c_without_a_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"pendulum.c cannot be compiled: none of cc, gcc, clang is there"):
        call_c.build(call_c.SOURCES / "pendulum.c", tmp_path)
