/*
 * `kvcobra eval --hits`: how much the answer of a run whose prompt was found in shared pages differs from
 * that of a cold run, with attention as the product reads by default and with KVC_SEQ_REPEATABLE.
 */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_hits(struct engine *en, const struct eval_options *o, const struct document *text);
