/* `kvcobra eval` with several tables or formats: one row each, measured on the same text. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_compare(struct engine *en, const struct eval_options *o, const struct document *text);
