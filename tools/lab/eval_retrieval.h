/* `kvcobra eval --retrieval`: what the exact model, tables and formats find again in long text. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_retrieval(struct engine *en, const struct eval_options *o, const struct document *text);
