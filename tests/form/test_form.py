#!/usr/bin/env python3
"""Checks in samples of a few lines that each script of this folder has its findings, and no others.

    python3 tests/form/test_form.py
"""
import shutil
import tempfile
import unittest

import budget
import circles
import documents
import headers
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



class Documents(unittest.TestCase):
    """A small project, true at first; then each error alone must be found."""

    FILES = {
        "README.md": "# Top\n\n[how](daemon/README.md#start-here), `daemon/store/pool.[ch]`, `pool.h`, `daemon/*.md`, four methods, "
                     "three members of `kvc_x`.\n",
        "daemon/README.md": "# daemon\n\n## Rooms\n\n| room | what |\n|---|---|\n| `store/` | pages |\n| `config/` | settings |\n\n## Start here\n\n"
                            "`kvcobra table stage FILE --yes`, `--lease-ms`, `pool_map()`, `KVC_ALL`, at most 8 jobs (`JOBS_MAX`), `event=pool-lost`, `test_pool.c` lost_page, all_pages, `test_pool`, logs `pool-lost`, `lease-ms`\n\n"
                            "    kvcobra table list --timeout 3; kvcobrad --lease-ms 7 | grep --color x\n",
        "daemon/LIMITS.md": "| what grows | who | in all | gets | setting | test |\n|---|---|---|---|---|---|\n"
                            "| jobs | client | 8 | EAGAIN | `JOBS_MAX` | `daemon/store/pool.c` |\n"
                            "| memory | client | 64 MiB, for 30 s | EAGAIN | `pool-bytes`, `lease-ms` | - |\n",
        "proto/README.md": "# proto\n\n`page.h`\n\n| request | reply |\n|---|---|\n| Hello, Bye | …Reply |\n",
        "proto/kvcobra.proto": "message Request {\n    oneof body {\n        Hello hello = 1;\n        Bye bye = 2;\n    }\n}\n",
        "proto/page.h": "",
        "daemon/config/settings_table.c": 'HOST_BYTES("pool-bytes", pool, 64 * MIB, .help = "a"),\n{\n .name = "lease-ms",\n .number = 30000,\n},\n',
        "daemon/store/pool.h": "#define JOBS_MAX 8\n#define MIB (UINT64_C(1) << 20)\nenum { KVC_ALL = 1 };\n",
        "daemon/store/pool.c": 'int pool_map(void)\n{\n    log("event=pool-lost");\n}\n',
        "alloc/solve/solve_names.c": 'static const char *const method_names[] = {"a", "b", "c", "d"};\n',
        "tools/command/operator.c": 'static const struct argp_option change_options[] = {\n    TIMEOUT(1),\n    {"yes", 1, 0},\n};\n',
        "tools/command/option.h": '#define TIMEOUT(key) \\\n    { \\\n        "timeout", key }\n',
        "tools/operate/cmd_table.c": 'static const struct argp_option options[] = {\n    {"json", 1},\n};\n',
        "tools/operate/cmd_evict.c": 'static const struct argp_option options[] = {\n    {"tenant", 1},\n};\n',
        "tests/unit/daemon/store/test_pool.c": "static void test_lost_page(void)\n{\n}\nstatic void all_pages(void)\n{\n}\n",
        "client/kvcobra.h": "typedef struct kvc_x {\n    size_t struct_bytes; /* sizeof */\n    int a;\n    int b, c;\n} kvc_x;\n",
    }

    def findings(self, path=None, old="", new=""):
        files = dict(self.FILES)
        if path:
            self.assertIn(old, files[path])
            files[path] = files[path].replace(old, new)
        return documents.check([name for name in files if name.endswith(".md")], list(files), files.__getitem__)

    def test_true(self):
        self.assertEqual(self.findings(), [])

    def test_errors(self):
        for path, old, new in (("README.md", "(daemon/README.md#", "(daemon/READ.md#"), ("README.md", "#start-here", "#begin-here"),
                               ("README.md", "store/pool.[ch]", "store/pools.[ch]"), ("README.md", "`pool.h`", "`pools.h`"),
                               ("README.md", "daemon/*.md", "daemon/*.txt"), ("README.md", "four methods", "five methods"),
                               ("README.md", "three members", "two members"),
                               ("daemon/README.md", "`store/`", "`pages`"), ("daemon/README.md", "stage FILE --yes", "stage FILE --tenant x"),
                               ("daemon/README.md", "kvcobra table stage", "kvcobra tables stage"), ("daemon/README.md", "`--lease-ms`", "`--lease-s`"),
                               ("daemon/README.md", "list --timeout", "list --time"), ("daemon/README.md", "kvcobrad --lease-ms", "kvcobrad --timeout"),
                               ("daemon/README.md", "pool_map()", "pool_unmap()"), ("daemon/README.md", "KVC_ALL", "KVC_SOME"),
                               ("daemon/README.md", "8 jobs", "9 jobs"),
                               ("daemon/README.md", "logs `pool-lost`", "logs `pool-gone`"), ("daemon/README.md", ", `lease-ms`", ", `hold-ms`"),
                               ("daemon/README.md", "all_pages", "no_pages"), ("daemon/README.md", "`test_pool`", "`test_pools`"), ("daemon/README.md", "event=pool-lost", "event=pool-gone"),
                               ("daemon/LIMITS.md", "| 8 |", "| 16 |"), ("daemon/LIMITS.md", "`JOBS_MAX`", "`JOBS_MOST`"),
                               ("daemon/LIMITS.md", "64 MiB", "64 KiB"), ("daemon/LIMITS.md", "30 s", "20 s"),
                               ("daemon/LIMITS.md", "`lease-ms`", "`lease-time`"), ("daemon/LIMITS.md", "store/pool.c", "store/pools.c"),
                               ("proto/README.md", "Hello, Bye", "Hello"), ("proto/README.md", "`page.h`", "pages")):
            self.assertEqual(len(self.findings(path, old, new)), 1, f"{path}: {new}")

    def test_other_programs(self):
        for text in ("`sh tools/gone.sh`", "`/etc/kvcobra/kvcobrad.conf`", "`model.gguf`", "`--yes`", "`podman run x kvcobrad --rm`", "`$HOME/.cache/`"):
            self.assertEqual(len(self.findings("README.md", "four methods", text)), 1 if "gone" in text else 0, text)


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


class Headers(unittest.TestCase):
    def test_users(self):
        files = [file("daemon/a.h", ""), file("daemon/a.c", '#include "daemon/a.h"\n'), file("daemon/b.c", '#include "daemon/a.h"\n'),
                 file("daemon/b.h", "int b;\n")]
        self.assertEqual(headers.single(files, ["daemon/a.h", "daemon/b.h", "daemon/a.c"]), {"daemon/a.h": ["daemon/b.c"], "daemon/b.h": []})
        files.append(file("tests/c.c", '#include "daemon/a.h"\n#include "../daemon/b.h"\n'))
        self.assertEqual(headers.single(files, ["daemon/a.h", "daemon/b.h"]), {"daemon/b.h": ["tests/c.c"]})
        self.assertEqual(headers.single(files, ["client/kvcobra.h"]), {})

    def test_most(self):
        self.assertEqual(headers.check({"a.h": [], "b.h": []}, 2), [])
        self.assertEqual(headers.check({"a.h": [], "b.h": []}, 1), ["2 headers are for one file, more than 1"])


if __name__ == "__main__":
    unittest.main()
