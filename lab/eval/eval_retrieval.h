/* `kvcobra eval --retrieval`: keys in long text that the exact model, tables and formats find. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_retrieval(struct engine *en, const struct eval_options *o, const struct document *text);
