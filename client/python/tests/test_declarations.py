"""The generated declarations: they are those of the headers, as a C compiler reads them."""
import os
import subprocess
import sys
import tempfile
import unittest

import support

ROOT = support.program("KVC_SOURCE_ROOT")
sys.path.insert(0, os.path.join(ROOT, "client/python"))

import generate_declarations as generator  # noqa: E402
from kvcobra import _alloc, _alloc_declarations, _declarations, _library  # noqa: E402
from kvcobra._alloc import library as alloc_library  # noqa: E402
from kvcobra._library import library  # noqa: E402

HEADERS = [os.path.join(ROOT, "client", name) for name in ("kvcobra.h", "kvcobra-gpu.h", "kvcobra-call.h", "kvcobra-llama.h", "kvcobra-tiers.h")]
ALLOC_HEADERS = [HEADERS[0], os.path.join(ROOT, "alloc", "kvcobra-alloc.h")]


class Declarations(unittest.TestCase):
    def setUp(self):
        self.both = ((_declarations, HEADERS, _library.ffi, library()._lib),
                     (_alloc_declarations, ALLOC_HEADERS, _alloc.ffi, alloc_library()))

    def test_generated_file_is_that_of_the_headers(self):
        for module, headers, _, _ in self.both:
            with open(module.__file__, encoding="utf-8") as file:
                self.assertEqual(file.read(), generator.module(headers))

    def test_compiler_agrees(self):
        """Sizes, offsets and constants are asserted; a prototype that differs from the header's does not compile."""
        for module, headers, ffi, library in self.both:
            with self.subTest(module.__name__):
                self.compare(module, headers, ffi, library)

    def compare(self, module, headers, ffi, library):
        lines = [f'#include "{path}"' for path in headers]
        structs = [ffi.typeof(name) for name in ffi.list_types()[0] if ffi.typeof(name).kind == "struct"]
        structs = [t for t in structs if t.fields]
        self.assertGreater(len(structs), 10)
        for t in structs:
            lines.append(f"_Static_assert(sizeof({t.cname}) == {ffi.sizeof(t)}, \"\");")
            lines += [f"_Static_assert(offsetof({t.cname}, {name}) == {field.offset}, \"\");" for name, field in t.fields]
        for name in dir(library):
            value = getattr(library, name, None)
            if isinstance(value, int):
                lines.append(f"_Static_assert({name} == {value}, \"\");")
        prototypes = [s.strip() + ";" for s in self.outside_braces(module.DECLARATIONS).split(";")
                      if "(" in s and "typedef" not in s]
        self.assertGreater(len(prototypes), 20)
        lines += prototypes
        with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
            file.write("#include <stddef.h>\n" + "\n".join(lines) + "\n")
            file.flush()
            done = subprocess.run(["cc", "-std=c11", "-Werror", "-fsyntax-only", "-I", os.path.join(ROOT, "client"), file.name],
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    @staticmethod
    def outside_braces(text):
        out, depth = [], 0
        for c in "\n".join(line for line in text.split("\n") if not line.startswith("#")):
            depth += (c == "{") - (c == "}")
            out.append(c if depth == 0 and c != "}" else " ")
        return "".join(out)


class Generator(unittest.TestCase):
    def strip(self, text):
        constants = {}
        return generator.strip(text, constants), constants

    def test_constants_are_evaluated(self):
        text, constants = self.strip("#define A (1 << 4) /* x */\n#define B (A + 2u)\nint f(int x[B]);\n")
        self.assertEqual(constants, {"A": 16, "B": 18})
        self.assertEqual(text, "#define A 16\n#define B 18\nint f(int x[B]);")

    def test_empty_macros_and_cplusplus_go(self):
        text, _ = self.strip("#ifndef H\n#define H\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
                             "#if defined(__GNUC__)\n#define EXPORT x\n#else\n#define EXPORT\n#endif\nEXPORT int f(void);\n#endif\n")
        self.assertEqual(text, "int f(void);")

    def test_unknown_things_are_refused(self):
        for text in ("#define F(x) x\n", "#define S \"text\"\n", "#if X\n#endif\n", "#pragma once\n", "#include <stdio.h>\n"):
            with self.subTest(text), self.assertRaises((generator.HeaderError, SyntaxError)):
                self.strip(text)

    def test_an_error_names_the_file_and_writes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            header, output = os.path.join(folder, "x.h"), os.path.join(folder, "o.py")
            with open(header, "w", encoding="utf-8") as file:
                file.write("#pragma once\n")
            done = subprocess.run([sys.executable, generator.__file__, output, header], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn(header, done.stderr)
            self.assertEqual(os.listdir(folder), ["x.h"])


if __name__ == "__main__":
    support.main()
