/*
 * What may stand next in a command line, for the completion of shells. The program itself reads its struct
 * argp, so that no shell has a copy of an option: kvcobra, kvcobra-lab and kvcobrad answer
 * `PROGRAM --complete WORD...`, whose last word is the one that is being typed, and may be empty.
 *
 * The name of an argument, of an option or of a line of args_doc, says what may stand there:
 *
 *     bands|dp                one of these words, as all names in small letters are words
 *     FILE, FOLDER, MODEL ... a name of a file
 *     TENANT, DIGEST ...      what the program knows, see completion_names
 *     N, SECONDS ...          nothing that could be listed
 *
 * Each line of the answer is a candidate, behind a tab its description, or COMPLETION_FILES. Nothing here
 * fails or writes errors: a shell has no place for them.
 */
#pragma once

#include <argp.h>

#define COMPLETION_FILES ":files" /* names of files may stand here, too */

/* The words of an answer. */
struct completion {
    const char *typed;  /* the beginning of the candidates */
    char *const *words; /* [n_words] the command line before it */
    int n_words;
};

/* Offers the values of a @kind of argument that only the program knows, such as TENANT. */
typedef void completion_names(const struct completion *c, const char *kind);

/* Prints @word if it begins as what was typed. @description: NULL: none; its first words are printed. */
void completion_offer(const struct completion *c, const char *word, const char *description);

/* The value of an option --@name in the words before; NULL: it is not there. */
const char *completion_value(const struct completion *c, const char *name);

/**
 * completion_print() - answer for a command
 * @argp:  its options and arguments
 * @words: [n] behind the name of the command; the last one is being typed
 * @names: may be NULL
 */
void completion_print(const struct argp *argp, int n, char *const *words, completion_names *names);
