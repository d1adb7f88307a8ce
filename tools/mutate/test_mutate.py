#!/usr/bin/env python3
"""Checks in samples of a few lines which mutants places.py finds, that the changed text keeps its lines, in which order a
mutant meets the tests, which tests the baseline leaves out, and when a failed test counts.

    python3 tools/mutate/test_mutate.py
"""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/form"))

# pylint: disable=wrong-import-position
import build
import mutate
import places
import tests as test_runs


def found(body, kind, path="daemon/a.c"):
    """[(original, mutated)] of the mutants of @kind in a function with @body."""
    text = "static int f(struct a *x, int n)\n{\n" + body + "\n}\n"
    return [(p.original, p.mutated) for p in places.places_of(path, text) if p.kind == kind]


class Places(unittest.TestCase):
    def test_compare(self):
        self.assertEqual(found("return n < 3 && x->y == f(n, 2);", "compare"),
                         [("n < 3", "n <= 3"), ("x -> y == f ( n , 2 )", "x -> y != f ( n , 2 )")])
        self.assertEqual(found("for (int i = 0; i < n; i++)\n    g(i);", "compare"), [("i < n", "i <= n")])

    def test_logic(self):
        self.assertEqual(found("if (a && b && c)\n    g();", "logic")[0], ("a && b && c", "a || b && c"))

    def test_skipped_checks(self):
        self.assertEqual([m for m, _ in found("if (n < 0)\n    return fail(e, -EINVAL, \"no %d\", 7);", "skip")], ["n < 0"])
        self.assertEqual(found("if (n < 0)\n    return -EINVAL;", "always"), [])
        self.assertEqual(len(found("if (n < 0)\n    n = 0;", "always")), 1)

    def test_left_out(self):
        self.assertEqual([o for o, _ in found("g(n);\nif (n)\n    h(n);\n(void) close(n);", "call")], ["g ( n ) ;", "h ( n ) ;"])
        self.assertEqual([o for o, _ in found("(void) close(n);\nclosep(&n);\n", "release")], ["( void ) close ( n ) ;", "closep ( & n ) ;"])
        self.assertEqual([o for o, _ in found("int k = 2;\nx->n = 3;\nx->m++;\nreturn k;", "assign")], ["x -> n = 3 ;", "x -> m ++ ;"])
        self.assertEqual(found("if (n)\n    g(n);\nelse\n    h(n);", "call"), [("h ( n ) ;", "(left out)")])

    def test_constants(self):
        self.assertEqual(found("g(7, A_MAX);", "bound"), [("7", "7 - 1")])
        self.assertEqual([o for o, _ in found("return n > A_MAX;", "bound")], ["A_MAX"])
        self.assertEqual(found("return n > WAIT_MS;", "bound"), [])
        self.assertEqual(found("char b[sizeof(n)];\nassert(n < 9);\nstatic const int t[] = {5};", "bound"), [])

    def test_order(self):
        self.assertEqual(len(found("free(x->a);\nx->a = NULL;", "order")), 1)
        self.assertEqual(found("free(x->a);\nfree(x->b);", "order"), [])
        self.assertEqual(found("gpu_free(g, &x->a);\ngpu_free(g, &x->b);", "order"), [])
        self.assertEqual(len(found("table_unref(m, x->table);\nfree(x);", "order")), 1)
        self.assertEqual(found("x->a = 1;\nx->b = 2;", "order"), [])
        self.assertEqual(len(found("x->a = 1;\nx->b = 2;", "order", "daemon/store/journal.c")), 1)

    def test_errno(self):
        self.assertEqual(found("return fail(e, -ENOSPC, \"full\");", "errno"), [("ENOSPC", "ENOMEM")])

    def test_no_code(self):
        for kind in places.WEIGHTS:
            self.assertEqual(found("log_event(LOG_INFO, \"a\", \"n=%d\", n + 1);\nfail(e, r, \"%d\", n < 2);\n", kind),
                             [] if kind != "call" else [("fail ( e , r , \"%d\" , n < 2 ) ;", "(left out)")])

    def test_text_keeps_its_lines(self):
        text = "int f(int a)\n{\n    if (a <\n        3)\n        g(a);\n    return a;\n}\n"
        mutants = list(enumerate(places.places_of("daemon/a.c", text)))
        for number, place in mutants:
            changed = build.changed(text, [(number, place)], "mutant.h")
            self.assertIn(f"kvc_mutant({number})", changed)
            self.assertEqual(changed.split("\n")[2:].index("    return a;"), text.split("\n").index("    return a;"))


def test_of(source, name="t"):
    return test_runs.Test(name, ["/bin/" + name], {}, "/", source)


class Order(unittest.TestCase):
    def test_distance(self):
        for source, path, distance in (
                ("tests/unit/daemon/store/test_share.c", "daemon/store/share.c", 0),
                ("tests/e2e/test_share_more.c", "daemon/store/share.c", 0),
                ("tests/unit/daemon/store/test_shares.c", "daemon/store/share.c", 1),
                ("tests/unit/daemon/loop/test_ev.c", "daemon/store/share.c", 2),
                ("tests/unit/base/test_utf8.c", "daemon/store/share.c", 3),
                ("", "daemon/store/share.c", 3)):
            self.assertEqual(test_runs.distance(test_of(source), path), distance, (source, path))

    def campaign(self, seconds):
        """A campaign of one mutant, in daemon/a.c, that is executed by tests of that many @seconds."""
        options = type("Options", (), {"minutes": None, "jobs": 1, "now": ""})
        place = places.Place("daemon/a.c", "f", 1, "skip", 0, 1, "", "", "", "")
        baseline = {name: {"seconds": s, "reached": [1]} for name, s in seconds.items()}
        return mutate.Campaign("/nonexistent", [(1, place)], baseline, options), place

    def test_tests_of_the_file_first_then_the_most_noticed_per_second(self):
        campaign, place = self.campaign({"own": 9.0, "short": 1.0, "long": 8.0, "other": 0.5})
        by_name = {name: test_of(f"tests/{path}.c", name) for name, path in
                   (("own", "unit/daemon/test_a"), ("short", "unit/daemon/test_b"), ("long", "unit/daemon/test_c"),
                    ("other", "e2e/test_d"))}
        self.assertEqual(campaign.tests_for(1, place, by_name), ["own", "short", "other", "long"])
        for n in range(20):
            campaign.count({"met": ["short", "long"], "noticed": "long"} if n % 2 else {"met": ["short"], "noticed": None})
        self.assertEqual(campaign.tests_for(1, place, by_name), ["own", "long", "other", "short"])
        campaign.results["1"] = {"met": ["own", "other"]}
        self.assertEqual(campaign.tests_for(1, place, by_name), ["long", "short"])

    def test_mutants_of_this_call(self):
        campaign, place = self.campaign({"a": 1.0})
        self.assertEqual(campaign.of_now(), [(1, place)])
        campaign.options.now = "^alloc/"
        self.assertEqual(campaign.of_now(), [])

    def test_first_tests(self):
        campaign, _ = self.campaign({"a": 20.0, "b": 9.0, "c": 40.0})
        self.assertEqual(campaign.first_of(["a", "b", "c"], mutate.FIRST_TESTS_S), ["a", "b"])
        self.assertEqual(campaign.first_of(["c", "a"], mutate.FIRST_TESTS_S), ["c"])  # at least one
        campaign.results["1"] = {"met": ["a"]}
        self.assertEqual(campaign.first_of(["c"], mutate.FIRST_TESTS_S - campaign.seconds_of(1)), [])
        self.assertEqual(campaign.first_of(["b", "c"], float("inf")), ["b", "c"])


class Reach(unittest.TestCase):
    """Which tests start a program that has mutants."""

    def reach_of(self, kind_of_marked):
        """{name of a test: may_reach}, where of the targets a and b the file of b has the mark."""
        with tempfile.TemporaryDirectory() as folder:
            targets = []
            for name, kind, text in (("a", "executable", b"none"), ("b", kind_of_marked, b"x" + test_runs.MARK)):
                path = os.path.join(folder, name)
                with open(path, "wb") as file:
                    file.write(text)
                targets.append({"id": name, "type": kind, "filename": [path], "target_sources": []})
            for kind in ("static library", "executable"):
                targets.append({"id": kind, "type": kind, "filename": ["/nonexistent"], "target_sources": []})
            described = [{"name": depends, "cmd": ["sh"], "env": {}, "workdir": None, "suite": ["p:unit"], "depends": list(depends)}
                         for depends in ("a", "ab", "b")]
            answers = {"targets": targets, "tests": described}
            before, test_runs.introspect = test_runs.introspect, lambda _build, what: answers[what]
            try:
                return {t.name: t.may_reach for t in test_runs.tests_of(folder)}
            finally:
                test_runs.introspect = before

    def test_programs_with_mutants(self):
        self.assertEqual(self.reach_of("executable"), {"a": False, "ab": True, "b": True})

    def test_any_program_may_load_a_library(self):
        self.assertEqual(self.reach_of("shared library"), {"a": True, "ab": True, "b": True})

    def test_the_others_are_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            test = test_of("", "t")._replace(command=["/nonexistent"], may_reach=False)
            self.assertEqual(mutate.baseline_of(folder, [test], 1)["t"]["reached"], None)


class Judgement(unittest.TestCase):
    def judge(self, first, *later):
        """Whether a test is said to notice that gives the outcome @first, then those of @later: (status, line or seconds)."""
        def outcome(status, detail):
            return test_runs.Outcome(status, detail if status in ("late", "passed") else 1.0, 0.0, str(detail))
        runs = [outcome(*o) for o in later]
        before, test_runs.run = test_runs.run, lambda *_args, **_options: runs.pop(0)
        try:
            return mutate.is_noticed(test_of("t.c"), 10.0, 1, outcome(*first))
        finally:
            test_runs.run = before
            self.assertEqual(runs, [])

    def test_failures(self):
        self.assertTrue(self.judge(("failed", "a.c:1: x"), ("failed", "a.c:1: x")))
        self.assertFalse(self.judge(("failed", "a.c:1: x"), ("passed", 1.0)))
        self.assertTrue(self.judge(("failed", "a.c:1: x"), ("failed", "a.c:2: y"), ("passed", 1.0)))
        self.assertFalse(self.judge(("failed", "a.c:1: x"), ("failed", "a.c:2: y"), ("failed", "a.c:3: z")))

    def test_leaks_of_the_baseline(self):
        tests = [test_of("a.c", "a"), test_of("b.c", "b"), test_of("c.c", "c")]
        baseline = {"a": {"seconds": 1, "leaks": True}, "b": {"seconds": 1, "leaks": False}}
        self.assertEqual([t.env for t in mutate.as_measured(tests, baseline)], [{"LSAN_OPTIONS": "detect_leaks=0"}, {}, {}])

    def test_hanging(self):
        self.assertTrue(self.judge(("late", 10.0), ("passed", 1.0)))   # 3 * 1 + 5 s are less than its limit
        self.assertFalse(self.judge(("late", 10.0), ("failed", "a")))
        self.assertFalse(self.judge(("late", 10.0), ("passed", 9.0), ("passed", 11.0)))  # the machine is busy
        self.assertTrue(self.judge(("late", 10.0), ("passed", 9.0), ("late", 32.0)))


if __name__ == "__main__":
    unittest.main()
