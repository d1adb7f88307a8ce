/* `kvcobra eval` with one --table and no other format: a detailed report. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_table(struct engine *en, const struct eval_options *o, const struct document *text);
