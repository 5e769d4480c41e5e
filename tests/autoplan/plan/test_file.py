from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

import autoplan
from autoplan.errors import OutputError, PlanError
from autoplan.plan import file
from cost_models.config import TrainConfig
from tests.builders import plans


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Plan files are named without their folder, so that messages can be compared whole."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(text: str) -> list[str]:
    return text.splitlines()


def written(changes: dict[str, str]) -> str:
    """The text of a good plan after replacements, each of which must be found."""
    text = file.to_yaml(plans.plan())
    for old, new in changes.items():
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


def line_with(text: str, piece: str) -> int:
    return next(number for number, line in enumerate(lines_of(text), 1) if piece in line)


def message_of(text: str, name: str = "plan.yaml") -> str:
    Path(name).write_text(text)
    with pytest.raises(PlanError) as caught:
        file.read(name)
    assert caught.value.exit_code == 2
    return str(caught.value)


# Writing and reading back


def test_a_plan_comes_back_as_it_was(folder):
    plan = plans.plan()
    assert file.write(plan, "plan.yaml") == Path("plan.yaml")
    assert file.read("plan.yaml") == plan
    assert autoplan.load_plan("plan.yaml") == plan


def test_the_configuration_comes_back_as_a_train_config(folder):
    mesh = {"data": 8, "model": 1}
    config = plans.config(batch=(512, 2), mesh=mesh, precision="mixed_float16", remat={"mode": "activations"})
    file.write(plans.plan(config=config), "plan.yaml")
    assert file.read("plan.yaml").config == TrainConfig.from_dict(config)


def test_numbers_keep_six_digits_and_bytes_keep_all(folder):
    measured = plans.measurement(1 / 3000, peak_bytes=123456789012)
    file.write(plans.plan(measured=measured), "plan.yaml")
    back = file.read("plan.yaml").measured
    assert back.micro_step_seconds == 0.000333333
    assert back.samples_per_second == pytest.approx(384000.0, abs=1e-9)
    assert back.peak_bytes == 123456789012


def test_a_plan_without_its_optional_parts_comes_back(folder):
    plain = plans.plain_plan(evidence="analytic", trials=[], rejected=[], notes=[])
    plain["baseline"] = {"config": plans.config(), "failure": {"kind": "oom", "message": "killed at 12.1 GiB"}}
    for key in ("measured", "verification"):
        del plain[key]
    plan = autoplan.Plan.model_validate(plain)
    file.write(plan, "plan.yaml")
    assert file.read("plan.yaml") == plan


def test_any_yaml_reader_sees_the_same_values(folder):
    file.write(plans.plan(), "plan.yaml")
    assert yaml.safe_load(Path("plan.yaml").read_text()) == plans.plain_plan()


def test_the_head_says_what_to_do_next(folder):
    file.write(plans.plan(), "my plan.yaml")
    assert lines_of(Path("my plan.yaml").read_text())[:5] == [
        "# An autoplan plan, measured on cpu (1 device).",
        "# To train with it:",
        "#   autoplan train train.py --plan 'my plan.yaml' -- --learning-rate 1e-4",
        "# Details: autoplan explain 'my plan.yaml'",
        "schema: 1",
    ]


def test_the_first_line_of_an_analytic_plan_says_that_nothing_was_measured(folder):
    hardware = plans.plain_plan()["hardware"] | {"name": "tpu-v4-8", "devices": 4}
    text = file.to_yaml(plans.plan(evidence="analytic", measured=None, verification=None, hardware=hardware))
    assert lines_of(text)[0] == (
        "# Nothing was measured for this plan: its figures are analytic, for tpu-v4-8 (4 devices)."
    )


def test_the_first_line_says_that_training_differs_where_it_was_found_to(folder):
    found = plans.plain_plan()["verification"] | {"numerics": "outside", "numerics_detail": "a loss\ndiffers"}
    assert lines_of(file.to_yaml(plans.plan(verification=found)))[0] == (
        "# An autoplan plan, measured on cpu (1 device). "
        "Training gives different results than with the baseline (a loss differs)."
    )


def test_simulated_devices_are_called_so(folder):
    hardware = plans.plain_plan()["hardware"] | {"devices": 8, "simulated": True}
    text = file.to_yaml(plans.plan(hardware=hardware))
    assert lines_of(text)[0] == "# An autoplan plan, measured on cpu (8 simulated devices)."


def test_a_plan_made_from_python_tells_python(folder):
    source = plans.plain_plan()["source"] | {"kind": "callable", "path": "build_model", "args": []}
    lines = lines_of(file.to_yaml(plans.plan(source=source), "p.yaml"))
    assert lines[1:8] == [
        "# To train with it in Python, with x and y as `fit` takes them:",
        "#   import autoplan",
        "#   plan = autoplan.load_plan('p.yaml')",
        "#   with autoplan.scope(plan):",
        "#       model = build_model()",
        "#   autoplan.fit(plan, model, x, y)",
        "# Details: autoplan explain p.yaml",
    ]


# Places that cannot be written


def test_an_older_plan_stays_until_the_new_one_is_whole(folder):
    Path("plan.yaml").write_text("old")
    limited = (
        "import resource, signal, sys\n"
        "from autoplan.plan import file\n"
        "from autoplan.errors import OutputError\n"
        "from tests.builders import plans\n"
        "plan = plans.plan()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    file.write(plan, 'plan.yaml')\n"
        "except OutputError as error:\n"
        "    sys.stdout.write(str(error))\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", limited],
        env=os.environ | {"PYTHONPATH": str(root), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    told, text = done.stdout.split("; this is the plan:\n\n")
    assert told == (
        "the plan could not be written to plan.yaml: file too large; "
        f"it could not be stored in {folder} either (file too large)"
    )
    assert not list(folder.glob("plan-*"))
    Path("pasted.yaml").write_text(text)
    assert file.read("pasted.yaml") == plans.plan()
    assert Path("plan.yaml").read_text() == "old"
    assert not list(folder.glob(".plan.yaml*"))


def test_a_plan_that_cannot_go_where_it_should_is_kept(folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(OutputError) as caught:
        file.write(plans.plan(), "missing/plan.yaml")
    head, kept = str(caught.value).split("; it is stored in ")
    assert head == "the plan could not be written to missing/plan.yaml: no such file or directory"
    assert file.read(kept) == plans.plan()


def test_writing_keeps_permissions_and_follows_links(folder):
    Path("real.yaml").write_text("old")
    Path("real.yaml").chmod(0o640)
    Path("plan.yaml").symlink_to("real.yaml")
    file.write(plans.plan(), "plan.yaml")
    assert Path("plan.yaml").is_symlink()
    assert file.read("real.yaml") == plans.plan()
    assert stat.S_IMODE(Path("real.yaml").stat().st_mode) == 0o640


def test_a_new_plan_has_the_permissions_of_any_new_file(folder):
    before = os.umask(0o027)
    try:
        file.write(plans.plan(), "plan.yaml")
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("plan.yaml").stat().st_mode) == 0o640


def test_ensure_writable_leaves_no_trace(folder):
    file.ensure_writable("plan.yaml")
    assert not list(folder.iterdir())
    Path("plan.yaml").write_text("old")
    file.ensure_writable("plan.yaml")
    assert [path.name for path in folder.iterdir()] == ["plan.yaml"]
    assert Path("plan.yaml").read_text() == "old"


def test_ensure_writable_names_a_missing_folder(folder):
    with pytest.raises(OutputError) as caught:
        file.ensure_writable("out/plan.yaml")
    assert str(caught.value) == "there is no folder out for plan.yaml; create it, or choose another --output"


def test_ensure_writable_names_the_folder_that_a_link_leads_to(folder):
    Path("plan.yaml").symlink_to(folder / "gone" / "plan.yaml")
    with pytest.raises(OutputError, match=f"^there is no folder {folder.resolve() / 'gone'} for plan.yaml; create it"):
        file.ensure_writable("plan.yaml")


def test_folders_and_devices_are_refused(folder):
    for refuse in (file.ensure_writable, lambda path: file.write(plans.plan(), path)):
        with pytest.raises(OutputError, match="is a folder; expected the name of a file, such as "):
            refuse(str(folder))
        with pytest.raises(OutputError, match="/dev/null is not a regular file; expected the name of a file"):
            refuse("/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_full_disk_is_found_before_the_study(folder):
    script = (
        "import resource, signal, sys\n"
        "from autoplan.plan import file\n"
        "from autoplan.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    file.ensure_writable('plan.yaml')\n"
        "except OutputError as error:\n"
        "    sys.stdout.write(str(error))\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plan.yaml cannot be written: file too large; choose another --output"
    assert not list(folder.iterdir())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


@pytest.fixture
def ordinary_user():
    """Root may write everywhere: give that up for a test."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_read_only_places_are_named(ordinary_user):
    with tempfile.TemporaryDirectory() as name:
        plan = Path(name) / "plan.yaml"
        plan.write_text("old")
        plan.chmod(0o444)
        with pytest.raises(OutputError) as file_refused:
            file.ensure_writable(plan)
        plan.parent.chmod(0o555)
        try:
            with pytest.raises(OutputError) as folder_refused:
                file.ensure_writable(Path(name) / "other.yaml")
        finally:
            plan.parent.chmod(0o755)
        assert [path.name for path in Path(name).iterdir()] == ["plan.yaml"]
    assert str(file_refused.value) == f"{plan} cannot be written: permission denied; choose another --output"
    assert str(folder_refused.value) == (
        f"{name}/other.yaml cannot be written: permission denied; choose another --output"
    )


# Files that are no plans


def test_no_file(folder):
    with pytest.raises(PlanError) as caught:
        file.read("plan.yaml")
    assert str(caught.value) == "there is no plan at plan.yaml; `autoplan tune SOURCE --output plan.yaml` writes one"


def test_a_folder_and_a_device(folder):
    with pytest.raises(PlanError, match=r"is a folder; expected a plan file$"):
        file.read(folder)
    with pytest.raises(PlanError, match=r"^/dev/zero is not a regular file; expected a plan file$"):
        file.read("/dev/zero")


def test_a_huge_file_is_not_read(folder):
    with Path("plan.yaml").open("wb") as stream:
        stream.truncate(17 * 2**20)
    with pytest.raises(PlanError) as caught:
        file.read("plan.yaml")
    assert str(caught.value) == "plan.yaml holds 17.0 MiB; a plan has at most 16 MiB. Is it another file?"


def test_a_binary_file(folder):
    Path("plan.yaml").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(PlanError) as caught:
        file.read("plan.yaml")
    assert str(caught.value) == "plan.yaml is not a text file (byte 4); expected a plan in YAML"
    assert message_of("a\0b") == (
        "plan.yaml: not readable as YAML: control characters are not allowed; the file may be damaged or cut off"
    )


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file(folder, text):
    assert message_of(text) == "plan.yaml is empty; expected a plan as `autoplan tune` writes it"


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b\n", "a list"), ("hello\n", '"hello"'), ("7\n", "7")])
def test_something_other_than_a_mapping(folder, text, kind):
    assert message_of(text) == f"plan.yaml:1: {kind}; expected a mapping with the keys of a plan"


def test_damaged_yaml_is_told_with_its_line(folder):
    text = file.to_yaml(plans.plan())
    line = line_with(text, "hardware:")
    damaged = text.replace("hardware:\n", "hardware: cpu: 1\n")
    assert message_of(damaged).startswith(f"plan.yaml:{line}: not readable as YAML: mapping values are not allowed")
    assert message_of(damaged).endswith("; the file may be damaged or cut off")


def test_a_file_that_was_cut_off(folder):
    text = file.to_yaml(plans.plan())
    cut = text[: text.index("baseline:")]
    assert lines_of(message_of(cut))[0] == "plan.yaml:5: baseline: missing; expected a value"


def test_a_repeated_key(folder):
    text = written({"  precision: float32\n": "  precision: float32\n  precision: mixed_bfloat16\n"})
    line = line_with(text, "  precision: float32")
    assert message_of(text) == (
        f"plan.yaml:{line + 1}: config.precision: this key is already on line {line}; keep only one"
    )


# Plans that say something unknown


@pytest.mark.parametrize(
    ("schema", "spoken"), [("2", "2"), ("'1'", '"1"'), ("true", "true"), ("", "nothing"), ("{a: 1}", "a mapping")]
)
def test_another_schema(folder, schema, spoken):
    text = written({"schema: 1\n": f"schema: {schema}\n", "evidence: measured": "evidence: guessed"})
    assert message_of(text) == (
        f"plan.yaml:5: schema: {spoken} is not a version that this autoplan reads; expected 1: "
        "tune again, or use the autoplan that wrote the file"
    )


def test_no_schema(folder):
    text = written({"schema: 1\n": ""})
    assert message_of(text) == "plan.yaml:5: schema: missing; expected `schema: 1`, as `autoplan tune` writes it"


def test_a_contradiction_between_batch_sizes(folder):
    text = written({"    global: 128": "    global: 256"})
    line = line_with(text, "config:")
    assert message_of(text) == (f"plan.yaml:{line}: config: batch.local is 128, but the other batch sizes make it 256")


def test_sizes_that_follow_from_others_may_be_left_out(folder):
    Path("plan.yaml").write_text(written({"    local: 128\n": "", "    effective: 128\n": ""}))
    assert file.read("plan.yaml").config == TrainConfig.from_dict(plans.config())


def test_a_batch_that_the_mesh_does_not_divide(folder):
    text = written({"    local: 128\n": "", "  mesh:\n    data: 1": "  mesh:\n    data: 3"})
    assert "a global batch of 128 does not divide over 3 devices on the data axis" in message_of(text)


def test_measured_evidence_needs_figures(folder):
    text = file.to_yaml(plans.plan(measured=None))
    assert message_of(text) == (
        "plan.yaml:6: evidence: measured, but the plan has no section `measured`; expected its figures"
    )


def test_several_faults_are_told_in_order_and_counted(folder):
    text = written(
        {
            "notes:": "note:",
            "  kind: script": "  kind: x",
            "group_seconds: [0.0625, 0.0625, 0.0625, 0.0625,": "group_seconds: [a, b, c, d,",
        }
    )
    said = lines_of(message_of(text))
    assert [line.split(": ")[1] for line in said[:-1]] == [
        "source.kind",
        "baseline.measured.group_seconds[0]",
        "baseline.measured.group_seconds[1]",
        "baseline.measured.group_seconds[2]",
        "baseline.measured.group_seconds[3]",
    ]
    assert said[-1] == "and 1 more"


# What cannot be trained with


def with_config(baseline="float32", **changes):
    plain = plans.plain_plan()
    own = plain["baseline"] | {"config": plans.config(precision=baseline)}
    return plans.plan(baseline=own, config=plans.config(**changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"mesh": {"data": 1, "model": 4}},
            "config.mesh.model is 4, which cannot be applied yet; set it to 1; or tune",
        ),
        (
            {"layout": {"shard_state": True}, "backend": "torch"},
            "config.layout.shard_state is true, which cannot be applied yet; set it to",
        ),
        ({"precision": "other"}, "config.precision is other, which cannot be applied yet; set it to float32, or"),
    ],
)
def test_settings_that_a_training_cannot_apply_are_refused_by_their_key(changes, told):
    with pytest.raises(PlanError) as caught:
        file.refuse_what_cannot_run(with_config(**changes))
    assert str(caught.value).startswith(told)


def test_a_policy_of_the_scripts_own_stays_as_it_is():
    file.refuse_what_cannot_run(with_config(baseline="other", precision="other"))
    file.refuse_what_cannot_run(with_config(precision="mixed_bfloat16"))


def test_training_refuses_them_before_the_script_runs(tmp_path):
    file.write(with_config(mesh={"data": 1, "model": 4}), tmp_path / "plan.yaml")
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    words = [sys.executable, "-m", "autoplan.runtime", "train", "--plan", "plan.yaml", "train.py"]
    settings = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(words, cwd=tmp_path, env=settings, text=True, capture_output=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: config.mesh.model is 4")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["measured_plan.yaml", "compiled_plan.yaml"])
def test_a_plan_of_the_first_version_is_read_and_written_with_the_same_values(name):
    """Its records held plain mappings, where they now hold configurations and estimates."""
    text = (Path(__file__).parent / name).read_text()
    plan = file.read(Path(__file__).parent / name)
    assert isinstance(plan.config, TrainConfig)
    assert plan.predicted.config == plan.config
    assert yaml.safe_load(file.to_yaml(plan)) == yaml.safe_load(text)
