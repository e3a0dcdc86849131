"""Kubernetes in memory, for tests of the requests of mops. The tests in tests/cluster use a real Kubernetes."""

from __future__ import annotations

import json
from typing import Any

from mops.errors import ServiceError
from mops.k8s import names

Object = dict[str, Any]


class Kubernetes:
    """Objects of a namespace in memory, with the interface of mops.k8s.client and a simulated operator."""

    where = "https://here, namespace studies"

    def __init__(self, *, serves: bool = True, takes: bool = True):
        self._serves, self._takes = serves, takes
        self.objects: dict[tuple[str, str], Object] = {}
        self.n_created = 0
        self.checked: list[Object] = []  # the objects of dry runs
        self.config: Object | None = {"metadata": {"name": "mops-client", "uid": "uid-0"}}
        """The ConfigMap of the release."""
        self.all_pods: list[Object] = []
        self.refuses = False  # whether a quota refuses new Jobs
        self.fails_after_check = False  # whether it refuses only what it has accepted in a dry run
        self.has_kueue = True
        self.user = "ada"
        self.managers = {"grace"}  # who may change jobs of others

    def may(self, verb: str, *_: str, name: str = "") -> bool:
        return verb != names.MANAGE_OTHERS or self.user in self.managers

    def serves(self, version: str) -> bool:
        return self._serves

    def config_map(self, name: str) -> Object | None:
        return self.config

    def jobs(self, labels: dict[str, str]) -> list[Object]:
        jobs = [one for (kind, _), one in self.objects.items() if kind == "Job"]
        return [one for one in jobs if labels.items() <= one["metadata"]["labels"].items()]

    def pods(self, labels: object) -> list[Object]:
        return self.all_pods

    def events(self) -> list[Object]:
        return []

    def delete_job(self, name: str) -> None:
        self.objects.pop(("Job", name), None)

    def end_jobs(self) -> None:
        """End every Job, as Kubernetes does when its pod exits with 0."""
        for job in self.jobs({}):
            job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        if self.refuses:
            raise ServiceError("exceeded quota: jobs", where=self.where)
        if dry_run:
            self.checked.append(manifest)
            return manifest
        if self.fails_after_check:
            raise ServiceError("exceeded quota: jobs", where=self.where)
        self.n_created += 1
        made = json.loads(json.dumps(manifest))
        made["metadata"]["uid"] = f"uid-{self.n_created}"
        if self.has_kueue and names.QUEUE in made["metadata"].get("labels", {}):
            made["spec"]["suspend"] = True
        if self._takes:
            made["status"] = {"phase": "Pending"}  # without end: the race of the operator
        return self.objects.setdefault((made["kind"], made["metadata"]["name"]), made)

    def present(self, manifest: Object) -> Object | None:
        return self.objects.get((manifest["kind"], manifest["metadata"]["name"]))

    def delete(self, manifest: Object) -> None:
        self.objects.pop((manifest["kind"], manifest["metadata"]["name"]), None)
