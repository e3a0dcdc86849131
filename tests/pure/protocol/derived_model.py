"""Deriving a job while its sources are deleted: one process derives job 3 from job 2, and others delete jobs 1 and 2.

Job 2 was derived from job 1. Keys of the storage: ("J", job) the record of a job, which names its sources, ("F", job)
its other files, ("D", job) the mark of its deletion.

By hand: python protocol_model.py --rules derived [-t NAME]

I16 a job that has been derived has all its sources, as long as it has its name
"""

from protocol_model import Opt, put, setrun


class Derived:
    """Rn.n counts looks and jobs; for a deletion, Rn.inh is what it saw derived, and Rn.pend what it has deleted."""

    sources = (1, 2)  # of job 3
    commands = ((2,), (1,))  # the jobs that each deletion removes, children first

    def __init__(self, opt, _groups):
        self.o = opt

    def initial(self):
        return frozenset({(("J", 1), ()), (("J", 2), (1,)), (("F", 1), 0), (("F", 2), 0)})

    def steps(self, st, i):
        rn, d = st.run[i], dict(st.store)
        if i == 0:
            yield from self.derive(st, rn, d)
        elif i <= len(self.commands):
            yield from self.delete(st, i, rn, d, self.commands[i - 1])

    def derive(self, st, rn, d):
        looks_first = self.o.mutant == "looks first"
        if rn.pc == "idle" and ("J", 2) in d:
            yield "reads the record of job 2", setrun(st, 0, pc="look" if looks_first else "name")
        elif rn.pc == "name":
            named = (2,) if self.o.mutant == "names the parent" else self.sources
            for s, answer in put(st, ("J", 3), named):
                if s.flight == st.flight:  # not modelled: the name appears after the process has given up
                    done = looks_first or self.o.mutant == "blind deriving"
                    to = {"pc": "kept" if done else "look"} if answer == "mine" else {}
                    yield f"gives job 3 its name: {answer}", setrun(s, 0, **to)
        elif rn.pc == "look":
            source, what = self.sources[rn.n // 2], ("mark", "files")[rn.n % 2]
            good = ("D", source) not in d if what == "mark" else {("J", source), ("F", source)} <= d.keys()
            if not good:
                gone = st._replace(store=st.store - {(("J", 3), d.get(("J", 3)))})
                yield f"sees a deletion of job {source}, withdraws", setrun(gone, 0, pc="stop")
            else:
                last = rn.n + 1 == 2 * len(self.sources)
                to = ("name" if looks_first else "kept") if last else "look"
                yield f"looks for the {what} of job {source}", setrun(st, 0, pc=to, n=rn.n + 1)

    def delete(self, st, i, rn, d, jobs):
        derived = frozenset((source, key[1]) for key, named in d.items() if key[0] == "J" for source in named)
        looks = self.o.mutant != "blind deletion"
        if rn.pc == "idle":  # refused, as long as other jobs need the rows
            if all(("J", job) in d for job in jobs) and not any(s in jobs and j not in jobs for s, j in derived):
                yield f"deletion {jobs} begins", setrun(st, i, pc="mark" if self.o.mutant != "marks late" else "look")
        elif rn.pc == "mark":
            marked = st._replace(store=st.store | {(("D", jobs[rn.n]), 0)})
            last = rn.n + 1 == len(jobs)
            to = ("remove" if self.o.mutant == "marks late" or not looks else "look") if last else "mark"
            yield f"marks job {jobs[rn.n]}", setrun(marked, i, pc=to, n=0 if last else rn.n + 1, pend=rn.pend or ())
        elif rn.pc == "look":
            to = "mark" if self.o.mutant == "marks late" else "remove"
            yield f"deletion {jobs} looks for derived jobs", setrun(st, i, pc=to, inh=derived, pend=())
        elif rn.pc == "remove":
            yield self.removed(st, i, rn, d, jobs)
        elif rn.pc == "files":
            gone = st._replace(store=st.store - {(("F", jobs[rn.n]), 0)})
            yield f"removes the files of job {jobs[rn.n]}", setrun(gone, i, pc="unmark")
        elif rn.pc == "unmark":
            gone = st._replace(store=st.store - {(("D", jobs[rn.n]), 0)})
            last = rn.n + 1 == len(jobs)
            yield f"removes the mark of job {jobs[rn.n]}", setrun(gone, i, pc="over" if last else "remove", n=rn.n + 1)

    def removed(self, st, i, rn, d, jobs):
        job, seen = jobs[rn.n], rn.inh or ()
        if any(source == job and other not in rn.pend for source, other in seen):
            return f"job {job} has derived jobs, gives up", setrun(st, i, pc="unmark")
        gone = st._replace(store=st.store - {(("J", job), d[("J", job)])})
        return f"removes the record of job {job}", setrun(gone, i, pc="files", pend=(*rn.pend, job))

    def broken(self, st, d):
        needed = {(key, source) for key in "JF" for source in self.sources}
        if st.run[0].pc == "kept" and ("J", 3) in d and not needed <= d.keys():
            yield "I16"

    def read(self, st):
        return ()

    def late(self, st, val):
        return False

    def view(self, d):
        return None

    def stuck(self, st):
        return None


class OneCommand(Derived):
    """One deletion of both jobs."""

    commands = ((2, 1),)


class NoRowsOfTheParent(Derived):
    """Every group of job 2 runs again, so job 3 has rows of job 1 only, and job 2 may be deleted."""

    sources = (1,)


SCENARIOS = {
    "derived": (Derived, Opt()),
    "derived-one-command": (OneCommand, Opt()),
    "derived-no-rows": (NoRowsOfTheParent, Opt()),
    "derived!blind": (Derived, Opt(mutant="blind deriving")),  # does not look for marks
    "derived!looks-first": (OneCommand, Opt(mutant="looks first")),  # and then takes the name
    "derived!blind-deletion": (Derived, Opt(mutant="blind deletion")),  # does not look again after its marks
    "derived!marks-late": (OneCommand, Opt(mutant="marks late")),  # looks for derived jobs, and then marks
    "derived!names-parent": (NoRowsOfTheParent, Opt(mutant="names the parent")),  # instead of its sources
}
