"""Shares of a cluster: equal by weight, none left idle, at least one task each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.cluster.base import ShareRequest
from mops.cluster.shares import TASKS_PER_SHARED_SLOT, WEIGHTS, Share, fractions, queue_weight, share_of

wants = st.floats(1e-3, 1.0)
weights = st.sampled_from(sorted(WEIGHTS.values()))
owners = st.sampled_from(["", "ada", "bob", "eve"])
claims = st.lists(st.builds(ShareRequest, weights, wants, owners), min_size=1, max_size=12)
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


def by_owner(of: list[ShareRequest]) -> list[list[int]]:
    """Return the numbers of the requests of each owner; a job without an owner is one for itself."""
    found: dict[str | int, list[int]] = {}
    for i, claim in enumerate(of):
        found.setdefault(claim.owner or i, []).append(i)
    return list(found.values())


@given(claims)
def test_an_owner_whose_jobs_want_more_gets_as_much_per_weight_as_any_other_owner(of: list[ShareRequest]) -> None:
    """The number of their jobs does not count. The weight is the highest of the jobs, and here of those in want."""
    got = fractions(of)
    for jobs in by_owner(of):
        in_want = [of[i].weight for i in jobs if got[i] < of[i].wants - 1e-6]
        if in_want:
            its = sum(got[i] for i in jobs) / max(in_want)
            for others in by_owner(of):
                assert its >= sum(got[i] for i in others) / max(of[i].weight for i in others) - 1e-6


@given(claims)
def test_a_job_that_gets_less_than_it_wants_gets_as_much_per_weight_as_any_other_of_its_owner(
    of: list[ShareRequest],
) -> None:
    got = fractions(of)
    for jobs in by_owner(of):
        for i in jobs:
            if got[i] < of[i].wants - 1e-6:
                assert all(got[i] / of[i].weight >= got[k] / of[k].weight - 1e-6 for k in jobs)


@given(claims)
def test_owners_with_one_job_each_divide_as_jobs_without_an_owner(of: list[ShareRequest]) -> None:
    each = [ShareRequest(claim.weight, claim.wants, str(i)) for i, claim in enumerate(of)]
    nobodys = [ShareRequest(claim.weight, claim.wants) for claim in of]
    assert fractions(each) == fractions(nobodys)


@given(st.lists(wants, min_size=2, max_size=12), weights, weights)
def test_ten_jobs_of_a_person_have_the_share_of_one(mine: list[float], weight: int, other: int) -> None:
    parts = [ShareRequest(weight, part, "ada") for part in mine]
    bob = ShareRequest(other, 1.0, "bob")
    whole = ShareRequest(weight, min(sum(mine), 1.0), "ada")
    assert sum(fractions([*parts, bob])[:-1]) == pytest.approx(fractions([whole, bob])[0])


@given(st.lists(st.builds(ShareRequest, weights, st.just(1.0), owners), min_size=1, max_size=12))
def test_the_fair_queue_divides_the_time_as_the_shares(of: list[ShareRequest]) -> None:
    """Otherwise the tasks of a person with many jobs would run first, however few of them are in flight."""
    weights = [queue_weight(claim, of[:i] + of[i + 1 :]) for i, claim in enumerate(of)]
    assert [weight / sum(weights) for weight in weights] == pytest.approx(fractions(of))


@given(st.lists(st.builds(ShareRequest, weights, wants), max_size=4), weights)
def test_a_job_of_an_owner_with_one_job_keeps_its_weight_while_others_want_their_share(
    others: list[ShareRequest], weight: int
) -> None:
    """A job that comes would else compare its tasks with those that a job alone has sent at another price."""
    hungry = [ShareRequest(other.weight, 1.0) for other in others]
    assert queue_weight(ShareRequest(weight, 0.01), hungry) == pytest.approx(weight)


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


@given(st.integers(1, 500), several_claims, st.builds(ShareRequest, weights, wants, owners))
def test_one_more_job_gives_no_job_of_another_owner_more(
    slots: int, of: list[ShareRequest], one_more: ShareRequest
) -> None:
    before = in_flight(slots, of)
    after = in_flight(slots, [*of, one_more])[:-1]
    for claim, now, then in zip(of, after, before, strict=True):
        assert now <= then or claim.owner == one_more.owner != ""


def test_a_small_job_of_high_priority_gives_its_owners_large_job_no_more() -> None:
    """Otherwise it would lend its weight to a job of low priority."""
    low, bob = ShareRequest(LOW, 1.0, "ada"), ShareRequest(NORMAL, 1.0, "bob")
    with_high = fractions([low, ShareRequest(HIGH, 0.05, "ada"), bob])
    assert with_high[0] <= fractions([low, bob])[0] == pytest.approx(0.2)
    assert with_high[1] == pytest.approx(0.05)


def test_shares_of_a_normal_job(subtests: pytest.Subtests) -> None:
    for slots, others, expected in [
        (8, [], Share(8, 2, None)),  # alone
        (8, [ShareRequest(NORMAL, 1.0)], Share(4, 1, 8)),
        (8, [ShareRequest(HIGH, 1.0)], Share(2, 1, 3)),
        (8, [ShareRequest(LOW, 1.0)], Share(7, 1, 12)),
        (8, [ShareRequest(NORMAL, 0.125)], Share(7, 1, 14)),  # the other job uses less than its half
        (3, [ShareRequest(NORMAL, 1.0)], Share(2, 1, 3)),
        (2, [ShareRequest(NORMAL, 1.0)] * 9, Share(1, 1, 1)),
        (8, [ShareRequest(NORMAL, 1.0, "bob")] * 9, Share(4, 1, 8)),
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
