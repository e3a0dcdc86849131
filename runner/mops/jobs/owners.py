"""Who may change a job on a service: the person who submitted it, and the managers of the service.

This protects against mistakes only (docs/explanation/trust.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mops.errors import JobError
from mops.k8s.chart import ASK_TO_MANAGE
from mops.storage.job_records import JobRecord

if TYPE_CHECKING:
    from mops.service.service import Service


def require_owner(
    record: JobRecord,
    service: Service | None,  # that knows this person; None: Kubernetes cannot be asked, and any person may change jobs
    *,
    force: bool,  # whether this person wants to change jobs of others
    command: str,  # that changes the job, without --force
) -> None:
    """Raise JobError if a job belongs to another person, unless ``force`` is set and this person is a manager."""
    if service is None or not record.owner or record.owner == service.user:
        return
    what, where = f"job {record.job!r} belongs to {record.owner}, and you are {service.user}", service.kubernetes.where
    if not force:
        raise JobError(what, where=where, hint=f"if you may change jobs of others: {command} --force")
    if not service.may_manage_others():
        raise JobError(f"{what}, who may not change jobs of others", where=where, hint=ASK_TO_MANAGE)
