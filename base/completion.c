/* See completion.h. */
#include "base/completion.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

enum { DESCRIPTION_BYTES_MAX = 72, KIND_BYTES = 128 };

static const char *const file_kinds[] = {"FILE",  "FOLDER", "DIR", "PATH",  "MODEL",
                                         "TABLE", "STATS",  "OUT", "OTHER", "GGUF"};

/* ---- candidates ---- */

void completion_offer(const struct completion *c, const char *word, const char *description)
{
    size_t n = description ? strcspn(description, ".:;(\n") : 0;

    if (strncmp(word, c->typed, strlen(c->typed)) != 0)
        return;
    if (n > DESCRIPTION_BYTES_MAX) /* whole words */
        for (n = DESCRIPTION_BYTES_MAX; n > 0 && description[n] != ' ';)
            n--;
    while (n > 0 && description[n - 1] == ' ')
        n--;
    printf("%s%s%.*s\n", word, n > 0 ? "\t" : "", (int) n, n > 0 ? description : "");
}

/* Words with '|' between them. */
static void completion_offer_words(const struct completion *c, const char *words)
{
    _cleanup_(freep) char *copy = strdup(words);
    char *rest = NULL;

    for (char *word = copy ? strtok_r(copy, "|", &rest) : NULL; word; word = strtok_r(NULL, "|", &rest))
        completion_offer(c, word, NULL);
}

static bool completion_is_word(const char *kind)
{
    return islower((unsigned char) kind[0]) || strchr(kind, '|');
}

static void completion_offer_kind(const struct completion *c, const char *kind, completion_names *names)
{
    if (completion_is_word(kind)) {
        completion_offer_words(c, kind);
        return;
    }

    if (names)
        names(c, kind);
    for (size_t i = 0; i < sizeof(file_kinds) / sizeof(file_kinds[0]); i++)
        if (strcmp(kind, file_kinds[i]) == 0)
            puts(COMPLETION_FILES);
}

/* ---- options ---- */

static bool completion_is_end(const struct argp_option *o)
{
    return !o->name && o->key == 0 && !o->doc && o->group == 0;
}

/* The option --NAME of @n bytes, or -KEY if @n is 0; NULL: none. An alias is the option before it. */
static const struct argp_option *completion_find(const struct argp *a, const char *name, size_t n, int key)
{
    const struct argp_option *real = NULL, *found = NULL;

    for (const struct argp_option *o = a->options; o && !completion_is_end(o) && !found; o++) {
        real = o->flags & OPTION_ALIAS ? real : o;
        if (n > 0 ? o->name && strlen(o->name) == n && memcmp(o->name, name, n) == 0 : o->key == key)
            found = real;
    }
    for (const struct argp_child *child = a->children; child && child->argp && !found; child++)
        found = completion_find(child->argp, name, n, key);
    return found;
}

static void completion_offer_options(const struct completion *c, const struct argp *a)
{
    char name[KIND_BYTES];

    for (const struct argp_option *o = a->options; o && !completion_is_end(o); o++) {
        if (!o->name || o->flags & (OPTION_HIDDEN | OPTION_DOC))
            continue;
        (void) snprintf(name, sizeof(name), "--%s", o->name);
        completion_offer(c, name, o->doc);
    }
    for (const struct argp_child *child = a->children; child && child->argp; child++)
        completion_offer_options(c, child->argp);
}

/* The option whose value is the word behind @word; NULL: none. */
static const struct argp_option *completion_takes_next(const struct argp *a, const char *word)
{
    const struct argp_option *o;

    if (word[1] == '-') {
        o = strchr(word, '=') ? NULL : completion_find(a, word + 2, strlen(word + 2), 0);
        return o && o->arg && !(o->flags & OPTION_ARG_OPTIONAL) ? o : NULL;
    }

    for (const char *letter = word + 1; *letter; letter++) {
        o = completion_find(a, NULL, 0, *letter);
        if (o && o->arg)
            return letter[1] == '\0' && !(o->flags & OPTION_ARG_OPTIONAL) ? o : NULL;
    }
    return NULL;
}

const char *completion_value(const struct completion *c, const char *name)
{
    size_t n = strlen(name);

    for (int i = 0; i < c->n_words; i++) {
        if (strncmp(c->words[i], "--", 2) != 0 || strncmp(c->words[i] + 2, name, n) != 0)
            continue;
        if (c->words[i][2 + n] == '=')
            return c->words[i] + 2 + n + 1;
        if (c->words[i][2 + n] != '\0')
            continue;
        i += i + 1 < c->n_words && strcmp(c->words[i + 1], "=") == 0; /* bash makes three words */
        return i + 1 < c->n_words ? c->words[i + 1] : NULL;
    }
    return NULL;
}

/* ---- arguments ---- */

/*
 * A token of a line of args_doc, such as "[DIGEST...]" or "disconnect", without brackets and points.
 * Return: what follows it; NULL: the line has no more.
 */
static const char *completion_token(const char *line, char ret[static KIND_BYTES], bool *ret_repeats)
{
    size_t n;

    line += strspn(line, " [");
    n = strcspn(line, " []\n");
    if (n == 0)
        return NULL;

    *ret_repeats = n > 3 && memcmp(line + n - 3, "...", 3) == 0;
    (void) snprintf(ret, KIND_BYTES, "%.*s", (int) (*ret_repeats ? n - 3 : n), line);
    line += n;
    return line + strspn(line, "]");
}

/* Whether @word is one of @words, which have '|' between them. */
static bool completion_has_word(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = words; *at; at += strcspn(at, "|"), at += *at == '|')
        if (strcspn(at, "|") == n && memcmp(at, word, n) == 0)
            return true;
    return false;
}

/* Offers what @line of args_doc has behind the @n arguments @before, if it begins with these. */
static void completion_offer_line(const struct completion *c, const char *line, int n, char *const *before,
                                  completion_names *names)
{
    char kind[KIND_BYTES];
    bool repeats = false;

    for (int i = 0; i <= n; i++) {
        const char *next = repeats ? line : completion_token(line, kind, &repeats);

        if (!next)
            return;
        line = next;
        if (i < n && completion_is_word(kind) && !completion_has_word(kind, before[i]))
            return;
    }
    completion_offer_kind(c, kind, names);
}

static void completion_offer_arguments(const struct completion *c, const struct argp *a, int n,
                                       char *const *before, completion_names *names)
{
    for (const char *line = a->args_doc; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        completion_offer_line(c, line, n, before, names);
    }
}

void completion_print(const struct argp *argp, int n, char *const *words, completion_names *names)
{
    const char *typed = n > 0 ? words[n - 1] : "", *equals;
    struct completion c = {.typed = typed, .words = words, .n_words = n > 0 ? n - 1 : 0};
    _cleanup_(freep) char **arguments = calloc((size_t) n + 1, sizeof(*arguments));
    const struct argp_option *open = NULL; /* whose value comes next */
    bool has_options = true;
    int n_arguments = 0;

    if (!arguments)
        return;

    for (int i = 0; i < c.n_words; i++) {
        if (open && strcmp(words[i], "=") == 0) /* bash makes three words of --option=value */
            continue;
        if (open)
            open = NULL;
        else if (has_options && strcmp(words[i], "--") == 0)
            has_options = false;
        else if (has_options && words[i][0] == '-' && words[i][1] != '\0')
            open = completion_takes_next(argp, words[i]);
        else
            arguments[n_arguments++] = words[i];
    }

    equals = strchr(typed, '=');
    if (!open && has_options && strncmp(typed, "--", 2) == 0 && equals) {
        open = completion_find(argp, typed + 2, (size_t) (equals - typed) - 2, 0);
        c.typed = equals + 1;
        if (!open || !open->arg)
            return;
    }
    if (open && strcmp(c.typed, "=") == 0)
        c.typed = "";

    if (open) {
        completion_offer_kind(&c, open->arg, names);
    } else if (has_options && typed[0] == '-') {
        completion_offer_options(&c, argp);
        completion_offer(&c, "--help", "Print the options");
        completion_offer(&c, "--usage", "Print a short usage");
        if (argp_program_version || argp_program_version_hook)
            completion_offer(&c, "--version", "Print the version");
    } else {
        completion_offer_arguments(&c, argp, n_arguments, arguments, names);
    }
}
