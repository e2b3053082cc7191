from __future__ import annotations

from gradwright.reporting.paths import below, in_project, repository


def test_a_file_is_known_by_its_place_in_its_project_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "a" / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").touch()
    file = tmp_path / "a" / "src" / "pkg" / "ops.py"
    assert in_project(str(file)) == "src/pkg/ops.py"
    monkeypatch.chdir(tmp_path / "a" / "src")
    assert in_project("pkg/ops.py") == in_project("../src/pkg/ops.py") == "src/pkg/ops.py"


def test_what_is_installed_is_known_by_its_package(tmp_path):
    (tmp_path / ".git").mkdir()
    assert in_project(str(tmp_path / ".venv" / "lib" / "site-packages" / "norse" / "ops.py")) == "norse/ops.py"


def test_without_a_project_the_name_remains(tmp_path):
    assert in_project(str(tmp_path / "deep" / "ops.py")) == "ops.py"
    assert in_project("\0\ud800.py") == "\0\ud800.py" or in_project("\0\ud800.py").endswith("/\0\ud800.py")


def test_what_is_reached_by_a_link_is_below_too(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert below(str(tmp_path / "link" / "ops.py"), tmp_path / "real") == "ops.py"
    assert below(str(tmp_path / "real" / ".." / "ops.py"), tmp_path / "real") is None
    assert below("\0", tmp_path) is None


def test_the_repository_is_the_folder_with_git_in_it_or_this_one(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert repository() == tmp_path / "a" / "b"
    (tmp_path / "a" / ".git").mkdir()
    assert repository() == tmp_path / "a"
