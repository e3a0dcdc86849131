"""A clinic with SimPy: patients arrive at random, and wait until a doctor is free."""

import random

import simpy

DAY = 24 * 60  # minutes
WARM_UP, DAYS = 2, 12


def clinic(params, seed):
    """Return the mean wait of the patients, without those of the first two days, when the clinic starts empty."""
    rng = random.Random(seed)
    env = simpy.Environment()
    doctors = simpy.Resource(env, capacity=params["doctors"])
    waits = []

    def patient():
        arrival = env.now
        with doctors.request() as free:
            yield free
            if arrival >= WARM_UP * DAY:
                waits.append(env.now - arrival)
            yield env.timeout(rng.expovariate(1 / 15))  # 15 minutes on average

    def arrivals():
        while True:
            yield env.timeout(rng.expovariate(params["per_hour"] / 60))
            env.process(patient())

    env.process(arrivals())
    env.run(until=DAYS * DAY)
    return {"patients": len(waits), "mean_wait": sum(waits) / len(waits), "waited": sum(wait > 0 for wait in waits)}
