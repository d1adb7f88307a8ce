#!/usr/bin/env python3
"""Checks in samples of a few lines that each script of this folder has its findings, and no others.

    python3 tests/form/test_form.py
"""
import shutil
import tempfile
import unittest

import budget
import circles
import includes
import names
import prose
import shape
import source


def file(path, text):
    return source.Source(path, text)


class Reading(unittest.TestCase):
    def test_functions(self):
        read = file("alloc/a.c", '__attribute__((format(printf, 1, 2)))\nstatic int a_log(const char *f, ...)\n{\n    if (f) {\n    }\n'
                    '}\n\nstruct b *a_new(void)\n{\n    return NULL;\n}\nint a_declared(int x);\nint numbers[] = {1, 2};\n')
        self.assertEqual([(f.name, f.is_static, f.first_line, f.last_line) for f in read.functions],
                         [("a_log", True, 1, 6), ("a_new", False, 8, 11)])

    def test_linkage_blocks(self):
        read = file("a.cpp", 'extern "C" {\nint a(void)\n{\n    return 1;\n}\n}\nnamespace {\nint b(void)\n{\n    return 2;\n}\n}\n')
        self.assertEqual([f.name for f in read.functions], ["a", "b"])

    def test_text_is_not_code(self):
        read = file("alloc/a.c", '/* int a(void) { */\n// int b(void) {\nconst char *s = "int c(void) {";\n#define D(x) { \\\n  x }\n')
        self.assertEqual(read.functions, [])

    def test_local_names(self):
        read = file("alloc/a.c", "int a(int one, char *two[])\n{\n    struct x *three = f(one), four;\n    for (size_t five = 0;;)\n"
                    "        six * seven;\n    return eight;\n}\n")
        self.assertEqual(source.local_names(read.functions[0]), {"one", "two", "three", "four", "five"})


class Circles(unittest.TestCase):
    THREE = ("int a(void)\n{\n    return b();\n}\n", "int b(void)\n{\n    return c(1);\n}\n", "int c(int x)\n{\n    return x ? a() : 0;\n}\n")

    def test_calls(self):
        files = [file(f"alloc/{name}.c", text) for name, text in zip("abc", self.THREE)]
        self.assertEqual(len(circles.check(files)), 1)

    def test_two_are_allowed(self):
        files = [file("alloc/a.c", "int a(void)\n{\n    return b();\n}\n"), file("alloc/b.c", "int b(void)\n{\n    return a();\n}\n")]
        self.assertEqual(circles.check(files), [])

    def test_callbacks_in_tables(self):
        files = [file(f"alloc/{name}.c", text) for name, text in zip("ab", self.THREE)]
        files.append(file("alloc/c.c", "int c(int x)\n{\n    return x;\n}\nstatic const struct ops c_ops = {.run = a};\n"))
        self.assertEqual(len(circles.check(files)), 1)

    def test_namesakes(self):
        for text in ("int c(int x)\n{\n    int a = x;\n    return a;\n}\n", "int c(int a)\n{\n    return a;\n}\n",
                     "int c(struct s *x)\n{\n    return x->a + (*x).a;\n}\n", "static int a;\nint c(int x)\n{\n    return a;\n}\n"):
            files = [file(f"alloc/{name}.c", part) for name, part in zip("ab", self.THREE)] + [file("alloc/c.c", text)]
            self.assertEqual(circles.check(files), [], text)

    def test_includes(self):
        files = [file(f"alloc/{a}.h", f'#include "alloc/{b}.h"\n') for a, b in ("ab", "bc", "ca")]
        self.assertEqual(len(circles.check(files)), 1)


class Includes(unittest.TestCase):
    DESIGN = ("## 2. Folders\n\n| folder | holds | may include |\n|---|---|---|\n| `base/` | a | |\n"
              "| `alloc/` | b | `base/`, libsodium |\n| `daemon/`, `daemon/loop/` | c | `base/`%s |\n\n## 3. Numerics\n")

    def findings(self, path, text, more=""):
        rows = includes.table_rows(self.DESIGN % more)
        return includes.check([file("base/a.h", ""), file("alloc/a.h", ""), file("daemon/a.h", ""), file(path, text)], rows)

    def test_listed(self):
        self.assertEqual(self.findings("alloc/b.c", '#include <sodium.h>\n#include <stdio.h>\n#include "base/a.h"\n'), [])
        self.assertEqual(self.findings("daemon/loop/b.c", '#include "daemon/a.h"\n'), [])

    def test_not_listed(self):
        for text in ('#include "daemon/a.h"\n', "#include <jansson.h>\n", '#include "tests/lib/test.h"\n'):
            self.assertEqual(len(self.findings("alloc/b.c", text)), 1, text)

    def test_laboratory(self):
        design = self.DESIGN.replace("\n\n## 3", "\n| `lab/` | d | `base/` |\n| `tools/` | e | `lab/` |\n\n## 3") % ""
        files = [file("lab/a.h", ""), file("base/a.h", ""), file("alloc/a.h", ""), file("daemon/a.h", "")]
        for path, n in (("lab/b.c", 0), ("tools/b.c", 1)):
            found = includes.check([*files, file(path, '#include "lab/a.h"\n')], includes.table_rows(design))
            self.assertEqual(len([f for f in found if path in f]), n, found)

    def test_row_below(self):
        self.assertEqual(len(self.findings("base/b.c", "", ", `tools/`")), 1)
        self.assertEqual(self.findings("base/b.c", "", "; upwards: `tools/`"), [])

    def test_no_row(self):
        self.assertEqual(len(self.findings("mover/b.c", "")), 1)

    def test_no_table(self):
        self.assertEqual(len(includes.check([], includes.table_rows("## 2. Folders\n\n## 3. Numerics\n"))), 1)


class Names(unittest.TestCase):
    def test_two_definitions(self):
        files = [file("alloc/a.c", "int alloc_x(void)\n{\n}\n"), file("alloc/b.c", "int alloc_x(void)\n{\n}\n")]
        self.assertEqual(len(names.check_exported(files)), 1)

    def test_words(self):
        self.assertEqual(names.check_exported([file("daemon/store/leases.c", "int lease_x(void)\n{\n}\nint store_y(void)\n{\n}\n")]), [])
        self.assertEqual(len(names.check_exported([file("daemon/store/leases.c", "int pool_x(void)\n{\n}\n")])), 1)

    def test_statics(self):
        files = [file("alloc/a.c", "static int run(void)\n{\n}\n"), file("alloc/b.c", "static int run(void)\n{\n}\n")]
        self.assertEqual(names.collision_share(files)[0], 1.0)
        self.assertEqual(len(names.check_statics(files)), 1)
        files = [file(f"gpu/cpu/dot_{isa}.c", "static int run(void)\n{\n}\n") for isa in ("avx2", "avx512", "avxvnni")]
        self.assertEqual(names.check_statics(files), [])

    def test_tags(self):
        one, two = "struct request {\n    int a;\n};\n", "struct request *r;\nstruct request {\n    int b;\n};\n"
        self.assertEqual(len(names.check_tags([file("daemon/a.h", one), file("daemon/b.c", two)])), 1)
        self.assertEqual(names.check_tags([file("daemon/a.h", one), file("client/b.c", two)]), [])


class Shape(unittest.TestCase):
    def test_lengths(self):
        self.assertEqual(len(shape.check_widths("a.c", "/* " + "a" * 105 + " */\n")), 1)
        self.assertEqual(shape.check_widths("a.c", "/* " + "a" * 104 + " */\n"), [])
        self.assertEqual(len(shape.check_lengths(file("a.c", "\n" * 601))), 1)
        self.assertEqual(shape.check_lengths(file("a.c", "\n" * 600)), [])
        self.assertEqual(len(shape.check_lengths(file("a.c", "int a(void)\n{\n" + "    a();\n" * 63 + "}\n"))), 1)
        self.assertEqual(shape.check_lengths(file("a.c", "int a(void)\n{\n" + "    a();\n" * 62 + "}\n")), [])

    def test_nested(self):
        for text in ("a ? b : c ? d : e", "a ? b ? c : d : e", "(a ? b : c) ? d : e", "a ? f(b ? c : d) : e", "a ? (b ? c : d) : e"):
            self.assertEqual(len(shape.check_conditionals(file("a.c", f"int a = {text};\n"))), 1, text)

    def test_beside_each_other(self):
        for text in ("f(a ? b : c, d ? e : f)", "(a ? b : c) + (d ? e : f)", "f(a ? b : c) ? d : e", "{a ? b : c, d ? e : f}"):
            self.assertEqual(shape.check_conditionals(file("a.c", f"int a = {text};\n")), [], text)
        body = "int a(void)\n{\n    if (a ? b : c)\n        (void) d;\n    while (e)\n        f = g ? h : i;\n    return j ? k : l;\n}\n"
        self.assertEqual(shape.check_conditionals(file("a.c", body)), [])

    def test_callee(self):
        self.assertEqual(len(shape.check_conditionals(file("a.c", "int a = (b ? c : d)(e);\n"))), 1)
        self.assertEqual(shape.check_conditionals(file("a.c", "int a = f(b ? c : d)(e);\n")), [])

    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_format(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, n in (("int a;\n", 0), ("int   a ;\n", 1)):
                with open(f"{folder}/a.c", "w", encoding="utf-8") as sample:
                    sample.write(text)
                self.assertEqual(len(shape.check_format([f"{folder}/a.c"])), n, text)


class Prose(unittest.TestCase):
    def test_words(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, n in (("/* The caller closes it. */\n", 0), ("/* Nobody closes it. */\n", 1), ("int nobody;\n", 0), ('const char *user = "nobody";\n', 0),
                            ("/* It is not used any\n * more. */\n", 1)):
                with open(f"{folder}/a.c", "w", encoding="utf-8") as sample:
                    sample.write(text)
                self.assertEqual(len(list(prose.findings(f"{folder}/a.c"))), n, text)



class Budget(unittest.TestCase):
    def test_rooms(self):
        lines = budget.lines_of_rooms(["daemon/a.c", "daemon/store/b.c", "daemon/store/b.h", "tests/unit/gpu/cuda/test_c.c"], lambda path: 100)
        self.assertEqual(lines, {"daemon": 100, "daemon/store": 200, "tests/unit": 100})

    def test_findings(self):
        budgets = budget.read_budgets("# room, lines\ndaemon 100\ndaemon/store 199  # grew by a list\n\ngone 5\n")
        self.assertEqual(budgets, {"daemon": 100, "daemon/store": 199, "gone": 5})
        self.assertEqual(budget.check({"daemon": 100, "daemon/store": 199, "gone": 5}, budgets), [])
        self.assertEqual(budget.check({"daemon": 100, "daemon/store": 200, "tests/unit": 1}, budgets),
                         ["daemon/store: 200 lines, more than 199", "tests/unit: 1 lines, and no line in tests/form/budget.txt",
                          "gone: a line in tests/form/budget.txt, and no C"])


if __name__ == "__main__":
    unittest.main()
