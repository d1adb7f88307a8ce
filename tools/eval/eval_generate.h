/* `kvcobra eval --generate`: how many generated tokens agree with the exact model's. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_generate(struct engine *en, const struct eval_options *o, const struct document *text);
