/* Values of options; see option.h. */
#include "tools/command/option.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t option_uint(const struct argp_state *state, const char *option, const char *arg, uint64_t min,
                     uint64_t max)
{
    unsigned long long v;
    char *end;

    errno = 0;
    v = strtoull(arg, &end, 10);
    if (errno != 0 || end == arg || *end != '\0' || strchr(arg, '-') || v < min || v > max)
        argp_error(state, "%s takes a whole number from %ju to %ju, not '%s'", option, (uintmax_t) min,
                   (uintmax_t) max, arg);
    return v;
}

double option_double(const struct argp_state *state, const char *option, const char *arg, double min,
                     double max)
{
    double v;
    char *end;

    v = strtod(arg, &end);
    if (end == arg || *end != '\0' || !isfinite(v) || v < min || v > max)
        argp_error(state, "%s takes a number from %g to %g, not '%s'", option, min, max, arg);
    return v;
}
