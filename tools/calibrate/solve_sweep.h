/* kvcobra solve --sweep: solves every split of a total budget between keys and values. */
#pragma once

#include "alloc/kvcobra-alloc.h"

struct progress;
struct solve_arguments;
struct solve_input;

/**
 * solve_sweep() - solve at every split and print the distortions
 * @o: the solver's options; its budgets are replaced
 * @p: started; ended before anything is printed
 *
 * Keys get step, 2 step, ... while both sides are within (0, 8]. Method bands also solves one budget over
 * both sides, named "free". With an output directory, each table is written there: k2-v4.table, free.table.
 *
 * Return: an exit code of command.h.
 */
int solve_sweep(const struct solve_arguments *a, const struct solve_input *in, const kvc_solve_options *o,
                struct progress *p);
