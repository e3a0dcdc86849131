"""A service whose storage speaks the language of S3 (versitygw)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_lab import ROOT, Service, assert_same_rows, begun, installed, write_study
from test_kills_in_cluster import kill_runner

from s3_requests import CLIENT, Signature

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


def make_bucket(storage: dict[str, str], bucket: str) -> None:
    """Create a bucket in which the key of workers may read and list."""
    allowed = {
        "Effect": "Allow",
        "Principal": {"AWS": [storage["WORKER_AWS_ACCESS_KEY_ID"]]},
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    owner = Signature(storage["AWS_ACCESS_KEY_ID"], storage["AWS_SECRET_ACCESS_KEY"])
    place = f"{storage['AWS_ENDPOINT_URL']}/{bucket}"
    CLIENT.put(place, auth=owner).raise_for_status()
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    CLIENT.put(f"{place}?policy", content=policy, auth=owner).raise_for_status()


@pytest.fixture(scope="module")
def on_s3(cluster: dict[str, str]) -> Iterator[Service]:
    """Start the storage, and install a service that uses it."""
    with pytest.MonkeyPatch.context() as patch:
        up = ROOT / "k8s" / "testcluster" / "s3-up"
        printed = subprocess.run([up], stdout=subprocess.PIPE, text=True, check=True, timeout=800).stdout
        found = dict(line.split("=", 1) for line in printed.splitlines())
        buckets = Path(found.pop("BUCKETS"))
        for name, value in found.items():
            patch.setenv(name, value)
        bucket = f"studies-{os.getpid()}"
        make_bucket(found, bucket)
        with installed("mops-s3", cluster | found, bucket=bucket) as service:
            yield service
        shutil.rmtree(buckets / bucket)


def test_a_job_on_s3_whose_runner_is_killed_has_the_rows_of_a_plain_loop(on_s3: Service) -> None:
    """For workers, a key that lists and reads is enough."""
    worker, *_ = on_s3.pods("worker")
    probe = ("python", "-m", "mops.storage.probe", on_s3.url)
    refused = on_s3.run("kubectl", "-n", on_s3.namespace, "exec", worker, "--", *probe)
    assert "error: the storage refuses access (PermissionDeniedError 403 AccessDenied)" in refused.err
    assert on_s3.run("helm", "test", "mops", "-n", on_s3.namespace, "--timeout", "3m").code == 0
    study = write_study(on_s3, "bucket", sets=60, seconds=0.5)
    on_s3.submit(study, "bucket", CHECKPOINT_SECONDS="0")
    begun(on_s3, "bucket")
    kill_runner(on_s3, "bucket")
    on_s3.wait("bucket")
    assert on_s3.status("bucket")["attempt"] == 2
    assert_same_rows(on_s3, study, "bucket")
    assert on_s3.mops("jobs", "results", "bucket", "--best", "1").out
