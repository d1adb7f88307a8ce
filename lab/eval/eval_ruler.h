/* `kvcobra eval --ruler`: synthetic long-context tasks, paired with the exact model. */
#pragma once

struct engine;
struct eval_options;

/* Measures and prints. Return: an exit code of command.h. */
int eval_ruler(struct engine *en, const struct eval_options *o);
