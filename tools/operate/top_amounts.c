/* See top_amounts.h. */
#include "tools/operate/top_amounts.h"

#include <stdio.h>

/* Growth of a counter. One that became smaller belongs to a daemon that was restarted. */
uint64_t top_amounts_growth(uint64_t now, uint64_t before)
{
    return now >= before ? now - before : now;
}

const char *top_amounts_rate(uint64_t n, double seconds, char ret[static 16])
{
    double x = (double) n / seconds;

    if (n == 0)
        (void) snprintf(ret, 16, "0");
    else if (x < 10)
        (void) snprintf(ret, 16, "%.2f", x);
    else if (x < 100000)
        (void) snprintf(ret, 16, "%.0f", x);
    else
        (void) snprintf(ret, 16, "%.2g", x);
    return ret;
}

/* Percent of looked-up chunks that were found; "-" if none was looked up. */
const char *top_amounts_hit_rate(uint64_t hits, uint64_t misses, char ret[static 16])
{
    if (hits + misses == 0)
        (void) snprintf(ret, 16, "-");
    else
        (void) snprintf(ret, 16, "%.1f", 100.0 * (double) hits / (double) (hits + misses));
    return ret;
}

/* A count in few columns: "12k", "3.4M". */
const char *top_amounts_count(uint64_t n, char ret[static 16])
{
    static const char units[] = {' ', 'k', 'M', 'G', 'T'};
    double x = (double) n;
    unsigned u = 0;

    while (x >= 9999.5 && u + 1 < sizeof(units)) {
        x /= 1000;
        u++;
    }

    if (u == 0)
        (void) snprintf(ret, 16, "%ju", (uintmax_t) n);
    else
        (void) snprintf(ret, 16, x < 99.95 ? "%.1f%c" : "%.0f%c", x, units[u]);
    return ret;
}
