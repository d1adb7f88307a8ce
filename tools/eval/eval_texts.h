/* `kvcobra eval` with several texts, several exact recent windows or --budgets: KL with intervals. */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. @texts: [o->n_texts]. Return: an exit code of command.h. */
int eval_texts(struct engine *en, const struct eval_options *o, const struct document *texts);
