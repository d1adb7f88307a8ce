"""Places of a C file that a mutation can change, and the changed text.

The code is read as tokens (tests/form/source.py), not compiled: a mutation that does not compile is dropped later. Each
replaces a range of the text by the range itself and its mutated form, between which kvc_mutant(@) chooses at run time; @
becomes the mutant's number. A replacement has as many line ends as the original, so that lines keep their numbers.
"""
import collections
import re

import source

# How often each kind is drawn, where a folder has places of all kinds.
WEIGHTS = {
    "compare": 5,   # another comparison: < is <=, == is !=
    "skip": 5,      # the condition of an if is false: a check is skipped
    "always": 2,    # the condition of an if without return is true
    "logic": 2,     # && is ||
    "bound": 4,     # a constant is one larger or smaller
    "release": 4,   # a call that gives something back is left out
    "call": 3,      # another call is left out
    "assign": 3,    # an assignment or an increment is left out
    "arithmetic": 2,  # + is -
    "order": 2,     # two statements in a row change places
    "errno": 1,     # another errno
}

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
BOUNDARIES = {",", ";", "?", ":", "(", "[", "{", ")", "]", "}", "return", "case", "else", "do"} | ASSIGNMENTS
OTHER_ERRNO = {"EINVAL": "EPROTO", "EAGAIN": "EBUSY", "ENOSPC": "ENOMEM", "ENOENT": "ESTALE", "ESTALE": "ENOENT",
               "EDQUOT": "ENOSPC", "EBADMSG": "EINVAL", "EPROTO": "EBADMSG"}
RELEASES = re.compile(r"unref|free|close|release|unhold|drop|discard|clear|remove|forget|deinit|unlock|munmap|undo|abort"
                      r"|leave|retire|give|shrink|cancel|return_|put$")
# Files whose stores a crash or another process can see one by one.
SEEN_ONE_BY_ONE = re.compile(r"daemon/store/(journal|persist|pool|slot|span)\.c|daemon/store/control\.c|proto/index_write\.c")
# Calls without which the program does the same: sentences, logs, hints, checks of the code itself; and fences of the compiler,
# which need not move a store where it may.
NO_EFFECT = re.compile(r"log_|journal_keep_order|assert|metrics_text|printf|madvise|__builtin_prefetch|_mm_prefetch|__attribute__|_cleanup_|static"
                       r"|_Static_assert|case|enum|typedef|struct|const|extern|errmsg|progress")
# Durations are left out: no test judges a millisecond.
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*_(MAX|MIN|BYTES|TOKENS|BITS|LIMIT|LANES|ROWS|PER_\w+)|[A-Z]{4,}")
NOT_CONSTANT = re.compile(r"NULL|E[A-Z0-9]{2,}|[A-Z]+_FILENO|SIG[A-Z]+|O_[A-Z]+|INT.*_MAX|SIZE_MAX|UINT.*|FLT_.*|DBL_.*")

Token = collections.namedtuple("Token", "kind text line start end")
Place = collections.namedtuple("Place", "path function line kind start end before after original mutated")


def tokens_of(text):
    line = 1
    for match in source.TOKEN.finditer(text):
        if match.lastgroup != "blank":
            yield Token(match.lastgroup, match.group(), line, match.start(), match.end())
        line += match.group().count("\n")


def places_of(path, text):
    """All places of the file @path, whose contents are @text."""
    tokens = list(tokens_of(text))
    directives = [t.start for t in tokens if t.kind == "directive"]
    functions, _ = source.split([t for t in tokens if t.kind != "directive"])
    found = []
    for function in functions:
        found.extend(Body(path, text, function).places())
    # a range that holds an #if has no line of its own
    return [p for p in found if not any(p.start <= at < p.end for at in directives)]


class Body:
    """The tokens of one function."""

    def __init__(self, path, text, function):
        self.path, self.text, self.name, self.tokens = path, text, function.name, function.body
        self.found = []
        self.closing = self.match_brackets()
        self.is_ignored = self.ignored()

    def places(self):
        for i, token in enumerate(self.tokens):
            if self.is_ignored[i]:
                continue
            if token.text in COMPARISONS:
                self.replace_operator(i, "compare", COMPARISONS[token.text], BOUNDARIES | {"&&", "||"})
            elif token.text in ("&&", "||"):
                self.replace_operator(i, "logic", "||" if token.text == "&&" else "&&", BOUNDARIES)
            elif token.text in ("+", "-") and self.is_binary(i):
                self.replace_operator(i, "arithmetic", "-" if token.text == "+" else "+",
                                      BOUNDARIES | {"&&", "||", "<<", ">>", "&", "|", "^"} | set(COMPARISONS))
            elif re.fullmatch(r"E[A-Z0-9]{3,}", token.text) and self.tokens[i - 1].text == "-" and not self.is_binary(i - 1):
                self.add(i, i, "errno", "(kvc_mutant(@) ? " + OTHER_ERRNO.get(token.text, "EIO") + " : ", ")",
                         OTHER_ERRNO.get(token.text, "EIO"))
            elif token.kind == "number" or CONSTANT.fullmatch(token.text):
                self.shift_constant(i)
            elif token.text == "if" and self.tokens[i + 1].text == "(":
                self.decide_condition(i)
        self.leave_out_statements()
        return self.found

    # ---- structure ---------------------------------------------------------------------------------------------

    def match_brackets(self):
        closing, open_at = {}, []
        for i, token in enumerate(self.tokens):
            if token.text in ("(", "[", "{"):
                open_at.append(i)
            elif token.text in (")", "]", "}") and open_at:
                closing[open_at.pop()] = i
        return closing

    def ignored(self):
        """Which tokens are no code to change: declarations of constants, logs, checks, arguments of sentences and of sizeof."""
        ignored, i = [False] * len(self.tokens), 0
        while i < len(self.tokens):
            is_start = i > 0 and self.tokens[i - 1].text in (";", "{", "}", ")", "else", ":")
            end = i + 1
            if is_start and NO_EFFECT.match(self.tokens[i].text):
                end = self.end_of_declaration(i)
                ignored[i:end] = [True] * (end - i)
            i = end
        for i, token in enumerate(self.tokens[:-1]):
            if token.text in ("sizeof", "fail") and i + 1 in self.closing:
                first = i
                if token.text == "fail":  # fail(e, -ERRNO, "sentence", ...)
                    first = next((k for k in range(i, self.closing[i + 1]) if self.tokens[k].kind == "string"), self.closing[i + 1])
                for k in range(first, self.closing[i + 1]):
                    ignored[k] = True
        return ignored

    def end_of_declaration(self, i):
        """Index behind what is ignored from @i on: up to the initial value of a variable, which is code."""
        end = i
        while end < len(self.tokens) - 1 and self.tokens[end].text not in (";", ":"):
            if self.tokens[end].text == "=" and self.tokens[i].text in ("const", "struct", "_cleanup_"):
                break
            end = self.closing.get(end, end) + 1
        return max(end, i + 1)

    def is_binary(self, i):
        before = self.tokens[i - 1]
        return before.kind in ("number", "name") and before.text not in ("return", "case") or before.text in (")", "]")

    def flat(self, first, last):
        """The tokens from @first to @last on one line."""
        return " ".join(t.text for t in self.tokens[first:last + 1])

    def add(self, first, last, kind, before, after, mutated):
        start, end = self.tokens[first].start, self.tokens[last].end
        self.found.append(Place(self.path, self.name, self.tokens[first].line, kind, start, end, before, after,
                                self.flat(first, last), mutated))

    # ---- expressions -------------------------------------------------------------------------------------------

    def replace_operator(self, at, kind, operator, boundaries):
        first = last = at
        while first > 0 and self.tokens[first - 1].text not in boundaries - {")", "]"}:
            first -= 1
            if self.tokens[first].text in (")", "]"):
                first = next(i for i, end in self.closing.items() if end == first)
            if self.tokens[first].text == "}":
                return
        while last + 1 < len(self.tokens) and self.tokens[last + 1].text not in boundaries - {"(", "["}:
            last += 1
            last = self.closing.get(last, last)
        if first == at or last == at:
            return
        mutated = f"{self.flat(first, at - 1)} {operator} {self.flat(at + 1, last)}"
        self.add(first, last, kind, "(kvc_mutant(@) ? (" + mutated + ") : (", "))", mutated)

    def shift_constant(self, i):
        token = self.tokens[i]
        if token.kind == "number" and not re.fullmatch(r"([1-9][0-9]*|0[xX][0-9a-fA-F]+)[uUlL]*", token.text):
            return
        if NOT_CONSTANT.fullmatch(token.text) or self.tokens[i + 1].text == "(":
            return
        if self.tokens[i - 1].text in ("-", ".", "->") and not self.is_binary(i - 1):
            return
        near = {self.tokens[i - 1].text, self.tokens[i + 1].text}
        if token.kind == "name" and not near & (set(COMPARISONS) | {"+", "-", "*", "/", "%"}):
            return  # an enumerator, not a number
        sign = "+" if (i + token.line) % 2 else "-"
        mutated = f"{token.text} {sign} 1"
        self.add(i, i, "bound", "(kvc_mutant(@) ? " + mutated + " : ", ")", mutated)

    def decide_condition(self, i):
        first, last = i + 2, self.closing[i + 1] - 1
        block = last + 2
        end = self.closing.get(block, block)
        while end < len(self.tokens) and self.tokens[end].text not in (";", "}"):
            end += 1
        leaves = {t.text for t in self.tokens[block:end]} & {"return", "goto", "continue", "break"}
        condition = self.flat(first, last)
        self.add(first, last, "skip", "kvc_mutant(@) ? 0 : (", ")", f"if (0), not if ({condition})")
        if not leaves:
            self.add(first, last, "always", "kvc_mutant(@) ? 1 : (", ") != 0", f"if (1), not if ({condition})")

    # ---- statements --------------------------------------------------------------------------------------------

    def leave_out_statements(self):
        previous = None
        for i in range(1, len(self.tokens)):
            end = self.statement(i)
            if end is None or self.is_ignored[i]:
                continue
            name = next((t.text for t in self.tokens[i:end] if t.kind == "name" and t.text != "void"), "")
            is_call = not {t.text for t in self.outermost(i, end)} & (ASSIGNMENTS | {"++", "--"})
            kind = "assign"
            if is_call:
                kind = "release" if RELEASES.search(name) else "call"
            is_in_block = self.tokens[i - 1].text in (";", "{", "}")
            if self.tokens[end + 1].text != "else":
                self.add(i, end, kind, "if (kvc_mutant(@)) { } else ", "", "(left out)")
            if previous and previous[1] == i - 1 and self.may_swap(previous, (i, end)):
                first, last = self.flat(*previous), self.flat(i, end)
                self.add(previous[0], end, "order", "if (kvc_mutant(@)) { " + last + " " + first + " } else { ", " }",
                         last + " " + first)
            previous = (i, end) if is_in_block else None

    def statement(self, i):
        """Index of the semicolon of the call or assignment that begins at @i; None if there is none."""
        if self.tokens[i - 1].text not in (";", "{", "}", ")", "else"):
            return None
        if self.tokens[i - 1].text == ")" and not self.is_control(i - 1):
            return None
        if any(start < i < end and self.tokens[start].text == "(" for start, end in self.closing.items()):
            return None  # in the head of a for
        first = self.tokens[i]
        if first.text == "(" and self.tokens[i + 1].text == "void":
            first = self.tokens[i + 3]
        if first.kind != "name" and first.text not in ("*", "++", "--"):
            return None
        if first.text in source.KEYWORDS or first.text in ("struct", "const", "unsigned", "int", "char", "float", "double"):
            return None
        end = i
        while end < len(self.tokens) and self.tokens[end].text not in (";", "{", "}", ":"):
            end = self.closing.get(end, end) + 1
        if end >= len(self.tokens) or self.tokens[end].text != ";":
            return None
        parts = self.outermost(i, end)
        signs = {t.text for t in parts}
        if signs & ASSIGNMENTS:
            # two words in a row declare something
            target = parts[:next(k for k, t in enumerate(parts) if t.text in ASSIGNMENTS)]
            words = [t for t in target if t.kind == "name"]
            is_declaration = len(words) > 1 and not {t.text for t in target} & {".", "->", "["} or target[-1].text == "]" and \
                len(words) > 1 and target[0].kind == "name" and target[1].kind == "name"
            return None if is_declaration else end
        if signs & {"++", "--"}:
            return end
        return end if self.tokens[end - 1].text == ")" and self.is_call(i, end) else None

    def outermost(self, first, end):
        """The tokens from @first up to @end, without those in brackets, which stand as their opening bracket."""
        parts, i = [], first
        while i < end:
            parts.append(self.tokens[i])
            i = self.closing.get(i, i) + 1
        return parts

    def is_call(self, i, end):
        if self.tokens[i].text == "(":
            i += 3
        return self.tokens[i].kind == "name" and self.closing.get(end_of_name(self.tokens, i)) == end - 1

    def is_control(self, at):
        """Whether the bracket that closes @at belongs to an if, for or while."""
        opened = next(i for i, end in self.closing.items() if end == at)
        return self.tokens[opened - 1].text in ("if", "for", "while")

    def may_swap(self, one, two):
        """Whether the order of two statements can matter: one of them changes what the other uses, or others see each store."""
        uses = [self.changed_and_used(*range_) for range_ in (one, two)]
        if uses[0][0] & uses[1][1] or uses[1][0] & uses[0][1]:
            return True
        targets = [self.flat(a, b).split(" = ")[0] for a, b in (one, two)]
        bases = [self.tokens[a].text for a, b in (one, two) if self.tokens[a + 1].text == "->" and " = " in self.flat(a, b)]
        return bool(SEEN_ONE_BY_ONE.match(self.path)) and len(bases) == 2 and bases[0] == bases[1] and targets[0] != targets[1]

    def changed_and_used(self, first, end):
        """Names that the statement changes, and names that it uses.

        A call changes what is given to it by address, or what it gives back.
        """
        at = next((k for k in range(first, end) if self.tokens[k].text in ASSIGNMENTS), None)
        if at is not None:
            used = self.names(at, end)
            target = [t.text for t in self.outermost(first, at) if t.kind == "name"]
            return set(target[-1:]), used | (set(target[-1:]) if self.tokens[at].text != "=" else set())
        used = self.names(first, end)
        changed = {self.tokens[end_of_name(self.tokens, k + 1) - 1].text for k in range(first, end)
                   if self.tokens[k].text == "&" and not self.is_binary(k) and self.tokens[k + 1].kind == "name"}
        if RELEASES.search(self.tokens[first].text):  # the last argument is what ends
            changed |= {t.text for t in self.tokens[first:end] if t.kind == "name"} & {self.tokens[end - 2].text}
        return changed, used

    def names(self, first, end):
        """Names of variables and of members, not of functions."""
        return {t.text for k, t in enumerate(self.tokens[first:end], first)
                if t.kind == "name" and self.tokens[k + 1].text != "(" and t.text != "void"}


def end_of_name(tokens, i):
    """Index behind NAME, NAME->NAME and so on."""
    while tokens[i + 1].text in ("->", "."):
        i += 2
    return i + 1
