/* Values of options; see option.h. */
#include "tools/command/option.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/nearest.h"

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

uint32_t option_timeout_ms(const struct argp_state *state, const char *arg)
{
    return (uint32_t) (option_double(state, "--timeout", arg, 0.1, 3600) * 1000);
}

void option_unknown(const struct argp_state *state, const char *arg, const char *names)
{
    _cleanup_(freep) char *list = strdup(names);
    struct nearest n;
    char *rest = NULL;

    nearest_init(&n, arg);
    for (char *name = list ? strtok_r(list, ", ", &rest) : NULL; name; name = strtok_r(NULL, ", ", &rest))
        nearest_try(&n, name);
    if (n.best)
        argp_error(state, "'%s' is none of %s; did you mean '%s'?", arg, names, n.best);
    else
        argp_error(state, "'%s' is none of %s", arg, names);
}

uint64_t option_bytes(const struct argp_state *state, const char *arg)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end = (char *) arg;
    unsigned shift = 0;
    uint64_t v = 0;

    errno = 0;
    if (*arg >= '0' && *arg <= '9')
        v = strtoull(arg, &end, 10);

    if (end != arg && *end != '\0') {
        unit = end[1] == '\0' ? strchr(units, *end) : NULL;
        shift = unit ? 10 * (unsigned) (unit - units + 1) : 64;
    }

    if (end == arg || errno == ERANGE || shift == 64 || v >= UINT64_MAX >> shift)
        argp_error(state, "'%s' is not a size such as 65536, 64K, 64M or 2G", arg);
    return v << (shift & 63);
}
