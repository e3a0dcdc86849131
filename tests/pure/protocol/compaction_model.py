"""Compactions behind the complete end of a job: compactors, a reader of rows and a cleaner around the job's log.

Some of A, B and C are compactors, the others runners of the job (protocol_model.py). A compaction merges two neighbours
at a time, so it writes several records. Keys of the storage: ("L", k) the job's log, ("C", k) the compaction log,
("P", ...) parts; the last element of a part's key are its groups. A part of a compaction has the number of its claim.

By hand: python protocol_model.py --rules compaction [-g GROUPS] [-f FAULTS] [-t NAME]

I9  every prefix of the compaction log has each committed group in one current part; no reader gets a group twice
I10 each current part exists; a reader that misses a part finds a longer log
I11 no compact record of an older compaction follows a claim
I12 no wrong stop: where no step is left, the last compaction has merged everything
"""

from protocol_model import Log, Opt, groups_of, put, setrun

ME = "ABC"


def compact_of(record):
    """(removed parts, new part) of a compact record, else nothing."""
    return (record[2], record[3]) if record[0] == "compact" else ((), None)


def claims(records):
    return sum(r[0] == "claim" for r in records)


class CompactedLog(Log):
    """log/<k>.json, and behind its complete end compactions/<end>/<k>.json: claim or compact."""

    def compactions(self, d):
        out = []
        while ("C", len(out) + 1) in d:
            out.append(d["C", len(out) + 1])
        return out

    def complete(self, d):
        return any(r[-1] == "complete" for r in self.log(d))

    def current(self, log, compactions):
        """The current parts in their order; None: a record removes a part that is not current."""
        parts = [r[3] for r in log if r[0] == "commit"]
        for removed, new in map(compact_of, compactions):
            if new is None:
                continue
            if not removed or not set(removed) <= set(parts):
                return None
            parts = [new if p == removed[0] else p for p in parts if p not in removed[1:]]
        return parts

    def steps(self, st, i):
        if i not in self.o.compactors:
            yield from super().steps(st, i)
            return
        d, rn = dict(st.store), st.run[i]
        act = {"idle": self.start, "run": self.merge, "put": self.append, "remove": self.remove, "tidy": self.tidy}
        yield from act.get(rn.pc, lambda *_: ())(st, i, rn, d, self.compactions(d))

    def start(self, st, i, rn, d, there):  # it has read the job's log, which ends complete
        if not self.complete(d):
            return
        if rn.n < len(there):
            yield f"{ME[i]} gets compactions/{rn.n + 1}", setrun(st, i, n=rn.n + 1)
        if rn.n == len(there) or self.o.stale:
            early = tuple(self.current(self.log(d), ())) if self.o.mutant == "early plan" else None
            for s, a in put(st, ("C", rn.n + 1), ("claim", i)):
                to = {"pc": "run", "n": rn.n + 1, "inh": early} if a == "mine" else {}
                yield f"{ME[i]} put compactions/{rn.n + 1} claim: {a}", setrun(s, i, **to)

    def merge(self, st, i, rn, d, there):
        parts = self.current(self.log(d), there[: rn.n])
        if self.o.mutant == "early plan" and rn.seq == 0:
            parts = list(rn.inh)
        if parts is None:  # a mutant has spoilt the log
            return
        number = claims(there[: 1 + max(k for k, r in enumerate(there[: rn.n]) if r == ("claim", i))])
        if len(parts) < 2:
            yield f"{ME[i]} is through", setrun(st, i, pc="stop")
        for pair in {tuple(parts[:2]), tuple(parts[-2:])} if len(parts) > 1 else ():
            if any(p not in d for p in pair):
                continue
            new = ("P", number, "merged", i, rn.seq, pair[0][-1] + pair[1][-1])
            s = st._replace(store=st.store | {(new, 0)})
            if self.o.mutant == "early removal":
                s = s._replace(store=s.store - {(p, 0) for p in pair})
            yield f"{ME[i]} merges {pair}", setrun(s, i, pc="put", pend=("compact", i, pair, new))
        if rn.n < len(there):  # polls, or a part was missing
            yield self.fenced(st, i, there[rn.n], "polls,")
        elif any(p not in d for p in parts):
            yield f"{ME[i]} misses a part", setrun(st, i, pc="I10")

    def append(self, st, i, rn, d, there):
        for s, a in put(st, ("C", rn.n + 1), rn.pend):
            how = f"put compactions/{rn.n + 1} {rn.pend[2:]}: {a}"
            if a == "exists":
                yield self.fenced(s, i, there[rn.n], how)
            elif a == "mine":
                yield f"{ME[i]} {how}", setrun(s, i, pc="remove", n=rn.n + 1, pend=rn.pend[2], seq=rn.seq + 1)
            else:  # the same bytes are put again at the same place until the answer is known
                wrong = {"skips": {"n": rn.n + 1}, "gives up": {"pc": "tidy"}}
                yield f"{ME[i]} {how}", setrun(s, i, **wrong.get(self.o.mutant, {}))

    def fenced(self, st, i, rec, how):  # only claims of others can come here, while this one is the owner
        if self.o.mutant == "deaf":
            return f"{ME[i]} {how} ignores {rec}", setrun(st, i, n=st.run[i].n + 1)
        to = {"pc": "tidy"} if st.run[i].pc == "put" else {"pc": "stop"}
        return f"{ME[i]} {how} meets {rec}", setrun(st, i, **to)

    def remove(self, st, i, rn, d, there):
        store = st.store - {(rn.pend[0], 0)}
        to = {"pend": rn.pend[1:]} if rn.pend[1:] else {"pc": "run", "pend": None}
        yield f"{ME[i]} removes {rn.pend[0]}", setrun(st._replace(store=store), i, **to)

    def tidy(self, st, i, rn, d, there):
        s = st._replace(store=st.store - {(rn.pend[3], 0)})
        yield f"{ME[i]} removes its part {rn.pend[3]}", setrun(s, i, pc="stop", pend=None)

    def read(self, st):  # reads the logs in one step, because records never change; then part by part
        d = dict(st.store)
        now = (len(self.log(d)), len(self.compactions(d)) if self.complete(d) else 0)
        if not self.o.reader or st.reader[:1] == ("over",):
            return
        if not st.reader:
            yield "reader reads the logs", st._replace(reader=self.opened(d, now))
            return
        _, position, left, rows = st.reader
        if not left:
            want = sorted(groups_of({k: r[2] for k, r in enumerate(self.log(d)[: position[0]]) if r[0] == "commit"}))
            yield f"reader has {rows}", st._replace(reader=("over", "" if sorted(rows) == want else "I9"))
        elif left[0] in d:
            yield f"reader reads {left[0]}", st._replace(reader=("open", position, left[1:], rows + left[0][-1]))
        elif now == position:
            yield "reader misses a part, and the logs are the same", st._replace(reader=("over", "I10"))
        elif not rows:
            yield "reader misses a part, reads the logs again", st._replace(reader=self.opened(d, now))
        elif self.o.mutant == "union":
            _, position, left, _ = self.opened(d, now)
            yield "reader continues with the new parts", st._replace(reader=("open", position, left, rows))
        else:
            yield "reader misses a part after its first rows: an error", st._replace(reader=("over", ""))

    def opened(self, d, now):
        return "open", now, tuple(self.current(self.log(d)[: now[0]], self.compactions(d)[: now[1]]) or ()), ()

    def clean(self, st):  # lists parts, then reads each log (if stale, any prefix), then removes
        d, c = dict(st.store), st.clean
        if c == ():
            yield "clean lists parts", st._replace(clean=("listed", frozenset(k for k in d if k[0] == "P")))
        elif c[0] == "listed":
            log = self.log(d)
            for n in range(len(log) + 1) if self.o.stale else [len(log)]:
                yield f"clean reads log 1..{n}", st._replace(clean=("read", c[1], n))
        elif c[0] == "read":
            log, there = self.log(d)[: c[2]], self.compactions(d)
            ended = any(r[-1] == "complete" for r in log)
            for n in range(len(there) + 1) if self.o.stale and ended else [len(there) if ended else 0]:
                gone = frozenset(self.doomed(c[1], self.log(d), log, there[:n], ended))
                yield (
                    f"clean reads compactions 1..{n}, will remove {sorted(map(str, gone))}",
                    st._replace(clean=("doomed", gone)),
                )
        elif c[0] == "doomed":
            yield "clean removes", st._replace(clean=("done",), store=st.store - {(p, 0) for p in c[1]})

    def doomed(self, parts, whole, log, compactions, ended):
        current, last = self.current(log, compactions), claims(compactions)
        for p in parts:
            if p[2] == "merged":
                is_over = p[1] < last or self.o.mutant == "rash clean"
            else:
                is_over = ended or claims(whole[: p[2]]) < claims(log)
            if p not in current and is_over:
                yield p

    def lost(self, part, d):
        removed = {p for r in self.compactions(d) for p in compact_of(r)[0]}
        return part not in d and part not in removed

    def broken(self, st, d):
        yield from super().broken(st._replace(reader=()), d)
        # States and not labels, because another step may have led to the same state before.
        yield from (st.reader[1:] if st.reader[:1] == ("over",) and st.reader[1] else ())
        yield from (rn.pc for rn in st.run if rn.pc == "I10")
        log, there, owner = self.log(d), self.compactions(d), None
        if sum(k[0] == "C" for k in d) != len(there):
            yield "I2"
        for k, r in enumerate(there, start=1):
            parts = self.current(log, there[:k])
            if parts is None or sorted(g for p in parts for g in p[-1]) != groups_of(self.view(d)):
                yield "I9"
                return
            if r[0] == "compact" and r[1] != owner:
                yield "I11"
            owner = r[1] if r[0] == "claim" else owner
        if there and any(p not in d for p in parts):
            yield "I10"

    def stuck(self, st):
        d = dict(st.store)
        there = self.compactions(d)
        owner = [r[1] for r in there if r[0] == "claim"][-1:]
        if any(st.run[i].pc != "stop" for i in owner) or (owner and len(self.current(self.log(d), there) or ()) > 1):
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
    "compaction!early-removal": (CompactedLog, Opt(reader=True, compactors=TWO, mutant="early removal")),
    "compaction!deaf": (CompactedLog, Opt(compactors=TWO, mutant="deaf")),  # not fenced by a newer claim
    "compaction!rash-clean": (CompactedLog, Opt(cleaner=True, compactors=TWO, mutant="rash clean")),
    "compaction!union": (CompactedLog, Opt(reader=True, compactors=TWO, mutant="union")),  # reads old and new parts
    "compaction!early-plan": (CompactedLog, Opt(compactors=TWO, mutant="early plan")),  # plans before its claim
    "compaction!skips": (CompactedLog, Opt(compactors=TWO, mutant="skips")),  # puts again under the next number
    "compaction!gives-up": (CompactedLog, Opt(compactors=TWO, mutant="gives up")),  # removes a part, record unknown
}
