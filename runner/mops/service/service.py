"""A cluster service: starts runners there, and reports their state (docs/internals/kubernetes.md)."""

from __future__ import annotations

import logging
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import mops
from mops.errors import JobError, MopsError, ServiceError, UsageError, known_name
from mops.k8s import chart, dedicated, names
from mops.k8s import connect as connect_kubernetes
from mops.k8s.chart import Object, RunnerPod
from mops.k8s.job_phase import GONE, Phase, phase_of
from mops.k8s.pod_state import PodState, is_running, newest, refused_pods, state_of
from mops.k8s.runner_job import Request, runner_job, variable_of
from mops.service import profile as profiles
from mops.service.profile import Profile
from mops.settings import PREFIX
from mops.storage.files import Files
from mops.storage.job_options import PodOptions

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes

logger = logging.getLogger(__name__)

# Options that are fields of k8s.chart.RunnerPod with the same names.
_POD_FIELDS = ("queue", "priority_class", "deadline_s", "keep_s")


@dataclass(frozen=True)
class KubernetesRunner:
    """A runner's Job that Kubernetes has accepted."""

    job: str
    runner: str  # the Job's name
    namespace: str


@dataclass
class Service:
    """A cluster service."""

    profile: Profile
    kubernetes: Kubernetes
    pod: RunnerPod  # the settings of the runner's pod
    owner: str = ""  # of the job (JobRecord.owner), a label and an annotation of its Jobs
    study: str = ""  # its name, a label of the Jobs
    pool: str | None = None  # of workers that run the job; None: as the chart says
    dedicated_size: dedicated.Size | None = None  # None: the job runs on the shared cluster
    # URL of the jobs' storage, because jobs of two storages may have the same name; None: the service's storage.
    results: str | None = None

    @classmethod
    def of(cls, profile: Profile) -> Service:
        """Connect to the service of a profile."""
        kubernetes = connect_kubernetes(profile.namespace, context=profile.context, kubeconfig=profile.kubeconfig)
        return cls(profile, kubernetes, profile.service.runner)

    @classmethod
    def current(cls, profile: Profile) -> Service:
        """Connect to the service of the saved profile as its chart describes it now, and save the new description."""
        name = profiles.current()  # before the requests: another terminal may connect to another service meanwhile
        service = cls.of(profile).renewed()
        if service.profile != profile:
            try:
                profiles.save(service.profile, name)
            except UsageError as refused:  # the job runs as the chart says even so
                logger.warning("the service has changed since 'mops connect', but %s: %s", refused.what, refused.where)
            else:
                logger.warning("the service has changed since 'mops connect'; the profile is updated")
            if warning := another_version(service.profile.service):
                logger.warning(warning)
        return service

    def renewed(self) -> Service:
        """Return the service as its chart describes it now: an upgrade since 'mops connect' may have changed it."""
        # Every command that starts a runner does this first: a runner would not start with an image, a Secret or an
        # account that the upgrade has removed.
        service = chart.ServiceConfig.of(self._config_map(), self.kubernetes.where)
        return replace(self, profile=self.profile.model_copy(update={"service": service}), pod=service.runner)

    def _config_map(self) -> Object:
        """Return the ConfigMap in which the chart describes this service."""
        name = names.client_name(self.profile.service.release)
        found = self.kubernetes.config_map(name)
        if found is None:
            what = f"service {self.profile.service.release!r} no longer exists: its ConfigMap is absent"
            hint = "connect to another service with 'mops connect', or add --local to run on this machine"
            raise ServiceError(what, where=f"{self.kubernetes.where}: ConfigMap {name}", hint=hint)
        return found

    def with_options(self, options: PodOptions) -> Service:
        """Return the service for one job whose runner's pod has these options."""
        changes = {name: options.given[name] for name in _POD_FIELDS if name in options.given}
        if options.memory:
            # Kubernetes also accepts amounts with which no pod starts, such as 512 (bytes) and 512m (half a byte).
            if not re.fullmatch(r"\d{8,}|[\d.]+([KMGTPE]i|[MGTPE])", options.memory):
                what = f"{options.memory!r} is no amount of memory for a pod"
                raise UsageError(what, where="--memory", hint="write it in Mi or Gi: 500Mi or 2Gi")
            resources = self.pod.resources
            both = {part: {**resources.get(part, {}), "memory": options.memory} for part in ("requests", "limits")}
            changes["resources"] = {**resources, **both}
        pod = self.pod.model_copy(update=changes)
        found = replace(self, pod=pod, dedicated_size=self._size(options), pool=options.pool)
        found.check_pool(options.pool, "--pool")
        return found

    def check_pool(self, pool: str | None, where: str) -> None:
        """Refuse a pool of workers that this service, or the job's dedicated cluster, does not have."""
        there = self.profile.service.pools if self.dedicated_size is None else {}
        if pool is None or pool in there:
            return
        if not there:
            whose = "this service" if self.dedicated_size is None else "a dedicated Dask cluster"
            raise UsageError(f"{whose} has no pools of workers", where=where, hint="leave the pool out: --pool ''")
        raise UsageError(f"this service has no pool {pool!r} of workers", where=where, hint=known_name(pool, there))

    def _size(self, options: PodOptions) -> dedicated.Size | None:
        """Return the size of the job's dedicated Dask cluster; None: the job runs on the shared cluster."""
        wanted = self.profile.dedicated if options.dedicated is None else options.dedicated
        if wanted:
            return dedicated.Size.parse(options.workers or str(self.profile.service.dedicated.workers))
        if options.workers:
            what = "--workers sets the size of a dedicated Dask cluster, and this job uses the shared one"
            raise UsageError(what, where="the command line", hint="add --dedicated")
        return None

    @property
    def storage(self) -> str:
        """URL of the service's storage."""
        return profiles.reach(self.profile)

    @contextmanager
    def launcher(self, files: Files, job: str) -> Iterator[Callable[[Mapping[str, str], str], KubernetesRunner]]:
        """Check that the service can run a job, which the body creates; yield the Launcher that starts its runner."""
        is_remote = "://" in files.url and not files.url.startswith("memory:")
        if not is_remote and files.url != self.storage:
            hint = f"leave out --storage to use the service's storage ({self.storage}), or add --local"
            raise UsageError("a runner in the cluster cannot reach this storage", where=files.url, hint=hint)
        build_spec = None
        if self.dedicated_size is not None:
            self.check_dedicated()
            build_spec = dedicated.spec_builder()

        wanted = self._request(files, job, build_spec)
        pod = self._runner_pod()
        # Wrong pod options, missing permissions, a quota or a policy are refused here, before the job exists. This Job
        # has the person's queue, also if the workers of a dedicated cluster alone wait in it.
        self.kubernetes.create(runner_job(self.pod, wanted), dry_run=True)

        def start(environment: Mapping[str, str], asked: str) -> KubernetesRunner:
            settings = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
            if (pools := self.profile.service.pools) and self.dedicated_size is None:
                pool = settings[f"{PREFIX}POOL"] = self.pool or settings.get(f"{PREFIX}POOL", names.DEFAULT_POOL)
                settings.setdefault(f"{PREFIX}MEMORY_POOL", pools[pool])
            request = replace(wanted, number=self._next_number(job), environment=settings, asked=asked)
            try:
                made = self.kubernetes.create(runner_job(pod, request))
            except ServiceError as refused:  # since the check
                refused.hint = f"the job exists: start it later with 'mops jobs resume {job}'"
                raise
            if pod.queue and not made["spec"].get("suspend"):  # Kueue suspends each Job that names a queue
                logger.warning("no Kueue has taken the job into queue %r: it starts at once", pod.queue)
            return KubernetesRunner(job, names.runner_name(job, request.number), request.namespace)

        yield start

    def check_dedicated(self) -> None:
        """Refuse dedicated Dask clusters if this service or its Kubernetes does not support them."""
        if not self.profile.service.dedicated.enabled:
            raise _no_dedicated_cluster("this service has no dedicated Dask clusters", "dedicated.enabled")
        if not self.pod.mount_token:
            raise _no_dedicated_cluster(
                "this service's runners have no token to create Dask clusters", "runner.automountServiceAccountToken"
            )
        if not self.kubernetes.serves(dedicated.API_VERSION):
            what = f"this Kubernetes has no Dask clusters ({dedicated.API_VERSION})"
            hint = "leave out --dedicated, or ask for the Helm chart dask-kubernetes-operator to be installed"
            raise ServiceError(what, where=self.kubernetes.where, hint=hint)

    def _runner_pod(self) -> RunnerPod:
        """Return the settings of the runner's pod: it may wait in another queue than the workers of its cluster."""
        queue = self.profile.service.dedicated.runner_queue
        if self.dedicated_size is None or not (queue and self.pod.queue):
            return self.pod
        return self.pod.model_copy(update={"queue": queue})

    def _worker_labels(self, cluster: str | None) -> dict[str, str]:
        """Return the labels of the pods of Dask workers: of a dedicated cluster, or (None) of the shared one."""
        if cluster is None:
            return self.profile.service.worker.selector
        return {names.DASK_CLUSTER: cluster, names.DASK_COMPONENT: names.WORKER}

    def _request(self, files: Files, job: str, build_spec: dedicated.BuildSpec | None) -> Request:
        """Return the next start of a job's runner, without the settings and the person's request."""
        service, namespace = self.profile.service, self.profile.namespace
        cluster: list[Object] = []
        cluster_name, scheduler = None, service.scheduler
        if build_spec is not None:
            assert self.dedicated_size is not None
            cluster_name = names.cluster_name(job, secrets.token_hex(3))
            scheduler = dedicated.scheduler_address(service, cluster_name, namespace)
            labels = {names.JOB: job} | names.for_people(self.owner, self.study)
            size, queue = self.dedicated_size, self.pod.queue
            cluster = dedicated.objects(build_spec, service, cluster_name, namespace, size, labels, queue)
        return Request(
            job=job,
            number=0,  # the start has the next number
            release=service.release,
            service_uid=self._config_map()["metadata"]["uid"],
            namespace=namespace,
            storage=files.url,
            scheduler=scheduler,
            owner=self.owner,
            study=self.study,
            dedicated=cluster,
            workers=self._worker_labels(cluster_name),
        )

    @property
    def user(self) -> str:
        """The name of this person, as Kubernetes knows it."""
        return self.kubernetes.user

    def may_manage_others(self) -> bool:
        """Tell whether this person may change jobs that other persons have submitted."""
        return self.kubernetes.may(
            names.MANAGE_OTHERS, "configmaps", name=names.client_name(self.profile.service.release)
        )

    def _next_number(self, job: str) -> int:
        of_job = names.of_job(job)
        there = [one["metadata"]["name"] for one in self.kubernetes.jobs(of_job)]
        # A pod on a node that does not answer outlives its Job, and must not be mistaken for a pod of the next Job.
        there += [pod["metadata"]["labels"].get(names.POD_OF_JOB, "") for pod in self.kubernetes.pods(of_job)]
        tails = (name.rpartition("-")[2] for name in there)
        return 1 + max((int(tail) for tail in tails if tail.isdigit()), default=0)

    def dedicated_state(self, job: str) -> str:
        """Return the state of a job's dedicated Dask cluster; empty: it has none."""
        name = self._dedicated_name(job)
        return dedicated.state(name, self.kubernetes.pods({names.DASK_CLUSTER: name})) if name else ""

    def _dedicated_name(self, job: str) -> str | None:
        """Return the name of a job's dedicated cluster; None: it has none."""
        return _dedicated_name_of(newest(self._jobs(names.of_job(job))))

    def phase(self, job: str) -> Phase:
        """Return the phase of a job's newest Job."""
        return self.phases(names.of_job(job)).get(job, GONE)

    def phases(self, labels: Mapping[str, str] | None = None) -> dict[str, Phase]:
        """Return the phase of each job's newest Job, by job."""
        wanted = dict(labels or {names.NAME: "mops", names.COMPONENT: names.RUNNER})
        jobs = _by_label(self._jobs(wanted), names.JOB)
        pods = _by_label(self.kubernetes.pods(wanted), names.POD_OF_JOB)
        events, now = self.kubernetes.events(), datetime.now(UTC)
        found = {job: newest(some) for job, some in jobs.items()}
        return {job: phase_of(one, pods[one["metadata"]["name"]], events, now) for job, one in found.items() if one}

    def _jobs(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the Jobs with these labels whose results go to this storage."""
        results = self.results or profiles.storage_of(self.profile)
        found = self.kubernetes.jobs(dict(labels))
        return [one for one in found if one["metadata"].get("annotations", {}).get(names.STORAGE) == results]

    def delete_idle_jobs(self, job: str) -> list[str]:
        """Delete the Jobs of a job if no pod of them runs; return their names."""
        if self.phase(job).word in ("running", "retrying"):
            return []
        return self.remove_runner(job)

    def replaces_runner(self, job: str, *, take_over: bool) -> bool:
        """Tell whether a new runner must replace a job's present one: with ``take_over``, or if its node is lost."""
        # This changes nothing. ``remove_runner`` replaces it, after all other checks.
        phase = self.phase(job)
        replaces = take_over or phase.word == "lost"
        if not (replaces or phase.over):
            why = f" ({phase.reason})" if phase.reason else ""
            what = f"job {job!r} has a runner in the cluster: {phase.word}{why}"
            hint = f"stop the runner with 'mops jobs cancel {job}', or replace it with --take-over"
            raise JobError(what, where=self.kubernetes.where, hint=hint)
        return replaces

    def remove_runner(self, job: str) -> list[str]:
        """Delete the Jobs of a job, running or not; return their names."""
        there = [one["metadata"]["name"] for one in self._jobs(names.of_job(job))]
        for name in there:
            self.kubernetes.delete_job(name)
        return there

    def runner_log(self, job: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield the lines that the newest pod of a job's runner printed; nothing if no pod exists."""
        pod = self.phase(job).pod
        return self.kubernetes.log_lines(pod, follow=follow, tail=tail) if pod else iter(())

    def worker_logs(self, job: str, tail: int | None = None) -> Iterator[tuple[str, str]]:
        """Yield the lines of the pods of a job's Dask workers, dedicated or shared: the pod's name, and a line."""
        for pod in self.kubernetes.pods(self._worker_labels(self._dedicated_name(job))):
            name = pod["metadata"]["name"]
            for line in self.kubernetes.log_lines(name, tail=tail):
                yield name, line

    def pods(self, component: str) -> list[PodState]:
        """Return the state of the chart's pods of a component, in the order of their names."""
        return self._pods(names.of_component(self.profile.service.release, component))

    def _pods(self, labels: dict[str, str]) -> list[PodState]:
        found = self.kubernetes.pods(labels)
        events = self.kubernetes.events() if any(not is_running(pod) for pod in found) else []
        return sorted((state_of(pod, events) for pod in found), key=lambda pod: pod.name)

    def refused(self) -> dict[str, str]:
        """Return the pools of which Kubernetes makes no more workers, and why, such as a quota."""
        events, release = self.kubernetes.events(), self.profile.service.release
        pools = self.profile.service.pools or (names.DEFAULT_POOL,)
        found = {pool: refused_pods(events, names.workers_name(release, pool)) for pool in pools}
        return {pool: why for pool, why in found.items() if why}

    def lacks(self, job: str) -> str:
        """Return which pods of its Dask cluster a job's runner waits for, for people; empty: none is missing."""
        for what, labels, deployments in self._needed(job):
            pods = self._pods(labels)
            if not any(pod.ready for pod in pods):
                why = f"{pods[0].name} is {pods[0]}" if pods else refused_pods(self.kubernetes.events(), deployments)
                return f"waits for {what}: {why or 'there is no pod'}"
        return ""

    def _needed(self, job: str) -> Iterator[tuple[str, dict[str, str], str]]:
        """Yield what a job's runner needs: for people, by the labels of its pods, and by the names of Deployments."""
        scheduler, release = "the Dask scheduler", self.profile.service.release
        runner = newest(self._jobs(names.of_job(job)))
        if name := _dedicated_name_of(runner):
            for component, what in ((names.SCHEDULER, scheduler), (names.WORKER, "workers")):
                yield what, {names.DASK_CLUSTER: name, names.DASK_COMPONENT: component}, f"{name}-*"
            return
        parts = {names.SCHEDULER: scheduler}
        if self.profile.service.autoscaler:  # without it, no worker comes
            parts[names.AUTOSCALER] = "the autoscaler, which starts workers"
        for component, what in parts.items():
            yield what, names.of_component(release, component), f"{release}-{component}"
        pool = (runner and variable_of(runner, f"{PREFIX}POOL")) or names.DEFAULT_POOL
        what = "workers" if pool == names.DEFAULT_POOL else f"workers of pool {pool}"
        labels = names.of_component(release, names.WORKER) | {names.POOL: pool}
        yield what, labels, names.workers_name(release, pool)

    def certificate(self) -> Mapping[str, str] | None:
        """Return the certificate for Dask's connections, as a Secret has it; None: they are not encrypted."""
        name = self.profile.service.tls_secret
        return self.kubernetes.secret(name, ("ca.crt", "tls.crt", "tls.key")) if name else None

    @contextmanager
    def scheduler(self) -> Iterator[str]:
        """Forward the Dask scheduler to this machine while the body runs; yield its address here."""
        inside = urlsplit(self.profile.service.scheduler)
        service, port = (inside.hostname or "").partition(".")[0], inside.port or 8786
        with self.kubernetes.forwarded(service, port) as here:
            yield f"{inside.scheme}://{here}"

    @contextmanager
    def dashboard(self, port: int, on_fault: Callable[[MopsError], None]) -> Iterator[str]:
        """Forward Dask's dashboard to this port, or any free port for 0, while the body runs; yield its URL."""
        pages = self.profile.service.dashboard
        with self.kubernetes.forwarded(pages.service, pages.port, port, on_fault) as here:
            yield f"http://{here}/status"


def _dedicated_name_of(runner: Object | None) -> str | None:
    """Return the name of the dedicated cluster that a runner's Job names; None: it names none."""
    return runner["metadata"].get("annotations", {}).get(names.DEDICATED_CLUSTER) if runner else None


def _by_label(objects: Iterable[Object], label: str) -> defaultdict[str, list[Object]]:
    """Return the objects by the value of a label."""
    found = defaultdict[str, list[Object]](list)
    for one in objects:
        found[one["metadata"].get("labels", {}).get(label, "")].append(one)
    return found


def another_version(service: chart.ServiceConfig) -> str:
    """Return a warning if the service runs another version of mops, which is not supported; empty: it does not."""
    if service.version == mops.__version__:
        return ""
    return f"this is mops {mops.__version__} and the service runs {service.version}: install the same version"


def _no_dedicated_cluster(what: str, value: str) -> UsageError:
    hint = f"leave out --dedicated, or ask the cluster's operator to set {value}"
    return UsageError(what, where="--dedicated", hint=hint)
