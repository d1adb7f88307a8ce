/* See corpus_openings.h. */
#include "tools/calibrate/corpus_openings.h"

struct opening_kind {
    const char *name;
    size_t n;
    const char *const *openings;
};

#define KIND(name, list)                                                                                     \
    {                                                                                                        \
        name, sizeof(list) / sizeof(*(list)), list                                                           \
    }

static const char *const opening_prose[] = {
    "The river rises in the hills north of the town and",
    "In the spring of that year the company announced",
    "She closed the door behind her and listened.",
    "A cell takes energy from its surroundings by",
    "The court found that the agreement between the two parties",
    "It was already late when the train arrived at the small station, and",
    "Most birds of this family live near the coast, where",
    "To bake the bread, first mix the flour with",
    "According to the report, the number of people who",
    "The album was recorded in two weeks and",
};

static const char *const opening_code[] = {
    "#include <stdio.h>\n#include <stdlib.h>\n\nstruct node {\n    struct node *next;\n",
    "import os\nimport sys\n\n\ndef read_lines(path):\n",
    "class Account:\n    def __init__(self, owner, balance=0):\n",
    "function render(items) {\n  const list = document.createElement('ul');\n",
    "static int parse_header(const unsigned char *data, size_t size)\n{\n",
    "SELECT customer.name, SUM(amount) AS total\nFROM orders\n",
    "fn main() {\n    let mut values: Vec<u32> = Vec::new();\n",
    "#!/bin/sh\nset -e\n\nfor file in \"$@\"; do\n",
    "public class Queue<T> {\n    private final Object[] items;\n",
    "<!DOCTYPE html>\n<html>\n<head>\n  <title>",
};

static const char *const opening_markup[] = {
    "# Installation\n\n1. Download the archive and unpack it.\n2. ",
    "| Name | Type | Default | Description |\n|---|---|---|---|\n| ",
    "Motivation\n==========\n\nThis proposal changes how ",
    "- Fixed a bug that\n- Added support for\n- ",
    "## Summary\n\nThe feature is disabled by default. To enable it, ",
    "Country, Capital, Population\n",
    "Ingredients:\n- 2 cups of\n- 1 teaspoon of\n- ",
    "Section 4.2. Requirements\n\nAn implementation MUST ",
    "\\section{Introduction}\nIn this paper we ",
    "{\"id\": 1, \"name\": \"",
};

static const char *const opening_dialogue[] = {
    "Anna: Did you see what happened yesterday?\nBen: No, ",
    "Question: How do I change the password of my account?\nAnswer: ",
    "\"I don't think so,\" he said.\n\"Why not?\"\n",
    "Interviewer: When did you start to work on this?\nGuest: ",
    "User: Write a short letter to my landlord.\nAssistant: ",
    "Dear Sir or Madam,\n\nI am writing to ",
    "> I tried that, but it did not work.\n\nWhich version do you use? ",
    "Teacher: What is the capital of France?\nStudent: ",
    "Hi all,\n\nthanks for the quick answer. ",
    "Customer: My order has not arrived yet.\nSupport: ",
};

static const char *const opening_languages[] = {
    "Die Stadt liegt am Ufer des Flusses und hat",
    "En el a\xc3\xb1o 1850, el gobierno decidi\xc3\xb3",
    "Le livre raconte l'histoire d'une jeune femme qui",
    "Il museo si trova nel centro della citt\xc3\xa0 e",
    "A cidade fica no norte do pa\xc3\xads e",
    "\xd0\x93\xd0\xbe\xd1\x80\xd0\xbe\xd0\xb4 "
    "\xd0\xbd\xd0\xb0\xd1\x85\xd0\xbe\xd0\xb4\xd0\xb8\xd1\x82\xd1\x81\xd1\x8f ",
    "De trein naar het noorden vertrekt om",
    "Miasto le\xc5\xbcy nad rzek\xc4\x85 i",
    "\xe6\x97\xa5\xe6\x9c\xac\xe3\x81\xae\xe9\xa6\x96\xe9\x83\xbd\xe3\x81\xaf",
    "\xe4\xb8\xad\xe5\x9b\xbd\xe7\x9a\x84\xe9\xa6\x96\xe9\x83\xbd\xe6\x98\xaf",
};

static const char *const opening_records[] = {
    "Theorem 1. Let f be a continuous function on the interval [0, 1]. Then ",
    "Solve for x: 3x + 7 = 22.\n3x = 15\nx = 5\n\nSolve for x: ",
    "2024-03-01 12:00:01 INFO server started on port 8080\n2024-03-01 12:00:02 ",
    "Jan 14 03:12:55 host kernel: ",
    "A train travels 120 km in 2 hours. How far does it travel in 5 hours?\n",
    "GET /index.html HTTP/1.1\nHost: ",
    "Traceback (most recent call last):\n  File \"",
    "The sum of the first n numbers is n(n + 1)/2. For n = 10 ",
    "1, 1, 2, 3, 5, 8, 13, 21, ",
    "[ 12%] Building C object src/main.o\n[ 14%] ",
};

static const struct opening_kind opening_kinds[CORPUS_KINDS] = {
    KIND("prose", opening_prose),         KIND("code", opening_code),
    KIND("markup", opening_markup),       KIND("dialogue", opening_dialogue),
    KIND("languages", opening_languages), KIND("records", opening_records),
};

const char *corpus_kind_name(size_t kind)
{
    return opening_kinds[kind].name;
}

size_t corpus_openings(size_t kind, const char *const **ret_openings)
{
    *ret_openings = opening_kinds[kind].openings;
    return opening_kinds[kind].n;
}
