/* See nearest.h. */
#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

enum { NAME_LONGEST = 31 };

static size_t nearest_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein distance; SIZE_MAX for names longer than any known one. */
static size_t nearest_distance(const char *a, const char *b)
{
    size_t row[NAME_LONGEST + 1], n = strlen(b);

    if (n > NAME_LONGEST || strlen(a) > NAME_LONGEST)
        return SIZE_MAX;

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0]; /* distance of a[..i-1] to b[..j-1] */

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t replace = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = nearest_min(replace, nearest_min(row[j], row[j - 1]) + 1);
        }
    }

    return row[n];
}

void nearest_init(struct nearest *n, const char *typed)
{
    *n = (struct nearest){.typed = typed, .distance = strlen(typed) / 2 + 1};
}

void nearest_try(struct nearest *n, const char *name)
{
    size_t distance = nearest_distance(n->typed, name);

    if (distance < n->distance) {
        n->distance = distance;
        n->best = name;
    }
}
