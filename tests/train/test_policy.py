"""Claims: a run that gets on may fail often; one that does not is ended before it costs a night."""

from __future__ import annotations

import pytest

from hermitcrab.train.failures import Failure
from hermitcrab.train.policy import DELAYS, Decision, Policy

CRASH = Failure("crash", "it crashed")


def fail(
    policy: Policy, kind: str = "crash", step: int | None = None, committed: bool = False, at: str = ""
) -> Decision:
    """Let an attempt fail."""
    return policy.failed(Failure(kind, "why"), step=step, committed=committed, resumed=at)


def test_the_budget_is_spent_without_a_new_checkpoint() -> None:
    """With longer and longer pauses; then it is a crash loop, which tells of the last failure."""
    policy = Policy(4)
    decisions = [fail(policy, step=number) for number in range(5)]
    assert [decision.delay for decision in decisions[:4]] == list(DELAYS[:4])
    assert [decision.restart for decision in decisions] == [True] * 4 + [False]
    assert decisions[-1].failure.kind == "crash-loop" and "why" in decisions[-1].failure.reason


def test_a_new_checkpoint_refills_it() -> None:
    """Alone: steps that no checkpoint holds will be done again."""
    policy = Policy(1)
    for number in range(20):
        assert fail(policy, step=number, committed=True).restart
    assert fail(policy, step=30).restart
    assert not fail(policy, step=31).restart


def test_three_failures_at_one_step_are_a_loop() -> None:
    """It is the data or the code that fails there."""
    policy = Policy(9)
    assert [fail(policy, step=7).restart for _ in range(3)] == [True, True, False]
    policy = Policy(9)
    assert all(fail(policy, step=step).restart for step in (7, 7, 8, 7, 7, 9))


@pytest.mark.parametrize(
    "kind", ["usage", "nan", "gpu-lost", "preempted", "stopped", "no-checkpoint", "gpu-oom", "host-oom"]
)
def test_some_are_never_started_again(kind: str) -> None:
    """It would fail again, or nobody wants it to go on."""
    decision = fail(Policy(4), kind, committed=True)
    assert not decision.restart and decision.failure.kind == kind


def test_another_setting_is_tried_once_each() -> None:
    """After that the memory is as full as before."""
    policy = Policy(4, alternatives=2)
    decisions = [fail(policy, "gpu-oom") for _ in range(3)]
    assert [decision.alternative for decision in decisions] == [True, True, False]
    assert not decisions[2].restart and decisions[2].failure.kind == "gpu-oom"


def test_a_full_disk_is_waited_for() -> None:
    """No restart before there is room."""
    assert fail(Policy(4), "disk-full").wait_for_space


def test_no_restarts_means_none() -> None:
    """And the failure keeps its name."""
    decision = fail(Policy(0), committed=True)
    assert not decision.restart and decision.failure.kind == "crash"


def test_a_checkpoint_after_which_it_dies_twice_is_passed_over() -> None:
    """It verifies, and kills: the one before it is next."""
    policy = Policy(9)
    fail(policy, at="/a")
    assert policy.poisoned == frozenset()
    fail(policy, at="/a")
    assert policy.poisoned == {"/a"}
    fail(policy, at="/b", committed=True)
    fail(policy, at="/b")
    assert policy.poisoned == {"/a"}
