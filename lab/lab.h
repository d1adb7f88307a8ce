/*
 * The laboratory: measurements and comparisons that no engine and no daemon needs. It uses the
 * product's code, also that which no header offers; the product uses nothing of it.
 */
#pragma once

struct command;

/* kvcobra-lab without its entry: main() calls this. */
int lab_main(int argc, char **argv);

/* Its subcommands. */
extern const struct command lab_bench, lab_eval;
