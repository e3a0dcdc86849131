"""The profile that `mops connect` saves, and the errors for an invalid profile or description of a chart."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from mops.errors import OtherFormat, UsageError
from mops.k8s import chart
from mops.k8s.chart import Object, ServiceConfig
from mops.service.profile import Profile, disconnect, load, path, reach, save, use

# The required fields, as the chart writes them.
SERVICE: Object = {
    "format": 1,
    "version": "0.1.0",
    "release": "mops",
    "namespace": "studies",  # this client does not read it
    "storage": "abfs://studies/mops",
    "storageEnv": {"AZURE_STORAGE_ACCOUNT_NAME": "studies"},
    "scheduler": "tcp://mops-scheduler.studies.svc:8786",
    "dashboard": {"service": "mops-scheduler", "port": 8787},
    "runner": {"image": "localhost/mops:0.1.0", "serviceAccount": "mops-runner", "backoffLimit": 0},
    "worker": {"selector": {"app.kubernetes.io/component": "worker"}},
    "dedicated": {"enabled": False, "labels": {}},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def parsed(**changes: Any) -> ServiceConfig:
    fields = {name: value for name, value in (SERVICE | changes).items() if value is not ...}
    return ServiceConfig.parse(json.dumps(fields), "ConfigMap mops-client")


@pytest.fixture
def profile() -> Profile:
    return Profile(namespace="studies", context="prod", kubeconfig="/home/ada/.kube/prod", service=parsed())


# Saved and loaded


def saved(profile: Profile, name: str = "default") -> Path:
    """Save a profile, and let commands use it."""
    place = save(profile, name)
    use(name)
    return place


def test_a_saved_profile_can_be_loaded(profile: Profile) -> None:
    assert saved(profile) == path()
    assert load() == profile
    assert load().service.runner.backoff_limit == 0, "a zero says something"  # type: ignore[union-attr]


def test_saving_a_profile_replaces_the_previous_one_and_leaves_no_other_file(profile: Profile) -> None:
    saved(profile)
    place = saved(profile.model_copy(update={"namespace": "other"}))
    assert load().namespace == "other"  # type: ignore[union-attr]
    assert [one.name for one in place.parent.iterdir()] == ["default.json"]
    assert stat.S_IMODE(place.parent.parent.stat().st_mode) == 0o700


def test_a_profile_uses_the_field_names_of_kubernetes(profile: Profile) -> None:
    """A person can then compare the chart's description with the saved profile."""
    text = json.loads(saved(profile).read_text())
    assert text["service"]["runner"]["serviceAccount"] == "mops-runner"
    assert text["format"] == 1


def test_no_profile_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load() is None
    assert disconnect() is False
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert load() is None


def test_after_disconnect_the_profile_stays(profile: Profile) -> None:
    saved(profile, "prod")
    assert disconnect() is True
    assert (load(), load("prod")) == (None, profile)


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({"XDG_CONFIG_HOME": "/etc/xdg"}, "/etc/xdg/mops/profiles/default.json"),
        ({"HOME": "/home/ada"}, "/home/ada/.config/mops/profiles/default.json"),
        ({"HOME": "/home/ada", "XDG_CONFIG_HOME": ""}, "/home/ada/.config/mops/profiles/default.json"),
        ({"HOME": "/home/ada", "XDG_CONFIG_HOME": "relative"}, "/home/ada/.config/mops/profiles/default.json"),
    ],
)
def test_the_path_of_the_profile(environ: dict[str, str], where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert path() == Path(where)


# What cannot be read


def test_an_invalid_profile_is_an_error_that_lists_every_problem(profile: Profile, subtests: pytest.Subtests) -> None:
    for text, said in [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("[]", "$: Input should be an object"),
        ("{}", "namespace: Field required; service: Field required"),
        (
            '{"namespace": 3, "service": {}}',
            "namespace: Input should be a valid string; service.format: Field required",
        ),
        ('{"format": 2, "namespace": "a"}', "format: Input should be 1"),
        ("\x00", "Invalid JSON"),
    ]:
        with subtests.test(text=text, said=said):
            place = saved(profile)
            place.write_text(text)
            with pytest.raises(UsageError) as raised:
                load()
            assert said in raised.value.what
            assert raised.value.where == str(place)
            assert raised.value.hint == "replace it: mops connect --profile default --namespace NAME"
            assert "pydantic" not in str(raised.value)


def test_a_profile_that_is_not_utf8(profile: Profile) -> None:
    """Regression: mops printed a traceback."""
    saved(profile).write_bytes(b"\xff\xfe{}")
    with pytest.raises(UsageError, match="does not describe a mops service"):
        load()


def test_a_folder_in_its_place(profile: Profile) -> None:
    path().mkdir(parents=True)
    for call in (lambda: load("default"), lambda: save(profile)):
        with pytest.raises(UsageError, match="the profile cannot be read or written") as raised:
            call()
        assert raised.value.where == str(path())
    assert [one.name for one in path().parent.iterdir()] == ["default.json"], "a half of a profile was left"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_profile_of_another_user(profile: Profile) -> None:
    saved(profile).chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        load()


def test_a_folder_that_cannot_be_made(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even root can create folders in /proc."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/config")
    with pytest.raises(UsageError, match="the profile cannot be read or written") as raised:
        save(profile)
    assert "XDG_CONFIG_HOME" in str(raised.value.hint)


# The description from the chart


def test_unknown_fields_of_a_newer_chart_are_ignored() -> None:
    assert parsed(novelty=1, worker={"selector": {"a": "b"}, "novelty": 2}).worker.selector == {"a": "b"}


def test_a_newer_format_is_refused_with_the_version_to_install(subtests: pytest.Subtests) -> None:
    """Regression: with other fields, mops reported that the chart describes no service."""
    for other_fields in [{}, {"scheduler": ..., "runner": ...}]:
        with subtests.test(other_fields=other_fields):
            with pytest.raises(OtherFormat, match=r"the service's chart is from mops 9\.1\.0") as raised:
                parsed(format=2, version="9.1.0", **other_fields)
            assert raised.value.hint == "install mops-runner 9.1.0"
            assert raised.value.where == "ConfigMap mops-client"


def test_an_invalid_description_is_an_error_that_lists_every_problem(subtests: pytest.Subtests) -> None:
    for changes, said in [
        ({"scheduler": ...}, "scheduler: Field required"),
        ({"format": ...}, "format: Field required"),
        ({"runner": {"image": "x"}}, "runner.serviceAccount: Field required"),
        ({"runner": SERVICE["runner"] | {"backoffLimit": -1}}, "runner.backoffLimit: Input should be greater"),
        (
            {"runner": SERVICE["runner"] | {"activeDeadlineSeconds": 0}},
            "activeDeadlineSeconds: Input should be greater",
        ),
        ({"worker": {}, "storage": 3}, "storage: Input should be a valid string; worker.selector: Field required"),
    ]:
        with subtests.test(str((changes, said))):
            with pytest.raises(UsageError, match="this does not describe a mops service") as raised:
                parsed(**changes)
            assert said in raised.value.what
            assert raised.value.where == "ConfigMap mops-client"
            assert "helm upgrade" in str(raised.value.hint)


def test_an_empty_configmap() -> None:
    with pytest.raises(UsageError, match="Invalid JSON"):
        ServiceConfig.parse("", "ConfigMap mops-client")


def test_storage_variables_do_not_override_those_of_the_user(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    assert reach(profile) == "abfs://studies/mops"
    assert os.environ["AZURE_STORAGE_ACCOUNT_NAME"] == "mine"
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    reach(profile)
    assert os.environ["AZURE_STORAGE_ACCOUNT_NAME"] == "studies"


def test_a_service_needs_no_secret() -> None:
    """The profile is a plain-text file in the home folder."""
    named = {name for part in (ServiceConfig, chart.RunnerPod, chart.Workers) for name in part.model_fields}
    assert not {name for name in named if any(word in name for word in ("secret", "key", "token", "password"))} - {
        "image_pull_secrets",  # names of Secrets
        "tls_secret",
        "mount_token",
    }
