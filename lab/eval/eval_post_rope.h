/*
 * eval --post-rope: a table beside one solved in the same way from keys after RoPE. The second one is never
 * written to a file, since only the cache of an evaluation reads it correctly.
 */
#pragma once

struct document;
struct engine;
struct eval_options;

/* Measures and prints both. Return: an exit code of command.h. */
int eval_post_rope(struct engine *en, const struct eval_options *o, const struct document *text);
