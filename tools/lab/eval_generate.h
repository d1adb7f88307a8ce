/* `kvcobra eval --generate`: how long tables and formats write what the exact model writes. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_generate(struct engine *en, const struct eval_options *o, const struct document *text);
