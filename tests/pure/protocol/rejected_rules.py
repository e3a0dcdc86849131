"""Attempts and commits in separate folders: the rule as written and its repairs, all rejected.

By hand: python protocol_model.py --rules rejected [-t NAME]

attempts/<n>.json (A, n) -> (runner, inherited)   commits/<n>-<seq>.json (C, n, seq) -> (runner, groups)   finished (F,)
rule    newest: a commit of an older attempt counts if its groups lie in the newest claim's ranges
        chain: ... in the ranges of every later claim        hwm: its seq is at or under the newest claim's mark for it
finish  bare: finished.json says only "done"                named: it names the commits that count, and overrides claims
rename  a put without an answer is repeated under the next seq instead of being read back
order   which of claims and commits is read first, by reader and by claimant;   naive: a reader keeps unknown attempts
"""

from protocol_model import Opt, chunks, groups_of, put, setrun, twice


class Claims:
    def __init__(self, opt, groups):
        self.o, self.all = opt, frozenset(range(groups))

    def initial(self):
        return frozenset()

    def valid(self, d, upto=99):
        inh = {k[1]: v[1] for k, v in d.items() if k[0] == "A" and k[1] <= upto}
        top, out = max(inh, default=0), {}
        for k, v in d.items():
            if k[0] != "C" or (k[1] > top and not self.o.naive):
                continue
            later = [b for b in inh if b > k[1]]
            if self.o.rule == "newest":
                ok = not later or set(v[1]) <= inh[top]
            elif self.o.rule == "chain":
                ok = all(set(v[1]) <= inh[b] for b in later)
            else:
                ok = not later or k[2] <= inh[top][k[1] - 1]
            if ok:
                out[k[1:]] = v[1]
        return out

    def inherit(self, d, m):
        v = self.valid(d, m)
        if self.o.rule != "hwm":
            return frozenset(g for c in v.values() for g in c)
        return tuple(max([s for a, s in v if a == b], default=0) for b in range(1, m + 1))

    def counted(self, d, rn):  # the commits that this runner believes to count
        own = {k[1:]: v[1] for k, v in d.items() if k[:2] == ("C", rn.n) and k[2] <= rn.seq}
        if self.o.rule == "hwm":
            return own | {k[1:]: v[1] for k, v in d.items() if k[0] == "C" and k[1] < rn.n and k[2] <= rn.inh[k[1] - 1]}
        return own | {c: g for c, g in self.valid(d, rn.n).items() if c[0] < rn.n}

    def lists(self, d):  # whole, or (stale) without one of its commits
        yield d
        if self.o.stale:
            yield from ({k: v for k, v in d.items() if k != c} for c in d if c[0] == "C")

    def steps(self, st, i):  # noqa: C901
        d, rn = dict(st.store), st.run[i]
        me, m = "ABC"[i], sum(k[0] == "A" for k in d)
        if rn.pc == "idle" and (i < 2 or m):
            if ("F",) in d:
                yield f"{me} sees finished, stops", setrun(st, i, pc="stop")
            elif self.o.order == "claims-first":
                yield f"{me} reads claims 1..{m}", setrun(st, i, pc="listed", n=m)
            else:  # commits are judged by the claims known now, the attempt's number is taken later
                for e in self.lists(d):
                    yield f"{me} lists commits", setrun(st, i, pc="claim", n=0, inh=self.inherit(e, m))
        elif rn.pc == "listed":
            for e in self.lists(d):
                yield f"{me} lists commits", setrun(st, i, pc="claim", n=rn.n + 1, inh=self.inherit(e, rn.n))
        elif rn.pc == "claim":
            n = rn.n or m + 1
            inh = rn.inh + (0,) * (n - 1 - len(rn.inh)) if self.o.rule == "hwm" else rn.inh
            for s, a in put(st, ("A", n), (i, inh)):
                to = {"pc": "run", "n": n, "inh": inh} if a == "mine" else {"pc": "idle"} if a == "exists" else {"n": n}
                yield f"{me} put attempts/{n} inherits {tuple(inh)}: {a}", setrun(s, i, **to)
        elif rn.pc == "run":
            done = self.counted(d, rn)
            todo = self.all - set(groups_of(done)) - (rn.inh if self.o.rule != "hwm" else set())
            for c in chunks(todo):
                bad = m == rn.n and set(c) & set(groups_of(self.valid(d)))
                yield f"{me} runs {c}" + (" !I5" if bad else ""), setrun(st, i, pc="put", pend=c, seq=rn.seq + 1)
            if not todo:
                for s, a in put(st, ("F",), (i, rn.n, frozenset(done))):
                    to = {} if a == "unknown" else {"pc": "stop"}
                    yield f"{me} put finished.json of attempt {rn.n}: {a}", setrun(s, i, **to)
        elif rn.pc == "put":
            for s, a in put(st, ("C", rn.n, rn.seq), (i, rn.pend)):
                again = {"seq": rn.seq + 1} if self.o.rename else {}
                yield (
                    f"{me} put commits/{rn.n}-{rn.seq} {rn.pend}: {a}",
                    setrun(s, i, **(again if a == "unknown" else {"pc": "run", "pend": None})),
                )

    def read(self, st):  # two reads, each at its own moment
        if not self.o.reader:
            return
        first = "A" if self.o.order == "claims-first" else "C"
        if st.reader == ():
            kept = frozenset(x for x in st.store if x[0][0] == first)
            yield f"reader reads {first}", st._replace(reader=("half", kept))
        elif st.reader[0] == "half":
            d = dict(st.reader[1] | {x for x in st.store if x[0][0] != first})
            view = frozenset(self.view(d).items())
            yield f"reader reads the rest, sees {sorted(view)}", st._replace(reader=("saw", view, ("F",) in d))

    def view(self, d):
        if ("F",) in d and self.o.finish == "named":
            return {c: d["C", *c][1] for c in d["F",][2] if ("C", *c) in d}
        return self.valid(d)

    def final(self, d):
        return frozenset(self.view(d).items()) if ("F",) in d else None

    def broken(self, st, d):
        now = self.view(d)
        if twice(now):
            yield "I1"
        if st.reader[:1] == ("saw",):
            if twice(dict(st.reader[1])):
                yield "I1r"
            if any(now.get(c) != g for c, g in st.reader[1]):
                yield "I2f" if st.reader[2] else "I2"
        if ("F",) in d:
            if groups_of(now) != sorted(self.all) or any(("D", c) in d for c in now):
                yield "I3"
            if st.final is not None and st.final != frozenset(now.items()):
                yield "I4"

    def clean(self, st):  # removes the parts of commits that the rule calls void
        d = dict(st.store)
        for k in d:
            if k[0] == "C" and k[1:] not in self.view(d) and ("D", k[1:]) not in d:
                yield f"clean removes parts of void {k[1]}-{k[2]}", st._replace(store=st.store | {(("D", k[1:]), 0)})

    def over(self, d):
        return ("F",) in d

    def stuck(self, st):
        return None if self.over(dict(st.store)) else "I7"

    def late(self, st, val):
        return len(val) == 2 and st.run[val[0]].pc == "stop"


SCENARIOS = {
    name: (Claims, Opt(reader="clean" not in name, **kw))
    for name, kw in {
        "as-written": {},
        "as-written-order": {"order": "commits-first"},
        "as-written-naive": {"naive": True},
        "as-written-rename": {"rename": True},
        "as-written-stale": {"stale": True},
        "newest-named": {"finish": "named"},
        "chain-bare": {"rule": "chain"},
        "chain-named": {"rule": "chain", "finish": "named"},
        "chain-rename": {"rule": "chain", "finish": "named", "rename": True},
        "hwm-bare": {"rule": "hwm"},
        "hwm-named": {"rule": "hwm", "finish": "named"},
        "hwm-order": {"rule": "hwm", "finish": "named", "order": "commits-first"},
        "hwm-naive": {"rule": "hwm", "finish": "named", "naive": True},
        "hwm-rename": {"rule": "hwm", "finish": "named", "rename": True},
        "hwm-named-clean": {"rule": "hwm", "finish": "named", "cleaner": True},
    }.items()
}
