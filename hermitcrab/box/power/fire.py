"""Stops the machine: tries, looks whether it worked, tries again and another way, and is loud when nothing did."""

from __future__ import annotations

import time
from typing import Callable

from hermitcrab.box.power import calls
from hermitcrab.box.power.preflight import Plan
from hermitcrab.box.power.stops import Call, Way

ROUNDS = 3
PAUSE = 20.0  # seconds after a round, times its number
LOOK = 5.0  # seconds between two looks
# What the platforms call an instance that is stopped or is being stopped.
STOPPED = {
    "intended_status": {"stopped"},
    "actual_status": {"stopped", "exited"},
    "desiredStatus": {"EXITED", "TERMINATED"},
    "status": {"terminating", "terminated"},
}


def fire(
    plan: Plan,
    say: Callable[[str], None],
    *,
    rounds: int = ROUNDS,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Stop the machine; to return at all is half a failure: False when nobody says that it is stopped."""
    for number in range(1, rounds + 1):
        for way in plan.ways:
            say(f"try {number} of {rounds}: {plan.name} by {way.name}")
            answer = calls.make(way.stop, sleep=sleep)
            say(f"{way.name}: {answer.said}")
            if answer.ok and _settles(plan, way, sleep):
                say(f"{plan.name} says that it is stopped")
                return True
            if answer.ok:
                say(f"{way.name} was accepted {plan.settle:g} s ago, and the machine is still up")
        if number < rounds:
            sleep(PAUSE * number)
    say(still_billing(plan))
    return False


def still_billing(plan: Plan) -> str:
    """What is to be shouted when nothing worked."""
    return f"STILL BILLING: {plan.name} could not be stopped; stop it by hand, in the console, now"


def _settles(plan: Plan, way: Way, sleep: Callable[[float], None]) -> bool:
    """Wait for the end that was promised; says whether the platform confirms it."""
    confirmed = False
    for _ in range(max(1, round(plan.settle / LOOK))):
        sleep(plan.settle / max(1, round(plan.settle / LOOK)))
        confirmed = confirmed or _is_stopped(way.proof, plan.identity)
    return confirmed


def _is_stopped(proof: Call | None, identity: str) -> bool:
    if proof is None or not proof.names:
        return False
    found = calls.own(calls.make(proof._replace(timeout=10.0)).data, identity)
    return any(found.get(name) in states for name, states in STOPPED.items())
