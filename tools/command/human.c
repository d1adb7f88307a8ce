/* Amounts as text; see human.h. */
#include "tools/command/human.h"

#include <math.h>
#include <stdio.h>

const char *human_bytes(uint64_t bytes, char ret[static HUMAN_BYTES])
{
    static const char units[] = "KMGTPE";
    double v = (double) bytes;
    int unit = -1;

    while (v >= 1023.95 && units[unit + 1]) { /* rounds to 1024.0 */
        v /= 1024;
        unit++;
    }

    if (unit < 0 || bytes < 1024)
        (void) snprintf(ret, HUMAN_BYTES, "%u B", (unsigned) bytes);
    else
        (void) snprintf(ret, HUMAN_BYTES, "%.1f %ciB", v, units[unit]);
    return ret;
}

const char *human_seconds(double seconds, char ret[static HUMAN_BYTES])
{
    double s = fmin(fmax(seconds, 0), 1e9); /* NaN becomes 0 */

    if (s < 9.995)
        (void) snprintf(ret, HUMAN_BYTES, "%.2f s", s);
    else if (s < 59.5)
        (void) snprintf(ret, HUMAN_BYTES, "%.0f s", s);
    else if (s < 3599.5)
        (void) snprintf(ret, HUMAN_BYTES, "%d min %02d s", (int) (s + 0.5) / 60, (int) (s + 0.5) % 60);
    else
        (void) snprintf(ret, HUMAN_BYTES, "%d h %02d min", (int) (s / 60 + 0.5) / 60,
                        (int) (s / 60 + 0.5) % 60);
    return ret;
}
