/* See solve_names.h. */
#include "alloc/solve/solve_names.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static const char *const method_names[] = {"bands", "paper-mse", "paper-kl", "dp"};
static const char *const metric_names[] = {"mse", "query", "attention", "fisher", "output"};
static const char *const curve_names[] = {"measured", "gaussian", "bennett"};
static const char *const prediction_names[] = {"none", "head", "layer"};
static const char *const decoder_names[] = {"inverse", "least-squares"};
static const char *const quantiser_names[] = {"lloyd-max", "uniform", "uniform-midtread"};

static int solve_names_find(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return (int) i;
    return -EINVAL;
}

#define N_NAMES(names) (sizeof(names) / sizeof(*(names)))

const char *solve_method_name(enum method m)
{
    return method_names[m];
}

int solve_method_from_name(const char *name, enum method *ret)
{
    int i = solve_names_find(method_names, N_NAMES(method_names), name);

    if (i < 0)
        return i;

    *ret = (enum method) i;
    return 0;
}

const char *solve_metric_name(enum metric m)
{
    return metric_names[m];
}

int solve_metric_from_name(const char *name, enum metric *ret)
{
    int i = solve_names_find(metric_names, N_NAMES(metric_names), name);

    if (i < 0)
        return i;

    *ret = (enum metric) i;
    return 0;
}

const char *solve_curve_name(enum curve c)
{
    return curve_names[c];
}

int solve_curve_from_name(const char *name, enum curve *ret)
{
    int i = solve_names_find(curve_names, N_NAMES(curve_names), name);

    if (i < 0)
        return i;

    *ret = (enum curve) i;
    return 0;
}

const char *solve_prediction_name(enum prediction p)
{
    return prediction_names[p];
}

int solve_prediction_from_name(const char *name, enum prediction *ret)
{
    int i = solve_names_find(prediction_names, N_NAMES(prediction_names), name);

    if (i < 0)
        return i;

    *ret = (enum prediction) i;
    return 0;
}

const char *solve_decoder_name(enum decoder d)
{
    return decoder_names[d];
}

int solve_decoder_from_name(const char *name, enum decoder *ret)
{
    int i = solve_names_find(decoder_names, N_NAMES(decoder_names), name);

    if (i < 0)
        return i;

    *ret = (enum decoder) i;
    return 0;
}

const char *solve_quantiser_name(enum quantiser q)
{
    return quantiser_names[q];
}

int solve_quantiser_from_name(const char *name, enum quantiser *ret)
{
    int i = solve_names_find(quantiser_names, N_NAMES(quantiser_names), name);

    if (i < 0)
        return i;

    *ret = (enum quantiser) i;
    return 0;
}
