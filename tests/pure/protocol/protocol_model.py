"""Explicit-state check of the commit protocol: breadth first over all interleavings, shortest traces.

docs/internals/storage.md has the rules and the invariants. The tests search small spaces. By hand, for larger ones:

  python protocol_model.py [-g GROUPS] [-f FAULTS]     every scenario: which invariants break, number of states
  python protocol_model.py -t NAME                     one scenario, with the shortest trace to each break

Storage: put_new is atomic and create-only. Its answer may be lost after the write was done, or the request may time
out and land at any later moment, even after its sender has stopped (`flight`). A GET may be stale (say 404), a listing
may lack a record. A pause is "others step first" and a crash is "never steps again": a search over all interleavings
contains both without a separate step. A restarted runner is the next runner. C starts later than A and B.

I1 valid commits never cover a group twice
I2 a commit that a reader has seen stays valid
I3 when the job is finished each group is covered exactly once, by commits whose parts exist
I4 what is finished stays as it is; nothing follows a complete end
I5 no group is started that was validly committed before its runner's claim
I6 nothing of a fenced or stopped runner becomes valid; an automatic claim never follows a cancel
I7 no wrong stop: where no step is left, the job is finished or cancelled
I8 a request for a runner does not undo a claim, a cancel or an end that its maker had not read
"""

import argparse
import importlib
import time
from collections import deque, namedtuple

St = namedtuple("St", "store flight run reader cancel clean faults")
Rn = namedtuple("Rn", "pc n inh seq pend")  # the log: n records read, but not those in inh
IDLE = Rn("idle", 0, None, 0, None)
Opt = namedtuple(
    "Opt",
    "stale reader cancel cleaner mutant compactors asks",
    defaults=(False, False, False, False, "", (), False),
)


def put(st, key, val):
    """Every outcome of put_new as (state, answer). 'exists' where one's own record is found is 'mine'."""
    d = dict(st.store)
    if key in d:
        yield st, "mine" if d[key] == val else "exists"
        return
    done = st._replace(store=st.store | {(key, val)})
    yield done, "mine"
    if st.faults:
        yield done._replace(faults=st.faults - 1), "unknown"
        yield st._replace(faults=st.faults - 1, flight=st.flight | {(key, val)}), "unknown"


def chunks(todo):
    """Runs of one or two groups; from four groups on only those at either end, to bound the search."""
    t = sorted(todo)
    every = [tuple(t[i : i + k]) for k in (1, 2) for i in range(len(t) - k + 1)]
    return every if len(t) < 4 else [tuple(t[:1]), tuple(t[:2]), tuple(t[-1:]), tuple(t[-2:])]


def setrun(st, i, **kw):
    return st._replace(run=(*st.run[:i], st.run[i]._replace(**kw), *st.run[i + 1 :]))


def groups_of(commits):
    return sorted(g for c in commits.values() for g in c)


def twice(commits):
    every = groups_of(commits)
    return len(every) != len(set(every))


class Log:
    """log/<k>.json: claim, commit, cancel or end; a writer creates record k+1 only when it has read 1..k."""

    def __init__(self, opt, groups):
        self.o, self.all = opt, range(groups)

    def initial(self):
        return frozenset()

    def log(self, d):
        out = []
        while ("L", len(out) + 1) in d:
            out.append(d["L", len(out) + 1])
        return out

    def steps(self, st, i):
        rn, log = st.run[i], self.log(dict(st.store))
        known = [r if rn.inh is None or k not in rn.inh else ("unread",) for k, r in enumerate(log[: rn.n])]
        yield from {"idle": self.claim, "run": self.work, "put": self.write}.get(rn.pc, lambda *_: ())(
            st, i, rn, log, known
        )

    def claim(self, st, i, rn, log, known):  # A and B start by themselves (a restarted pod), C is a person's resume
        me, marks = "ABC"[i], [r[0] for r in known if r[0] in ("claim", "cancel")]
        if i == 2 and not log:
            return
        if i == 2 and self.o.asks and not rn.seq:
            yield f"{me} reads log 1..{len(log)} and asks for a runner", setrun(st, i, n=len(log), seq=1 + len(log))
            return
        asked = max([rn.seq - 1, *(k for k, r in enumerate(known, 1) if rn.seq and r == ("claim", i))])
        if rn.seq and any(r[0] != "commit" for r in known[asked:]) and self.o.mutant != "blind resume":
            yield f"{me} sees that others came first, stops", setrun(st, i, pc="stop")
            return
        if rn.n < len(log):
            yield f"{me} gets log/{rn.n + 1}", setrun(st, i, n=rn.n + 1)
        if any(r[-1] == "complete" for r in known) or (marks[-1:] == ["cancel"] and i < 2):
            yield f"{me} sees the end or a cancel, stops", setrun(st, i, pc="stop")
        elif rn.n == len(log) or self.o.stale:
            at = len(log) + 1 if self.o.mutant == "unread claim" else rn.n + 1
            for s, a in put(st, ("L", at), ("claim", i)):
                to = {"pc": "run", "n": at, "inh": range(rn.n, at - 1) if at > rn.n + 1 else None}
                undoes = rn.seq and any(r[0] != "commit" for r in log[asked : at - 1])
                bad = " !I8" if undoes and a == "mine" else ""
                yield f"{me} put log/{at} claim: {a}{bad}", setrun(s, i, **(to if a == "mine" else {}))

    def work(self, st, i, rn, log, known):
        me, mine = "ABC"[i], max(k for k, r in enumerate(known) if r == ("claim", i))
        before = {g for r in log[:mine] if r[0] == "commit" for g in r[2]}
        todo = set(self.all) - {g for r in known if r[0] == "commit" for g in r[2]}
        stopped = ("cancel",) in known[mine:]
        for c in chunks(todo) if not stopped else ():
            part, bad = ("P", i, rn.n, c), " !I5" if before & set(c) else ""
            yield (
                f"{me} runs {c}, writes its part{bad}",
                setrun(st._replace(store=st.store | {(part, 0)}), i, pc="put", pend=("commit", i, c, part)),
            )
        if not todo or stopped:
            yield f"{me} is through", setrun(st, i, pc="put", pend=("end", i, "cancelled" if todo else "complete"))
        if rn.n < len(log):
            yield self.meet(st, i, log[rn.n], "polls,")

    def write(self, st, i, rn, log, known):
        for s, a in put(st, ("L", rn.n + 1), rn.pend):
            how = f"put log/{rn.n + 1} {rn.pend[0]} {rn.pend[2]}: {a}"
            if a == "exists":
                yield self.meet(s, i, log[rn.n], how)
            else:  # unknown: the same bytes are put again at the same place until the answer is known
                to = {"pc": "run" if rn.pend[0] == "commit" else "stop", "n": rn.n + 1, "pend": None}
                again = {"n": rn.n + 1} if self.o.mutant == "skip" else {}
                yield f"{'ABC'[i]} {how}", setrun(s, i, **(to if a == "mine" else again))

    def meet(self, st, i, rec, how):  # a record that is not the one I am writing; a cancel is only noted
        stop = rec[0] == "end" or (rec[0] == "claim" and self.o.mutant != "deaf")
        return f"{'ABC'[i]} {how} meets {rec}", setrun(st, i, n=st.run[i].n + 1, **({"pc": "stop"} if stop else {}))

    def read(self, st):
        n = st.reader[0] if st.reader else 0
        if self.o.reader and n < len(self.log(dict(st.store))):
            yield f"reader gets log/{n + 1}", st._replace(reader=(n + 1, self.log(dict(st.store))[n]))

    def cancels(self, st):  # reads the log, then puts; if the place is taken, it reads that record and decides again
        log, n = self.log(dict(st.store)), st.cancel[0] if st.cancel != (None,) else None
        if n is None or n < len(log):
            late = any(r[-1] == "complete" for r in log) and self.o.mutant != "blind cancel"
            yield (
                "cancel: too late" if late else "cancel reads the log",
                st._replace(cancel=() if late else (len(log),)),
            )
        if n is not None:
            for s, a in put(st, ("L", n + 1), ("cancel",)):
                yield f"cancel put log/{n + 1}: {a}", s._replace(cancel=() if a == "mine" else st.cancel)

    def clean(self, st):  # lists parts, then reads the log, then removes: each at its own moment
        d, c = dict(st.store), st.clean
        if c == ():
            yield "clean lists parts", st._replace(clean=("listed", frozenset(k for k in d if k[0] == "P")))
        elif c[0] == "listed":
            log = self.log(d)
            owner, ended = [r[1] for r in log if r[0] == "claim"][-1:], any(r[-1] == "complete" for r in log)
            gone = frozenset(
                p
                for p in c[1]
                if p not in {r[3] for r in log if r[0] == "commit"}
                and (ended or [p[1]] != owner or self.o.mutant == "rash clean")
            )
            yield f"clean read the log, will remove {sorted(gone)}", st._replace(clean=("doomed", gone))
        elif c[0] == "doomed":
            yield "clean removes", st._replace(clean=("done",), store=st.store - {(p, 0) for p in c[1]})

    def view(self, d):
        return {k: r[2] for k, r in enumerate(self.log(d)) if r[0] == "commit"}

    def over(self, d):
        return any(r[0] == "cancel" or r[-1] == "complete" for r in self.log(d))

    def stuck(self, st):  # where no step is left
        return None if self.over(dict(st.store)) else "I7"

    def late(self, st, val):  # a late request of a stopped runner that gets in
        return val[0] in ("commit", "end") and st.run[val[1]].pc == "stop"

    def lost(self, part, d):
        return part not in d

    def broken(self, st, d):
        log, owner, cancelled, ended = self.log(d), None, False, False
        if twice(self.view(d)):
            yield "I1"  # the view of every reader is a prefix of this
        if sum(k[0] == "L" for k in d) != len(log) or (st.reader and log[st.reader[0] - 1] != st.reader[1]):
            yield "I2"  # a hole, or a record that changed after it was read
        for r in log:
            if ended:
                yield "I4"
            if (r[0] == "claim" and cancelled and r[1] < 2) or (r[0] in ("commit", "end") and r[1] != owner):
                yield "I6"
            if (r[0] == "commit" and self.lost(r[3], d)) or (
                r[-1] == "complete" and groups_of(self.view(d)) != [*self.all]
            ):
                yield "I3"
            owner, cancelled = (r[1], False) if r[0] == "claim" else (owner, cancelled or r[0] == "cancel")
            ended = ended or r[-1] == "complete"


def explore(model, faults, cap, first=False):
    """Search at most about ``cap`` states; ``first``: only up to the first break."""
    o = model.o
    start = St(model.initial(), frozenset(), (IDLE,) * 3, (), (None,) if o.cancel else (), (), faults)
    seen, queue, found = {start: None}, deque([start]), {}
    while queue and len(seen) < cap and not (first and found):
        st = queue.popleft()
        nxt = [x for i in range(3) for x in model.steps(st, i)] + list(model.read(st))
        for key, val in st.flight:
            new = key not in dict(st.store)
            s = st._replace(flight=st.flight - {(key, val)}, store=st.store | {(key, val)} if new else st.store)
            bad = new and model.late(st, val) and model.view(dict(s.store)) != model.view(dict(st.store))
            nxt.append((f"late request lands: {key} {val}" + (" !I6" if bad else ""), s))
        nxt += model.clean(st) if o.cleaner else ()
        nxt += model.cancels(st) if st.cancel else ()
        for label, s in nxt:
            if s not in seen:
                seen[s] = st, label
                queue.append(s)
                for name in [*model.broken(s, dict(s.store)), *([label.partition("!")[2]] if "!" in label else [])]:
                    found.setdefault(name, s)
        if not nxt and (stuck := model.stuck(st)):
            found.setdefault(stuck, st)
    return seen, found, not queue


def trace(seen, st):
    out = []
    while seen[st]:
        st, label = seen[st]
        out.append(label)
    return out[::-1]


SCENARIOS = {
    "log": (Log, Opt(reader=True)),
    "log-stale": (Log, Opt(stale=True)),
    "log-cancel": (Log, Opt(stale=True, cancel=True)),
    "log-asks": (Log, Opt(cancel=True, asks=True)),
    "log-clean": (Log, Opt(cleaner=True)),
    "log-all": (Log, Opt(stale=True, cancel=True, cleaner=True)),
    "log!skip": (Log, Opt(mutant="skip")),  # a put without an answer is repeated under the next number
    "log!deaf": (Log, Opt(mutant="deaf")),  # a runner that meets a claim continues
    "log!unread-claim": (Log, Opt(stale=True, mutant="unread claim")),  # a claim jumps to the end unread
    "log!blind-cancel": (Log, Opt(cancel=True, mutant="blind cancel")),  # cancels without looking for an end
    "log!blind-resume": (Log, Opt(cancel=True, asks=True, mutant="blind resume")),  # ignores a cancel after its request
    "log!rash-clean": (Log, Opt(cleaner=True, mutant="rash clean")),  # removes what the live attempt has not named yet
}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-t", metavar="NAME")
    ap.add_argument("-g", type=int, default=2, help="groups")
    ap.add_argument("-f", type=int, default=1, help="lost or late answers")
    ap.add_argument("-c", type=int, default=3_000_000, help="most states")
    ap.add_argument("--rules", choices=["log", "compaction", "deletion", "derived"], default="log")
    a = ap.parse_args()
    modules = {
        "log": __name__,
        "compaction": "compaction_model",
        "deletion": "deletion_model",
        "derived": "derived_model",
    }
    table = importlib.import_module(modules[a.rules]).SCENARIOS
    for name in [a.t] if a.t else table:
        kind, opt = table[name]
        start = time.time()
        seen, found, whole = explore(kind(opt, a.g), a.f, a.c)
        print(
            f"{name:18} g={a.g} f={a.f} {len(seen):9,} states{'' if whole else ' (cut off)'} "
            f"{time.time() - start:4.0f} s  {'BREAKS ' + ' '.join(sorted(found)) if found else 'holds'}",
            flush=True,
        )
        for what in sorted(found) if a.t else ():
            print(f"  {what}:", *trace(seen, found[what]), sep="\n    ")


if __name__ == "__main__":
    main()
