/*
 * The measurements of `kvcobra eval`, each in the file of its name. cmd_eval.c chooses one. All print what
 * they measured, and return an exit code of command.h.
 */
#pragma once

struct document;
struct engine;
struct eval_options;

/* One --table and no other format: a detailed report. */
int eval_table(struct engine *en, const struct eval_options *o, const struct document *text);

/* Several tables or formats: one row each, measured on the same text. */
int eval_compare(struct engine *en, const struct eval_options *o, const struct document *text);

/* Several texts, several exact recent windows or --budgets: KL with intervals. @texts: [o->n_texts] */
int eval_texts(struct engine *en, const struct eval_options *o, const struct document *texts);

/* --generate: how many generated tokens agree with the exact model's. */
int eval_generate(struct engine *en, const struct eval_options *o, const struct document *text);

/*
 * --hits: how much the answer of a run whose prompt was found in shared pages differs from that of a cold
 * run, with attention as the product reads by default and with KVC_SEQ_REPEATABLE.
 */
int eval_hits(struct engine *en, const struct eval_options *o, const struct document *text);
