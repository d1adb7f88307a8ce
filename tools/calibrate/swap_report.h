/* kvcobra solve --swap-report: what of a table does not serve the texts of other statistics. */
#pragma once

#include "alloc/kvcobra-alloc.h"

struct progress;
struct solve_arguments;
struct solve_input;

/**
 * swap_report() - exchange one statistic at a time and print the distortion that is left
 * @o: the solver's options
 * @p: started; ended before anything is printed
 *
 * Return: an exit code of command.h.
 */
int swap_report(const struct solve_arguments *a, const struct solve_input *in, const kvc_solve_options *o,
                struct progress *p);
