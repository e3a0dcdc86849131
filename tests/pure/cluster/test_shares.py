"""Shares of a cluster: equal by weight, none left idle, at least one task each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.cluster.base import ShareRequest
from mops.cluster.shares import TASKS_PER_SHARED_SLOT, WEIGHTS, Share, fractions, share_of

wants = st.floats(1e-3, 1.0)
claims = st.lists(st.builds(ShareRequest, st.sampled_from(sorted(WEIGHTS.values())), wants), min_size=1, max_size=12)
several_claims = claims.filter(lambda of: len(of) > 1)  # the tasks of a single job have no limit
NORMAL, HIGH, LOW = (WEIGHTS[name] for name in ("normal", "high", "low"))


def in_flight(slots: int, of: list[ShareRequest]) -> list[int]:
    """Return what each job computes for itself from the requests of the others."""
    shares = [share_of(slots, 1, claim, of[:i] + of[i + 1 :]) for i, claim in enumerate(of)]
    return [share.tasks for share in shares if share.tasks is not None]


@given(claims)
def test_a_job_gets_no_more_than_it_wants_and_all_jobs_no_more_than_the_cluster(of: list[ShareRequest]) -> None:
    got = fractions(of)
    assert all(0 < part <= claim.wants + 1e-9 for part, claim in zip(got, of, strict=True))
    assert sum(got) <= 1 + 1e-9


@given(claims)
def test_nothing_is_left_over_while_a_job_wants_more(of: list[ShareRequest]) -> None:
    assert sum(fractions(of)) == pytest.approx(min(1.0, sum(claim.wants for claim in of)))


@given(claims)
def test_a_job_that_gets_less_than_it_wants_gets_as_much_per_weight_as_any_other(of: list[ShareRequest]) -> None:
    got = fractions(of)
    for part, claim in zip(got, of, strict=True):
        if part < claim.wants - 1e-9:
            assert all(part / claim.weight >= other / its.weight - 1e-9 for other, its in zip(got, of, strict=True))


@given(st.integers(1, 500), several_claims)
def test_all_jobs_together_have_two_tasks_in_flight_per_slot_and_each_at_least_one(
    slots: int, of: list[ShareRequest]
) -> None:
    tasks = in_flight(slots, of)
    assert min(tasks) >= 1
    assert sum(n for n in tasks if n > 1) <= TASKS_PER_SHARED_SLOT * slots
    wanted = min(slots, sum(max(math.floor(claim.wants * slots), 1) for claim in of))
    assert sum(tasks) >= wanted, "a slot is idle that a job could use"


@given(st.integers(1, 500), st.sampled_from([LOW, NORMAL, HIGH]), wants, st.integers(2, 10))
def test_equal_claims_have_equal_shares(slots: int, weight: int, wanted: float, n: int) -> None:
    assert len(set(in_flight(slots, [ShareRequest(weight, wanted)] * n))) == 1


@given(st.integers(1, 500), several_claims)
def test_one_more_job_gives_no_other_job_more(slots: int, of: list[ShareRequest]) -> None:
    before = in_flight(slots, of)
    after = in_flight(slots, [*of, ShareRequest(NORMAL, 1.0)])[:-1]
    assert all(now <= then for now, then in zip(after, before, strict=True))


def test_shares_of_a_normal_job(subtests: pytest.Subtests) -> None:
    for slots, others, expected in [
        (8, [], Share(8, 2, None)),  # alone
        (8, [ShareRequest(NORMAL, 1.0)], Share(4, 1, 8)),
        (8, [ShareRequest(HIGH, 1.0)], Share(2, 1, 3)),
        (8, [ShareRequest(LOW, 1.0)], Share(7, 1, 12)),
        (8, [ShareRequest(NORMAL, 0.125)], Share(7, 1, 14)),  # the other job uses less than its half
        (3, [ShareRequest(NORMAL, 1.0)], Share(2, 1, 3)),
        (2, [ShareRequest(NORMAL, 1.0)] * 9, Share(1, 1, 1)),
    ]:
        with subtests.test(str((slots, others, expected))):
            assert share_of(slots, 2, ShareRequest(NORMAL, 1.0), others) == expected


def test_a_share_is_rounded_to_whole_slots_and_workers() -> None:
    assert share_of(12, 6, ShareRequest(NORMAL, 1.0), [ShareRequest(NORMAL, 1.0)] * 2) == Share(4, 2, 8)
    assert share_of(9, 9, ShareRequest(NORMAL, 1.0), [ShareRequest(HIGH, 1.0)]) == Share(2, 1, 3)


def test_a_job_near_its_end_gets_only_what_it_can_use() -> None:
    assert share_of(8, 2, ShareRequest(NORMAL, 2 / 8), [ShareRequest(HIGH, 1.0), ShareRequest(NORMAL, 1.0)]) == Share(
        2, 1, 2
    )
