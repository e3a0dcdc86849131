"""Compactions behind the complete end of a job: compactors, a reader of rows and a cleaner around the job's log.

Some of A, B and C are compactors, the others runners of the job (protocol_model.py). A compactor writes a part for each
two neighbours, and then the one record ("C", 1). Keys of the storage: ("L", k) the job's log, ("P", ...) parts, whose
last element are their groups. Part ("P", "merged", i, seq, groups) is of compactor i.

By hand: python protocol_model.py --rules compaction [-g GROUPS] [-f FAULTS] [-t NAME]

I9  with and without the record each committed group is in one current part; no reader gets a group twice
I10 each current part exists; a reader that misses a part finds the record
I12 where no step is left, every compactor has stopped, and the record exists
"""

from protocol_model import Log, Opt, groups_of, put, setrun

ME = "ABC"
RECORD = ("C", 1)


def claims(records):
    return sum(r[0] == "claim" for r in records)


class CompactedLog(Log):
    """log/<k>.json, and behind its complete end compacted.json: the merges, as (replaced parts, new part)."""

    def complete(self, d):
        return any(r[-1] == "complete" for r in self.log(d))

    def current(self, log, record):
        """The current parts in their order; None: the record replaces a part that is not current."""
        parts = [r[3] for r in log if r[0] == "commit"]
        for removed, new in record[2] if record else ():
            if not removed or not set(removed) <= set(parts):
                return None
            parts = [new if p == removed[0] else p for p in parts if p not in removed[1:]]
        return parts

    def steps(self, st, i):
        if i not in self.o.compactors:
            yield from super().steps(st, i)
            return
        act = {"idle": self.start, "merge": self.merge, "put": self.finish, "tidy": self.tidy}
        yield from act.get(st.run[i].pc, lambda *_: ())(st, i, st.run[i], dict(st.store))

    def start(self, st, i, rn, d):  # it has read the job's log, which ends complete, and looks for the record
        if not self.complete(d):
            return
        if RECORD in d:
            yield f"{ME[i]} finds the record, stops", setrun(st, i, pc="stop")
        if RECORD not in d or self.o.stale:
            yield f"{ME[i]} finds no record", setrun(st, i, pc="merge", pend=())

    def merge(self, st, i, rn, d):
        parts = self.current(self.log(d), None)
        pair = tuple(parts[2 * rn.seq : 2 * rn.seq + 2])
        if len(pair) < 2:
            yield f"{ME[i]} has written its parts", setrun(st, i, pc="put")
        elif any(p not in d for p in pair):  # `clean` has removed them: another compactor has written the record
            yield f"{ME[i]} misses a part", setrun(st, i, pc="tidy" if RECORD in d else "I10")
        else:
            new = ("P", "merged", i, rn.seq, pair[0][-1] + pair[1][-1])
            s = st._replace(store=st.store | {(new, 0)})
            if self.o.mutant == "early removal":
                s = s._replace(store=s.store - {(p, 0) for p in pair})
            yield f"{ME[i]} merges {pair}", setrun(s, i, seq=rn.seq + 1, pend=(*rn.pend, (pair, new)))

    def finish(self, st, i, rn, d):
        record = ("compacted", i, rn.pend)
        if self.o.mutant == "overwrites":
            store = frozenset((k, v) for k, v in st.store if k != RECORD) | {(RECORD, record)}
            yield f"{ME[i]} writes the record", setrun(st._replace(store=store), i, pc="stop")
            return
        for s, a in put(st, RECORD, record):
            # The same bytes are put again until the answer is known.
            wrong = {"pc": "tidy"} if self.o.mutant == "gives up" else {}
            to = {"mine": {"pc": "stop"}, "exists": {"pc": "tidy"}}.get(a, wrong)
            yield f"{ME[i]} puts the record: {a}", setrun(s, i, **to)

    def tidy(self, st, i, rn, d):
        for _, new in rn.pend[:1]:
            s = st._replace(store=st.store - {(new, 0)})
            yield f"{ME[i]} removes its part {new}", setrun(s, i, pend=rn.pend[1:])
        if not rn.pend:
            yield f"{ME[i]} stops", setrun(st, i, pc="stop")

    def read(self, st):  # reads the log and the record in one step, because they never change; then part by part
        d = dict(st.store)
        if not self.o.reader or st.reader[:1] == ("over",):
            return
        if not st.reader:
            yield "reader reads the log", st._replace(reader=self.opened(d, d.get(RECORD)))
            if self.o.stale and RECORD in d:
                yield "reader reads the log, and misses the record", st._replace(reader=self.opened(d, None))
            return
        _, position, left, rows = st.reader
        if not left:
            want = sorted(groups_of({k: r[2] for k, r in enumerate(self.log(d)[: position[0]]) if r[0] == "commit"}))
            yield f"reader has {rows}", st._replace(reader=("over", "" if sorted(rows) == want else "I9"))
        elif left[0] in d:
            yield f"reader reads {left[0]}", st._replace(reader=("open", position, left[1:], rows + left[0][-1]))
        elif position[1] or RECORD not in d:
            yield "reader misses a part, and there is nothing new", st._replace(reader=("over", "I10"))
        else:
            opened = self.opened(d, d[RECORD])
            if self.o.mutant == "union":
                opened = (*opened[:3], rows)
            yield "reader misses a part, reads again from the start", st._replace(reader=opened)

    def opened(self, d, record):
        log, record = self.log(d), record if self.complete(d) else None
        return "open", (len(log), record is not None), tuple(self.current(log, record) or ()), ()

    def clean(self, st):  # lists parts, then reads the log (if stale, any prefix), then the record, then removes
        d, c = dict(st.store), st.clean
        if c == ():
            yield "clean lists parts", st._replace(clean=("listed", frozenset(k for k in d if k[0] == "P")))
        elif c[0] == "listed":
            log = self.log(d)
            for n in range(len(log) + 1) if self.o.stale else [len(log)]:
                yield f"clean reads log 1..{n}", st._replace(clean=("read", c[1], n))
        elif c[0] == "read":
            log = self.log(d)[: c[2]]
            ended = any(r[-1] == "complete" for r in log)
            for record in {d.get(RECORD), *([None] if self.o.stale else [])} if ended else [None]:
                gone = frozenset(self.doomed(c[1], self.log(d), log, record, ended))
                yield f"clean will remove {sorted(map(str, gone))}", st._replace(clean=("doomed", gone))
        elif c[0] == "doomed":
            yield "clean removes", st._replace(clean=("done",), store=st.store - {(p, 0) for p in c[1]})

    def doomed(self, parts, whole, log, record, ended):
        current = self.current(log, record) or ()
        for p in parts:
            if p[1] == "merged":
                is_over = record is not None or self.o.mutant == "rash clean"
            else:
                is_over = ended or claims(whole[: p[2]]) < claims(log)
            if p not in current and is_over:
                yield p

    def lost(self, part, d):
        record = d.get(RECORD)
        return part not in d and part not in {p for removed, _ in (record[2] if record else ()) for p in removed}

    def broken(self, st, d):
        yield from super().broken(st._replace(reader=()), d)
        # States and not labels, because another step may have led to the same state before.
        yield from (st.reader[1:] if st.reader[:1] == ("over",) and st.reader[1] else ())
        yield from (rn.pc for rn in st.run if rn.pc == "I10")
        parts = self.current(self.log(d), d.get(RECORD))
        if parts is None or sorted(g for p in parts for g in p[-1]) != groups_of(self.view(d)):
            yield "I9"
        elif any(p not in d for p in parts):
            yield "I10"

    def stuck(self, st):
        d = dict(st.store)
        if self.complete(d) and (RECORD not in d or any(st.run[i].pc != "stop" for i in self.o.compactors)):
            return "I12"
        return super().stuck(st)


TWO = (1, 2)
SCENARIOS = {
    "compaction": (CompactedLog, Opt(compactors=TWO)),
    "compaction-reader": (CompactedLog, Opt(reader=True, compactors=TWO)),
    "compaction-clean": (CompactedLog, Opt(cleaner=True, compactors=TWO)),
    "compaction-stale": (CompactedLog, Opt(stale=True, cleaner=True, compactors=TWO)),
    "compaction-runners": (CompactedLog, Opt(reader=True, cleaner=True, compactors=(2,))),  # A, B run the job
    "compaction-all": (CompactedLog, Opt(stale=True, reader=True, cleaner=True, compactors=TWO)),
    "compaction!early-removal": (CompactedLog, Opt(compactors=TWO, mutant="early removal")),
    "compaction!rash-clean": (CompactedLog, Opt(cleaner=True, compactors=TWO, mutant="rash clean")),
    "compaction!union": (CompactedLog, Opt(reader=True, cleaner=True, compactors=TWO, mutant="union")),
    "compaction!overwrites": (CompactedLog, Opt(cleaner=True, compactors=TWO, mutant="overwrites")),
    "compaction!gives-up": (CompactedLog, Opt(compactors=TWO, mutant="gives up")),  # removes its parts, record unknown
}
