/* kvcobra solve --sweep: every split of a total budget between keys and values. */
#pragma once

struct progress;
struct solve_arguments;
struct solve_options;
struct stats;

/**
 * solve_sweep() - solve at every split and show what each does
 * @o: the solver's options; its budgets are replaced
 * @p: started; ended before anything is printed
 *
 * Keys get step, 2 step, ... as long as both sides are within (0, 8]. Bands also get the split that one
 * budget over both sides finds. With an output directory, a table each: k2-v4.table, free.table.
 *
 * Return: an exit code of command.h.
 */
int solve_sweep(const struct solve_arguments *a, const struct stats *s, const struct solve_options *o,
                struct progress *p);
