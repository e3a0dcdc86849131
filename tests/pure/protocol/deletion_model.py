"""Deletion and reuse of a name: two jobs, three runners of which one submits the second job, and a deleter.

A and B run the job that has the name when they start; at first it is job 1. C submits job 2 under the same name, and
runs it. The deleter takes all runners that it knows for dead. Keys of the storage: ("J",) the id of the job that has
the name, ("F", id) its other files, ("D", id) the mark of its deletion, ("L", id, k) its log, ("P", id, ...) its parts.

By hand: python protocol_model.py --rules deletion [-g GROUPS] [-f FAULTS] [-t NAME]

I1, I3, I6 as in protocol_model.py, for the job that has the name
I13 each record of the job that has the name is by a runner of this job
I14 the job that has the name is whole, unless it is marked, or its submitter has not yet looked for a mark
I15 no deletion removes a job that a runner has begun to run after a claim that the deleter had not read
"""

from protocol_model import Log, Opt, chunks, groups_of, put, setrun, twice

ME = "ABC"
LOOKS = ("marked?", "named?")


class DeletedLog(Log):
    """Rn.seq is the id of the job that an actor runs, and Rn.inh the records that it has read."""

    def initial(self):
        return frozenset({(("J",), 1), (("F", 1), 0)})

    def folder(self, job):
        return 0 if self.o.mutant == "no ids" else job

    def log_of(self, d, job):
        out = []
        while ("L", self.folder(job), len(out) + 1) in d:
            out.append(d["L", self.folder(job), len(out) + 1])
        return tuple(out)

    def steps(self, st, i):
        act = {
            "idle": self.begin,
            "files": self.store_files,
            "name": self.take_name,
            "claim": self.claim_job,
            "run": self.work_on,
            "put": self.write_record,
            "whole?": self.look_back,
            **dict.fromkeys(LOOKS, self.look),
        }
        yield from act.get(st.run[i].pc, lambda *_: ())(st, i, st.run[i], dict(st.store))

    def begin(self, st, i, rn, d):
        if i == 2:
            yield "C begins to submit job 2", setrun(st, i, pc="files", seq=2, inh=())
        elif ("J",) in d:
            yield f"{ME[i]} reads the name: job {d['J',]}", setrun(st, i, pc="claim", seq=d["J",], inh=())

    def store_files(self, st, i, rn, d):
        yield "C stores the files of job 2", setrun(st._replace(store=st.store | {(("F", 2), 0)}), i, pc="name")

    def take_name(self, st, i, rn, d):
        for s, a in put(st, ("J",), 2):
            if s.flight != st.flight:
                continue  # not modelled: this leaves a job without files, which starts nothing and can be deleted
            if a == "exists":
                yield "C finds the name taken, stops", setrun(s, i, pc="stop")
            to = "claim" if self.o.mutant == "blind submit" else self.looks[0]
            yield f"C gives the name to job 2: {a}", setrun(s, i, **({"pc": to} if a == "mine" else {}))

    @property
    def looks(self):
        return LOOKS[::-1] if self.o.mutant == "looks for the mark last" else LOOKS

    def look(self, st, i, rn, d):  # after a submit, and after a claim
        good = ("D", rn.seq) not in d if rn.pc == "marked?" else d.get(("J",)) == rn.seq and ("F", rn.seq) in d
        claimed = ("claim", i) in rn.inh
        if not good:  # a submitter takes the name away from its job
            store = st.store if claimed else st.store - {(("J",), 2)}
            yield f"{ME[i]} {rn.pc} sees a deletion, stops", setrun(st._replace(store=store), i, pc="stop")
            return
        to = self.looks[1] if rn.pc == self.looks[0] else "run" if claimed else "claim"
        yield f"{ME[i]} {rn.pc} sees no deletion", setrun(st, i, pc=to)

    def claim_job(self, st, i, rn, d):
        log = self.log_of(d, rn.seq)
        if len(log) > len(rn.inh):
            yield f"{ME[i]} reads the log", setrun(st, i, inh=log)
        elif any(r[-1] == "complete" for r in rn.inh):
            yield f"{ME[i]} sees the end, stops", setrun(st, i, pc="stop")
        for s, a in put(st, ("L", self.folder(rn.seq), len(rn.inh) + 1), ("claim", i)):
            to = "run" if self.o.mutant == "blind claim" else self.looks[0]
            mine = {"pc": to, "inh": (*rn.inh, ("claim", i))} if a == "mine" else {}
            yield f"{ME[i]} claims job {rn.seq} in record {len(rn.inh) + 1}: {a}", setrun(s, i, **mine)

    def work_on(self, st, i, rn, d):
        todo = set(self.all) - {g for r in rn.inh if r[0] == "commit" for g in r[2]}
        for c in chunks(todo):
            part = ("P", self.folder(rn.seq), i, len(rn.inh), c)
            s = st._replace(store=st.store | {(part, 0)})
            yield f"{ME[i]} runs {c} of job {rn.seq}", setrun(s, i, pc="put", pend=("commit", i, c, part))
        if not todo:
            yield f"{ME[i]} is through", setrun(st, i, pc="put", pend=("end", i, "complete"))
        yield from self.met(st, i, rn, d, "polls,")

    def write_record(self, st, i, rn, d):
        k = len(rn.inh) + 1
        for s, a in put(st, ("L", self.folder(rn.seq), k), rn.pend):
            if a == "exists":
                yield from self.met(s, i, rn, d, f"puts record {k},")
            else:
                mine = {"pc": "whole?", "inh": (*rn.inh, rn.pend), "pend": None} if a == "mine" else {}
                yield f"{ME[i]} puts {rn.pend[0]} in record {k} of job {rn.seq}: {a}", setrun(s, i, **mine)

    def look_back(self, st, i, rn, d):
        gone = ("L", self.folder(rn.seq), len(rn.inh) - 1) not in d
        to = "stop" if gone or rn.inh[-1][0] == "end" else "run"
        yield f"{ME[i]} {'misses' if gone else 'sees'} the record before", setrun(st, i, pc=to)

    def met(self, st, i, rn, d, how):
        log = self.log_of(d, rn.seq)
        if len(log) > len(rn.inh):
            rec = log[len(rn.inh)]
            stop = {"pc": "stop"} if rec[0] in ("claim", "end") else {}
            yield f"{ME[i]} {how} meets {rec}", setrun(st, i, inh=(*rn.inh, rec), **stop)

    def clean(self, st):  # the deleter: each look and each change at its own moment
        d, c = dict(st.store), st.clean or ("begin",)
        if c[0] == "begin":
            name = d.get(("J",))
            jobs = frozenset(k[1] for k in d if k[0] == "F")  # others than that of the name: of a killed submit
            at = len(self.log_of(d, name)) if name else 0
            yield f"deleter reads the name ({name}) and the log 1..{at}", st._replace(clean=("mark", name, at, jobs))
            return
        what, name, at, jobs = c
        marks, files = {(("D", job), 0) for job in jobs}, self.files_of(st, jobs)
        order = ["mark", "look", "unname", "files", "unmark", "over"]
        if self.o.mutant == "early unmark":
            order = ["mark", "look", "unname", "unmark", "files", "over"]
        after = ("", *c[1:])
        if what != "over":
            after = (order[order.index(what) + 1], *c[1:])
        if what == "mark":
            yield f"deleter marks {sorted(jobs)}", st._replace(store=st.store | marks, clean=after)
        elif what == "look":
            claimed = any(r[0] == "claim" for r in self.log_of(d, name)[at:]) if name else False
            if (d.get(("J",)) != name or claimed) and self.o.mutant != "blind deletion":
                yield "deleter sees a change, gives up", st._replace(store=st.store - marks, clean=("over", *c[1:]))
            else:
                yield "deleter sees no change", st._replace(clean=after)
        elif what == "unname":
            yield "deleter removes the name", st._replace(store=st.store - {(("J",), name)}, clean=after)
        elif what == "files":
            yield "deleter removes the files", st._replace(store=st.store - files, clean=after)
        elif what == "unmark":
            yield "deleter removes the marks", st._replace(store=st.store - marks, clean=after)

    def files_of(self, st, jobs):
        folders = {self.folder(job) for job in jobs}
        return {(k, v) for k, v in st.store if (k[0] == "F" and k[1] in jobs) or (k[0] in "LP" and k[1] in folders)}

    def view(self, d):
        log = self.log_of(d, d["J",]) if ("J",) in d else ()
        return {k: r[2] for k, r in enumerate(log) if r[0] == "commit"}

    def stuck(self, st):
        return None

    def broken(self, st, d):
        if self.removed_under_a_runner(st, d):
            yield "I15"
        if ("J",) in d:
            log = self.log_of(d, d["J",])
            yield from self.foreign(st, d["J",], log)
            yield from self.damaged(st, d, d["J",], log)

    def removed_under_a_runner(self, st, d):
        if st.clean[:1] not in (("files",), ("unmark",), ("over",)) or d.get(("J",)) == st.clean[1]:
            return False
        _, job, at, _ = st.clean
        runs = [rn.inh for rn in st.run if rn.seq == job and rn.pc in ("run", "put")]
        return any(r[0] == "claim" for read in runs for r in read[at:])

    def foreign(self, st, job, log):
        owner = None
        for r in log:
            owner = r[1] if r[0] == "claim" else owner
            if st.run[r[1]].seq != job:
                yield "I13"
            if r[1] != owner:
                yield "I6"

    def damaged(self, st, d, job, log):
        if twice(self.view(d)):
            yield "I1"
        if any(r[-1] == "complete" for r in log) and groups_of(self.view(d)) != [*self.all]:
            yield "I3"
        submits = any(rn.seq == job and rn.pc in ("name", *LOOKS) and not rn.inh for rn in st.run)
        if ("D", job) in d or submits:
            return
        if ("F", job) not in d or sum(k[0] == "L" and k[1] == self.folder(job) for k in d) != len(log):
            yield "I14"
        if any(r[0] == "commit" and r[3] not in d for r in log):
            yield "I3"


SCENARIOS = {
    "deletion": (DeletedLog, Opt(cleaner=True)),
    "deletion!no-ids": (DeletedLog, Opt(cleaner=True, mutant="no ids")),  # log and parts only have the name
    "deletion!blind-submit": (DeletedLog, Opt(cleaner=True, mutant="blind submit")),  # does not look for a mark
    "deletion!blind-claim": (DeletedLog, Opt(cleaner=True, mutant="blind claim")),
    "deletion!blind-deletion": (DeletedLog, Opt(cleaner=True, mutant="blind deletion")),  # does not look for a claim
    "deletion!mark-last": (DeletedLog, Opt(cleaner=True, mutant="looks for the mark last")),  # after the other files
    "deletion!early-unmark": (DeletedLog, Opt(cleaner=True, mutant="early unmark")),  # before the other files
}
