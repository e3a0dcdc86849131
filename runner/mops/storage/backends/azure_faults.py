"""What errors of Azure's client mean."""

from __future__ import annotations

from azure.core import exceptions as azure

from mops.storage.backends.faults import BUSY, FULL, NO_CONTAINER, REFUSED, SILENT, UNKNOWN, Fault, RequestFailed

FAULTS_BY_CODE = {
    "ContainerNotFound": NO_CONTAINER,
    "ContainerBeingDeleted": NO_CONTAINER,
    "ResourceNotFound": NO_CONTAINER,
    "ServerBusy": BUSY,
    "InternalError": BUSY,
    "OperationTimedOut": BUSY,
}
FAULTS_BY_STATUS = {
    401: REFUSED,
    403: REFUSED,
    404: NO_CONTAINER,
    408: SILENT,
    429: BUSY,
    500: BUSY,
    502: BUSY,
    503: BUSY,
    504: BUSY,
    507: FULL,
}
# These classes count more than an error's status. The first match counts.
FAULTS_BY_CLASS = (
    (azure.ServiceRequestError, SILENT),
    (azure.ServiceResponseError, SILENT),
    (azure.IncompleteReadError, SILENT),
    (azure.DecodeError, SILENT),
)


def request_failed(error: azure.AzureError) -> RequestFailed:
    """Return an error of the client in the form that other modules know."""
    return RequestFailed(azure_fault_of(error), _in_brief(error), _code_of(error))


def azure_fault_of(error: azure.AzureError) -> Fault:
    """Return the meaning of an error."""
    for kind, fault in FAULTS_BY_CLASS:
        if isinstance(error, kind):
            return fault
    default = REFUSED if isinstance(error, azure.ClientAuthenticationError) else UNKNOWN
    by_status = FAULTS_BY_STATUS.get(getattr(error, "status_code", None) or 0, default)
    return FAULTS_BY_CODE.get(_code_of(error) or "", by_status)


def _code_of(error: azure.AzureError) -> str | None:
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def _in_brief(error: azure.AzureError) -> str:
    status = getattr(error, "status_code", None)
    return " ".join(str(part) for part in (type(error).__name__, status, _code_of(error)) if part)
