/* See json_large.h. */
#include "tools/command/json_large.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* Bytes of a number at the beginning of @p; 0: none. @ret_is_large: an integer that jansson does not have. */
static size_t json_large_number(const char *p, bool *ret_is_large)
{
    size_t sign = *p == '-', n = strspn(p + sign, "0123456789"), all = strspn(p, "+-.0123456789eE");

    *ret_is_large = false;
    if (n == 0)
        return 0;
    if (all == sign + n && (n == 1 || p[sign] != '0')) {
        errno = 0;
        (void) strtoll(p, NULL, 10);
        *ret_is_large = errno == ERANGE;
    }
    return all;
}

/* A copy with quotes around large integers. NULL: out of memory. */
static char *json_large_quote(const char *text)
{
    char *copy = malloc(2 * strlen(text) + 1), *to = copy; /* a large integer has 19 digits or more */
    bool in_string = false, is_large;

    for (const char *p = text; copy && *p;) {
        size_t n = in_string ? 0 : json_large_number(p, &is_large);

        if (n > 0) {
            to += sprintf(to, is_large ? "\"%.*s\"" : "%.*s", (int) n, p);
            p += n;
            continue;
        }
        if (in_string && *p == '\\' && p[1])
            *to++ = *p++;
        else if (*p == '"')
            in_string = !in_string;
        *to++ = *p++;
    }
    if (copy)
        *to = '\0';
    return copy;
}

json_t *json_large_load(const char *text, json_error_t *ret_why)
{
    _cleanup_(freep) char *quoted = json_large_quote(text);

    return quoted ? json_loads(quoted, 0, ret_why) : NULL;
}
